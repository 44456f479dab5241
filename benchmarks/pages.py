"""Speed of the pages in a browser: bytes, CPU to open, and CPU of each action of the explorer of 10,000 points.

CPU is that of the page's process, the least of three: other programs do not count.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from clustersim.config.results import Manifest
from clustersim.pages.run import run_page
from clustersim.pages.shell import page
from clustersim.pages.sweep import SCRIPTS, STYLES, sweep_data
from clustersim.simulation import simulate

POINTS, REPEATS = 10_000, 3
MANIFEST = {
    "clustersim": "0",
    "inputs": {
        "topology": {"path": "topologies/superpod_h100_128.yaml", "sha256": "0"},
        "workload": {"path": "workloads/llama3_70b.yaml", "sha256": "0"},
    },
}


def many_points(count: int = POINTS) -> str:
    """Return the page of a sweep of so many made-up points over six axes: half with a result, a quarter each of the others."""
    draw = random.Random(1)
    axes = {"tp": (1, 2, 4, 8), "pp": (1, 2, 4, 8, 16), "vpp": (1, 2, 4), "cp": (1, 2), "ep": (1, 2, 4, 8)}
    found = []
    for i in range(count):
        values = {f"parallelism.{name}": some[i // step % len(some)] for step, (name, some) in _steps(axes)}
        point = values | {"training.micro_batch": 1 + i // 480}
        row: dict[str, Any] = {key.partition(".")[2]: value for key, value in point.items()}
        status = ("ok", "ok", "does not fit", "illegal")[draw.randrange(4)]
        found.append((point, row | {"status": status} | (_figures(draw) if status == "ok" else _reason(draw, status))))
    return page("Sweep: many", SCRIPTS, STYLES, sweep_data(found, Manifest.model_validate(MANIFEST)))


def _steps(axes: dict[str, tuple[int, ...]]) -> list[tuple[int, tuple[str, tuple[int, ...]]]]:
    steps, step = [], 1
    for name, some in axes.items():
        steps.append((step, (name, some)))
        step *= len(some)
    return steps


def _reason(draw: random.Random, status: str) -> dict[str, Any]:
    if status == "illegal":
        return {"reason": "workloads/llama3_70b.yaml: parallelism.ep: 8 does not divide dp 4; use 1, 2 or 4"}
    needs = draw.uniform(81, 400)
    said = f"parallelism: pipeline rank 0 needs {needs:.1f} GiB and h100-sxm has 79.6 GiB (activations {needs / 2:.1f} GiB, "
    return {
        "reason": said
        + f"gradients {needs / 4:.1f} GiB, parameters {needs / 8:.1f} GiB); raise tp or pp, lower micro_batch"
    }


def _figures(draw: random.Random) -> dict[str, Any]:
    step, shares = draw.lognormvariate(1.5, 0.5), [draw.random() for _ in range(8)]
    parts = dict(zip(("compute", "tp", "pp", "dp", "ep", "cp", "optimizer", "bubble"), shares, strict=True))
    speed = {
        "tokens_per_s": 4e6 / step,
        "tokens_per_s_per_gpu": 4e3 / step,
        "mfu": 0.9 / step,
        "model_tflops_per_gpu": 800 / step,
    }
    speed |= {f"{name}_s": step * share / sum(shares) for name, share in parts.items()}
    costs = {"usd_per_1t_tokens": 1e5 * step, "kwh_per_1t_tokens": 3e4 * step, "co2_kg_per_1t_tokens": 1e4 * step}
    return {
        "reason": "",
        "step_time_s": step,
        "peak_memory_bytes": draw.uniform(2e10, 8e10),
        "gpus": 1024,
        **speed,
        **costs,
    }


def _brush(opened: Any) -> None:
    opened.locator("#parallel-canvas").scroll_into_view_if_needed()
    box = opened.locator("#parallel-canvas").bounding_box()
    opened.mouse.move(box["x"] + 60, box["y"] + 60)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 60, box["y"] + 200)
    opened.mouse.up()


ACTIONS: dict[str, Callable[[Any], object]] = {
    "filter by words": lambda p: p.fill("#filter", "tp>=2 mfu>0.1"),
    "filter off": lambda p: p.fill("#filter", ""),
    "other figure across": lambda p: p.select_option("#scatter-x", "step_time_s"),
    "other axis of the heat map": lambda p: p.select_option("#heat-x", "ep"),
    "hide illegal points": lambda p: p.uncheck("text=illegal"),
    "show illegal points": lambda p: p.check("text=illegal"),
    "hover": lambda p: p.hover("#scatter", position={"x": 300, "y": 200}),
    "choose a point": lambda p: p.click("#best tbody tr:nth-child(3)"),
    "brush an axis": _brush,
    "theme": lambda p: p.click("#theme"),
}


def cpu(session: Any) -> float:
    """Return the seconds of CPU that the page's process has had."""
    return float(
        {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}["ProcessTime"]
    )


def measured(browser: Any, path: Path, actions: dict[str, Callable[[Any], object]]) -> dict[str, float]:
    """Return the CPU seconds of opening a page and of each action on it."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    opened = context.new_page()
    session = context.new_cdp_session(opened)
    session.send("Performance.enable")
    opened.goto(path.as_uri())
    opened.wait_for_selector("html[data-ready]", state="attached")
    found = {"open": cpu(session)}
    for name, action in actions.items():
        opened.wait_for_timeout(150)
        begun = cpu(session)
        action(opened)
        opened.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        found[name] = cpu(session) - begun
    context.close()
    return found


def main() -> None:
    """Print a table."""
    large = simulate("topologies/fattree_3840.yaml", "workloads/gpt3.yaml")
    texts = {
        "report of 30,720 GPUs": (run_page(large, "clustersim run fattree_3840 gpt3", Manifest(clustersim="0")), {}),
        f"explorer of {POINTS:,} points": (many_points(), ACTIONS),
    }
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (text, actions) in texts.items():
            path = Path(folder) / "page.html"
            path.write_text(text, encoding="utf-8")
            runs = [measured(browser, path, actions) for _ in range(REPEATS)]
            sys.stdout.write(f"{name}: {path.stat().st_size / 1e6:.2f} MB\n")
            for action in runs[0]:
                sys.stdout.write(f"  {action:<28} {1e3 * min(run[action] for run in runs):7.1f} ms CPU\n")
        browser.close()


if __name__ == "__main__":
    main()
