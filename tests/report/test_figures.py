"""Figures for papers: the picture of what was found, in each form that can be asked for."""

import json
from xml.etree import ElementTree

import pytest
from stored import sweep_row

from clustersim.errors import InputError
from clustersim.figures import bars, charts, files
from clustersim.figures.canvas import Box, Canvas, Dot, Text, svg
from clustersim.figures.plot import AxisRange, Plot
from clustersim.simulation import simulate


@pytest.fixture(scope="module")
def result():
    keys = {"parallelism.tp": 2, "parallelism.pp": 4, "training.global_batch": 16, "training.micro_batch": 1}
    return simulate("topologies/hgx_h100_8.yaml", "workloads/gpt2_large.yaml", keys)


def _boxes(canvas):
    return [shape for shape in canvas.shapes if isinstance(shape, Box) and shape.tip]


def _words(canvas):
    return [shape.words for shape in canvas.shapes if isinstance(shape, Text)]


def test_the_bars_of_a_breakdown_are_the_step(result):
    canvas = bars.breakdown(result)
    rows = {}
    for box in _boxes(canvas):
        rows.setdefault(box.corner[1], []).append(box.size[0])
    assert len(rows) == 4
    whole = bars.WIDTH - bars.RUN_LEFT - bars.RIGHT
    assert [sum(widths) for widths in rows.values()] == pytest.approx([whole] * 4, rel=1e-6)
    assert {"critical path", "mean of ranks", "rank 0 (pipeline rank 0)", "rank 6 (pipeline rank 3)"} <= set(
        _words(canvas)
    )


def test_memory_is_as_high_as_its_peak(result):
    canvas = charts.memory(result)
    peak = max(one.peak.total for one in result.facts.memory) / 2**30
    tops = [box.corner[1] for box in _boxes(canvas)]
    capacity = result.topology.gpu.memory / 2**30
    plot = Plot("", AxisRange(0.0, result.record.end), AxisRange(0.0, max(capacity, peak) * 1.08), right=190.0)
    assert min(tops) == pytest.approx(plot.at((0.0, peak))[1], abs=0.5)
    assert any("GiB" in words and result.topology.gpu.name in words for words in _words(canvas))


def test_no_kernel_stands_above_the_roof(result):
    canvas = charts.roofline(result)
    assert any(isinstance(shape, Dot) for shape in canvas.shapes)
    assert any("bf16 matrix units" in words for words in _words(canvas))


def _row(ranks, tokens, status="ok"):
    return {"status": status, "ranks": ranks, "tokens_per_s": tokens} if status == "ok" else {"status": status}


def test_scaling_shows_the_best_of_each_size():
    canvas = charts.scaling([_row(8, 90.0), _row(8, 100.0), _row(16, 150.0), _row(0, 0, "illegal"), _row(32, 400.0)])
    assert {"8: 100%", "16: 75%", "32: 100%"} <= set(_words(canvas))
    with pytest.raises(InputError, match="sweep several sizes, such as --nodes"):
        charts.scaling([_row(8, 90.0), _row(8, 100.0)])


def test_the_step_of_a_split_is_the_one_that_is_expected():
    """As its tokens/s are; a row of an older release has the simulated step alone."""
    rows = [sweep_row(step_time_s=2.0, expected_step_time_s=2.5), sweep_row(step_time_s=3.0)]
    words = _words(bars.splits(rows))
    assert {"2.500 s", "3.000 s"} <= set(words) and "2.000 s" not in words


def test_ticks_are_round_and_inside():
    assert AxisRange(0.0, 10.0).ticks(5) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0][:6]
    assert AxisRange(0.3, 4000.0, True).ticks(9) == [1.0, 10.0, 100.0, 1000.0]
    assert AxisRange(190.0, 1400.0, True).ticks(9) == [200.0, 500.0, 1000.0]  # less than two powers of ten
    assert AxisRange(300.0, 700.0, True).ticks(9) == [300.0, 400.0, 500.0, 600.0, 700.0]
    assert all(0.07 <= tick <= 0.093 for tick in AxisRange(0.07, 0.093).ticks(6))


def test_a_picture_says_the_same_in_svg(result):
    for canvas in (bars.breakdown(result), charts.memory(result), charts.roofline(result)):
        tree = ElementTree.fromstring(svg(canvas))
        assert [node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")] == _words(canvas)


def test_a_picture_has_the_same_bytes_every_time():
    canvas = Canvas(200, 100, "a plot")
    canvas.line((0, 0), (200, 100), dashed=True)
    canvas.text((100, 50), "words", anchor="end")
    canvas.bar((10, 10), (20, 20), "#56b4e9", tip="a bar")
    pdf, png = files.image(canvas, ".pdf"), files.image(canvas, ".png")
    assert pdf.startswith(b"%PDF") and png.startswith(b"\x89PNG")
    assert (pdf, png) == (files.image(canvas, ".pdf"), files.image(canvas, ".png"))


def test_hostile_names_are_text():
    canvas = Canvas(100, 100, "</title><script>alert(1)</script>")
    canvas.text((10, 10), "<script>'\"&\u202e")
    canvas.bar((0, 0), (10, 10), "#000000", tip="<img>")
    text = svg(canvas)
    assert "<script" not in text and "<img" not in text
    ElementTree.fromstring(text)


def test_the_command_draws_runs_and_sweeps(tmp_path, call):
    run = ("run", "nvlink_h100_4", "gpt2_large", "--pp", "2", "--predictor", "roofline", "--quiet")
    assert call(*run, "--out", "one", "--timeline", "direct.svg")[0] == 0
    code, out, err = call("plot", "one", "--kind", "timeline", "--out", "a.svg")
    assert (code, out) == (0, "written to a.svg\n")
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "direct.svg").read_text()
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/manifest.json").write_text(json.dumps({"clustersim": "0.1.0", "command": "sweep"}))
    rows = [{"point": {"n": n}, "row": sweep_row(ranks=n, tokens_per_s=10.0 * n)} for n in (8, 16)]
    (tmp_path / "sweep/points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("plot", "sweep", "--kind", "scaling", "--out", "b.svg", "-q")[0] == 0
    for words, said in (
        (["one", "--kind", "pie", "--out", "a.svg"], "--kind pie: no such figure;"),
        (["one", "--kind", "memory", "--out", "a.gif"], "--out a.gif: the ending says what is written"),
        (["one", "--kind", "scaling", "--out", "a.svg"], "one: is the result of `clustersim run`"),
        (["sweep", "--kind", "memory", "--out", "a.svg"], "sweep: is the result of `clustersim sweep`, not of a run"),
    ):
        code, out, err = call("plot", *words)
        assert code == 2 and said in err and "Traceback" not in err
