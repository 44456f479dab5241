"""The drawing of a sweep: a bar for each point with a result, its parts as long as they last, and those that do not fit below."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from clustersim.figures.bars import SWEEP_LEFT, SWEEP_RIGHT, WIDTH, splits
from clustersim.figures.canvas import svg

SVG = "{http://www.w3.org/2000/svg}"


def row(degree, seconds, **parts):
    times = {f"{kind}_s": value for kind, value in parts.items()}
    speed = {"status": "ok", "reason": "", "step_time_s": seconds, "tokens_per_s": 1000 / seconds}
    return {"tp": degree, "pp": 1, "dp": 2, **speed, **times}


ROWS = [
    row(1, 2.0, compute=1.0, bubble=1.0),
    {"tp": 4, "pp": 1, "status": "does not fit", "reason": "needs more"},
    {"tp": 3, "status": "illegal", "reason": "3 does not divide"},
    row(2, 1.0, compute=0.75, tp=0.25),
]


def test_bars_are_as_long_as_steps_and_the_fastest_is_first():
    tree = ElementTree.fromstring(svg(splits(ROWS, "a < b", "small")))
    bars = [(float(one.get("y")), float(one.get("width"))) for one in tree.iter(f"{SVG}rect") if list(one)]
    lengths = {y: sum(width for at, width in bars if at == y) for y, _ in bars}
    assert [lengths[y] for y in sorted(lengths)] == pytest.approx(
        [(WIDTH - SWEEP_LEFT - SWEEP_RIGHT) / 2, WIDTH - SWEEP_LEFT - SWEEP_RIGHT]
    )
    texts = [one.text for one in tree.iter(f"{SVG}text")]
    assert texts.index("tp 2 · pp 1 · dp 2") < texts.index("tp 1 · pp 1 · dp 2") < texts.index("tp 4 · pp 1")
    assert {"a < b", "small", "1.000 s", "1,000"} <= set(texts)
    assert {"does not fit into memory", "tp: tensor-parallel communication"} <= set(texts)
    assert texts.count("tp 25%") == texts.count("bubble 50%") == 1  # in the parts that have room
    assert "pp: pipeline communication" not in texts
    assert not any("tp 3" in text for text in texts)


def test_the_same_rows_give_the_same_text_and_none_give_an_empty_drawing():
    assert svg(splits(ROWS)) == svg(splits(list(ROWS)))
    assert ElementTree.fromstring(svg(splits([]))) is not None
