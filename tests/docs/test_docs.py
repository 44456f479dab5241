"""What README.md and docs/ say is run: commands print what stands there, examples work, names and links exist."""

import importlib.util
import json
import re

import numpy as np
import pytest
import typer
from browser import browsing, needs_browser, opened
from documents import (
    NAMES,
    PAGES,
    PICTURE,
    ROOT,
    SPLITS,
    draw,
    draw_splits,
    names_table,
    parse,
    prepare,
    rows_of_splits,
    run,
)
from gallery import IMAGES, PICTURES
from screenshots import MOST, RUN, SCREENSHOTS, made, written
from yaml_reference import PAGE, reference

from clustersim import plugins
from clustersim.cli.app import app
from clustersim.collectives.nccl.table import line
from clustersim.hardware import gpus
from clustersim.simulation import simulate

LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_of_a_page_does_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(prepare(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    for example in parse(page, tmp_path).examples():
        example.evaluate()


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("docs/decisions/*.md")], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(page):
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert missing == []


def test_the_reference_of_keys_is_that_of_the_specs():
    assert PAGE.read_text(encoding="utf-8") == reference(), "run scripts/update-docs"


def test_the_picture_is_the_present_timeline():
    assert PICTURE.read_text(encoding="utf-8") == draw(), "run scripts/update-docs"


def test_the_picture_of_splits_is_the_present_sweep():
    assert SPLITS.read_text(encoding="utf-8") == draw_splits(), "run scripts/update-docs"


@pytest.mark.slow
def test_the_split_that_the_tutorial_calls_the_best_of_all_is_what_optimize_finds(tmp_path, monkeypatch):
    """The best that likely fits: 28 % less time than the best of the six that it begins with."""
    monkeypatch.chdir(prepare(tmp_path))
    said = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8").split("### The best of all splits")[1]
    line = re.search(r"^\$ clustersim (run .*) --no-save", said, re.MULTILINE)[1]
    found = json.loads(run("clustersim optimize superpod_h100_128 llama3_70b --json", tmp_path))
    one = json.loads(run(f"clustersim {line} --no-save --json", tmp_path))
    best = found["rows"][0]
    assert one["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-12)
    *six, drawn = rows_of_splits()
    assert drawn["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-12)
    of_six = min(row["step_time_s"] for row in six if row["status"] == "ok")
    assert one["step_time_s"] == pytest.approx(0.72 * of_six, rel=0.01)


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_of_the_gallery_are_the_present_ones(name):
    assert (IMAGES / f"{name}.svg").read_text(encoding="utf-8") == PICTURES[name](), "run scripts/update-docs"


@pytest.mark.parametrize("name", SCREENSHOTS)
def test_a_picture_of_a_page_is_small_and_shown_with_words(name):
    raw = (IMAGES / f"{name}.webp").read_bytes()
    assert (raw[:4], raw[8:12]) == (b"RIFF", b"WEBP"), "run scripts/update-screenshots"
    assert len(raw) <= MOST
    shown = [
        page
        for page in PAGES
        if re.search(rf"!\[[^\]]{{40,}}\]\([a-z/]*{name}\.webp\)", page.read_text(encoding="utf-8"))
    ]
    assert shown, "a page shows it, and says what is in it"


@pytest.mark.slow
@needs_browser
def test_the_parts_of_a_report_that_pictures_show_are_there(tmp_path):
    made(RUN, tmp_path)
    with browsing() as browser:
        for name, shot in SCREENSHOTS.items():
            if shot.commands == RUN:
                with opened(browser, tmp_path / shot.page, shot.width) as found:
                    assert written(found.page, name, tmp_path).stat().st_size <= MOST


def test_the_first_screen_of_the_readme_is_what_the_sweep_says():
    """A picture, a decision and two commands within forty lines; the decision holds."""
    screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    assert "](docs/images/splits.svg)" in screen
    commands = [line for line in screen.splitlines() if line.startswith(("clustersim run", "clustersim sweep"))]
    assert len(commands) == 2
    *six, best = rows_of_splits()
    speed = {(row["tp"], row["pp"]): row.get("tokens_per_s") for row in six}
    assert speed[8, 2] == max(found for found in speed.values() if found)
    assert f"tp 8 × pp 2 trains {100 * (speed[8, 2] / speed[8, 4] - 1):.1f} % more tokens" in screen
    assert f"{100 * (best['tokens_per_s'] / speed[8, 2] - 1):.0f} % more than tp 8 × pp 2" in screen
    assert speed[4, 2] is None
    assert "tp 4 × pp 2 would not fit" in screen


def test_the_example_result_is_what_its_command_gives(tmp_path):
    shipped = ROOT / "results/example"
    [command] = re.findall(
        r"^clustersim run .*$", (ROOT / "results/README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert run(f"{command} --quiet", prepare(tmp_path)) == ""
    new, old = (json.loads((folder / "summary.json").read_text()) for folder in (tmp_path / "results/example", shipped))
    assert keys(new) == keys(old)
    assert new["step_time_s"] == pytest.approx(old["step_time_s"], rel=1e-9)
    assert sorted(p.name for p in shipped.iterdir()) == sorted(p.name for p in (tmp_path / "results/example").iterdir())


def test_the_benchmark_of_run_times_finds_its_counts_in_a_summary():
    spec = importlib.util.spec_from_file_location("run_time", ROOT / "benchmarks/run_time.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    summary = json.loads((ROOT / "results/example/summary.json").read_text())
    assert benchmark.counted(summary) == (4, 300)


def keys(value, path=""):
    """Every key in a JSON value, as paths."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path}.union(*(keys(child, f"{path}/{key}") for key, child in inner))


def existing():
    rooms = ("collectives", "placements", "predictors", "schedules", "topology")
    yield from (name for room in rooms for name in plugins.names(f"clustersim.{room}"))
    yield from (path.stem for folder in ("topologies", "workloads") for path in ROOT.glob(f"{folder}/*.y*ml"))
    yield from (name for name, command in typer.main.get_group(app()).commands.items() if not command.hidden)
    yield from (gpu.name for gpu in gpus.everything())


def test_the_index_names_all_that_there_is():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    assert NAMES.findall(index) == [names_table()], "run scripts/update-docs"
    assert [name for name in existing() if f"`{name}`" not in index] == []


def test_the_example_comes_out_by_hand():
    tokens, hidden, layers, stages, microbatches = 2048, 8192, 3, 4, 8  # layers of one stage
    peak, bandwidth = 989.4e12, 3352e9
    linear, attention = 24 * tokens * hidden**2 / peak, 2 * tokens**2 * hidden / peak
    forward = layers * (linear + attention + 604e6 / bandwidth)
    backward = layers * (2 * linear + 2.5 * attention + 1107e6 / bandwidth)
    update = 50 * layers * 12 * hidden**2 / bandwidth
    passes = (microbatches + stages - 1) * (forward + backward)
    page = (ROOT / "docs/by-hand.md").read_text(encoding="utf-8")
    for shown in (f"f = {forward * 1e3:.2f} ms", f"b = {backward * 1e3:.2f} ms", f"{passes * 1e3:.1f} ms"):
        assert shown in page
    assert f"{update * 1e3:.1f} ms" in page
    assert f"{(passes + update) * 1e3:.1f} ms" in page
    files = ROOT / "topologies/nvlink_h100_4.yaml", ROOT / "docs/examples/pipeline.yaml"
    result = simulate(*files, {"predictor": "roofline"})
    message = line(result.topology, np.arange(stages), "send", 2 * tokens * hidden).time  # one behind each pass
    messages = (microbatches + stages - 1) * 2 * message
    assert 0 < result.summary["step_time_s"] / (passes + messages + update) - 1 < 0.005
