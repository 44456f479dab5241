"""What weights and measured kernels are reported as: tables, plots and the model card."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from clustersim.cli.lab import app
from clustersim.errors import InputError
from clustersim.figures.canvas import Marks
from clustersim.hardware import gpus
from clustersim.lab import evaluate, model_card, plots
from clustersim.lab.data.samples import Samples
from clustersim.lab.model_card import MEANINGS, constants, speeds
from clustersim.lab.train.learner import FEW, with_scalar
from clustersim.model.kernel import gemm
from clustersim.predictors import weights_file
from clustersim.predictors.features import columns
from clustersim.predictors.load import get

CARD = Path(__file__).parents[2] / "docs/model-card.md"


def shipped(name):
    return weights_file.read(weights_file.shipped(name), name)


def samples(factor=1.0, gpu="h100-sxm", dtype="bf16", count=200):
    """Return products of many sizes that take `factor` times the forecast of `neusight`."""
    rng = np.random.default_rng(0)
    sides = (2 ** rng.uniform(8, 13, (count, 3))).astype(int).tolist()
    table = columns([gemm("linear", "forward", dtype, 1, *side) for side in sides])
    seconds = factor * get("neusight").columns(table, gpus.load(gpu), alone=True)
    return Samples(table, np.full(count, gpu), seconds)


@pytest.fixture(scope="module")
def frame():
    kinds = {"half/linear": samples(1.1), "fp32/linear": samples(0.9, "l4", "fp32")}
    return evaluate.judge(get("neusight"), kinds, "test", scalar=True)


def test_errors_are_those_of_the_kernels(frame):
    [half, fp32] = evaluate.errors(frame, ("class",))
    assert half["mean"] == pytest.approx(half["p90"]) == pytest.approx(1 - 1 / 1.1)
    assert (half["bias"], half["samples"], half["new"]) == (pytest.approx(1 / 1.1), 200, "nothing")
    assert (fp32["bias"], fp32["new"]) == (pytest.approx(1 / 0.9), "GPU")


def test_a_scalar_of_kernels_that_are_right_changes_little():
    for dtype, kind, gpu in (("bf16", "half/linear", "l4"), ("fp32", "fp32/linear", "h100-sxm")):
        one = samples(1.0, gpu, dtype)
        predictor, _ = with_scalar(get("neusight"), kind, gpus.load(gpu), one)
        ratio = predictor.columns(one.table, gpus.load(gpu), alone=True) / one.seconds
        assert np.abs(ratio - 1).max() < 1e-3  # a call's dispatch is no part of the speed


def test_one_scalar_takes_a_common_factor_away():
    whole = samples(1.15, gpu="l4", dtype="bf16", count=400)
    predictor, rest = with_scalar(get("neusight"), "half/linear", gpus.load("l4"), whole)
    ratio = predictor.columns(whole.table.select(rest), gpus.load("l4"), alone=True) / whole.seconds[rest]
    assert len(rest) == 400 - FEW
    assert np.abs(ratio - 1).mean() < 0.04
    again, same = with_scalar(get("neusight"), "half/linear", gpus.load("l4"), whole)
    assert np.array_equal(same, rest)
    assert again.weights.classes["half/linear"].keys() == predictor.weights.classes["half/linear"].keys()


def test_coverage_counts_the_kernels_inside_the_interval(frame):
    wide = evaluate.judge(get("neusight"), {"half/linear": samples(3.0)}, "test")
    assert [row["coverage"] for row in evaluate.errors(wide, ("class",))] == [0.0]
    assert all(0 <= row["coverage"] <= 1 for row in evaluate.errors(frame))
    plain = evaluate.judge(get("roofline"), {"half/linear": samples()}, "test")
    assert [row["coverage"] for row in evaluate.errors(plain, ("class",))] == [None]


@pytest.mark.parametrize("key", ["decile", "flop-decile"])
def test_deciles_part_each_class_evenly_by_size(frame, key):
    rows = list(evaluate.errors(frame, ("class", key)))
    assert [row["decile"] for row in rows] == [*range(1, 11)] * 2
    assert {row["samples"] for row in rows} == {20}
    parted = evaluate.deciles(frame, ("class", key)).filter(pl.col("kind") == "half/linear")
    size = "flop" if key == "flop-decile" else "seconds"
    for low, high in zip(range(1, 10), range(2, 11), strict=True):
        assert parted.filter(decile=low)[size].max() <= parted.filter(decile=high)[size].min()


@given(st.lists(st.sampled_from(sorted(evaluate.KEYS)), min_size=1, max_size=4, unique=True))
def test_keys_of_groups(keys):
    if {"decile", "flop-decile"} <= {*keys}:
        with pytest.raises(InputError, match="one kind of decile"):
            evaluate.groups(",".join(keys))
        return
    found = evaluate.groups(", ".join(keys))
    assert {*found} - {*keys} <= {"class"}
    assert "class" in found or not any(key.endswith("decile") for key in keys)


def test_the_page_is_one_file_of_sound_drawings(frame, tmp_path):
    path = plots.write(tmp_path, [frame], "test")
    text = path.read_text(encoding="utf-8")
    drawings = re.findall(r"<svg xmlns.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 4
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    assert re.findall(r'(?:src|href)="', text) == []
    for words in ("half/linear", "l4", "measured", "forecast", "absolute error", "decile of measured time", "10 us"):
        assert words in text
    assert text == plots.page([frame], "test")


def panels(canvas, count):
    """Return the places (left, top, right, bottom) of the axes of each panel of a figure."""
    width, height = plots.PANEL
    corners = [(i % plots.COLUMNS * width, i // plots.COLUMNS * height) for i in range(count)]
    made = [plots.Plot("", None, None, canvas=canvas, corner=corner, size=plots.PANEL) for corner in corners]
    return [(one.left, one.top, one.right, one.bottom) for one in made]


def test_every_kernel_has_its_mark_and_lies_within_the_axes(frame):
    counts = {}
    for figure in plots.figures(frame):
        legend = figure.canvas.height - plots.PANEL[1] * -(-frame["kind"].n_unique() // plots.COLUMNS)
        assert legend >= plots.LEGEND
        marks = [shape for shape in figure.canvas.shapes if isinstance(shape, Marks)]
        drawn = [at for one in marks for at in one.at if at[1] < figure.canvas.height - legend]
        for x, y in drawn:
            areas = panels(figure.canvas, frame["kind"].n_unique())
            assert any(left <= x <= right and top <= y <= bottom for left, top, right, bottom in areas)
        counts[figure.name] = len(drawn)
    pairs = frame.select("kind", "gpu").n_unique()
    classes = frame["kind"].n_unique()
    assert list(counts.values()) == [len(frame), len(frame), 3 * 10 * classes, pairs]


def test_png_files(frame, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra `plots`)")
    paths = plots.write_png(tmp_path, [frame])
    assert [path.name for path in paths] == [f"neusight-{what}.png" for what in ("scatter", "ratio", "deciles", "gpus")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_model_card_is_that_of_the_weights():
    new = model_card.card(shipped("neusight"))
    assert CARD.read_text(encoding="utf-8") == new, "run scripts/update-docs"


def test_tables_hold_the_figures_of_the_metadata():
    meta = shipped("neusight").meta
    rows = {(row[0], row[1]): row for row in model_card.errors(meta).rows}
    assert len(rows) == sum(map(len, meta["errors"].values())) > 40
    for (kind, gpu), row in rows.items():
        entry = meta["errors"][kind][gpu]
        assert row[2] == ("GPU" if entry["unseen"] else "kernels")
        assert row[3:6] == tuple(f"{100 * entry[key]:.1f} %" for key in ("mean", "median", "p90"))
    worst = {row[0]: row[4] for row in model_card.overview(meta).rows}
    for kind, found in meta["errors"].items():
        assert worst[kind].startswith(f"{100 * max(e['mean'] for e in found.values() if e['unseen']):.1f} %")


def test_every_learned_constant_has_a_meaning():
    weights = shipped("neusight")
    known = {*MEANINGS, "busy", "mean", "low", "high", "std"}
    for kind, parameters in weights.classes.items():
        names = {name for name in parameters if not name.startswith(("own.", "speed.", "level.", "mlp.", "features."))}
        assert names - known == set()
        assert all(np.isfinite(one.value) and one.text for one in constants(kind, parameters))


def test_constants_are_in_the_units_of_the_formulas():
    weights = shipped("neusight")
    found = {one.name: one for one in constants("half/linear", weights.classes["half/linear"])}
    assert 48 < found["gemm.path"].value < 80  # bytes a clock: 64 in hardware
    assert found["gemm.path"].unit == "B per clock"
    assert 1 < found["gemm.start"].value < 5  # us
    assert 0 < found["gemm.mu"].value < 1
    assert 0.5 < speeds(weights.classes["half/linear"])["h100-sxm", "bf16"] < 1.3


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_show_is_short_and_full_on_demand(tmp_path):
    short, full = call("show", "-p", "neusight"), call("show", "-p", "neusight", "--full")
    assert short.exit_code == full.exit_code == 0
    assert len(short.output.splitlines()) < 20
    assert len(full.output.splitlines()) > 150
    assert "gemm.path" in full.output
    assert (
        json.loads(call("show", "-p", "neusight", "--json").output)["predictors"]["neusight"]["predictor"] == "neusight"
    )
    assert call("show", "-p", "neusight", "--card", tmp_path / "card.md").exit_code == 0
    assert (tmp_path / "card.md").read_text(encoding="utf-8").startswith("# Model card: neusight")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "-p", "linear", "--card", "x.md"), "neusight alone has a model card"),
        (("show", "-p", "roofline"), "ships no weights"),
        (("show", "--weights", "x"), "--weights belongs to one predictor"),
        (("evaluate", "--png"), "name their folder with --plots"),
        (("evaluate", "--by", "size"), "'size' is not known"),
    ],
)
def test_wrong_options(arguments, message):
    done = call(*arguments)
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_evaluate_prints_writes_and_draws(tmp_path):
    own = tmp_path / "own.csv"
    times = {m: 2 * m * 4096**2 / 6e14 + 5e-6 for m in range(512, 4096, 128)}
    rows = [f"h100,linear,forward,bf16,{m},4096,4096,{seconds:.4g}" for m, seconds in times.items()]
    own.write_text("\n".join(("gpu,kind,op,dtype,m,n,k,latency_s", *rows, "")))
    arguments = ("evaluate", "--data", own, "-p", "neusight", "--by", "dtype,decile", "--plots", tmp_path / "plots")
    done = call(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["by"] == ["class", "dtype", "decile"]
    assert [row["decile"] for row in found["errors"]] == list(range(1, 11))
    assert (tmp_path / "plots" / plots.PAGE).is_file()
    assert "in 80 %" in call("evaluate", "--data", own, "-p", "neusight", "--scalar").output
