"""The drawing of a timeline: well-formed, whole, and the same every time."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from clustersim.figures.canvas import svg
from clustersim.figures.timeline import ROWS, picture
from clustersim.simulation import simulate

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(result, title=""):
    return ElementTree.fromstring(svg(picture(result.record, result.plan, title)))


@pytest.fixture(scope="module")
def pipeline():
    files = ROOT / "topologies/nvlink_h100_4.yaml", ROOT / "docs/examples/pipeline.yaml"
    return simulate(*files, {"predictor": "roofline"})


def titles(tree):
    return [title.text for title in tree.iter(f"{SVG}title")]


def test_every_pass_of_every_rank_is_there(pipeline):
    found = [title.partition(":")[0] for title in titles(drawn(pipeline))]
    for kind in ("forward", "backward"):
        assert sorted(t for t in found if t.startswith(kind)) == sorted(
            f"{kind} {i}" for i in range(8) for _ in range(4)
        )
    assert sum(t.startswith("pipeline") for t in found) == 2 * 3 * 8


def test_bars_stay_inside_and_do_not_overlap(pipeline):
    bars = [
        (float(b.get("y")), float(b.get("x")), float(b.get("width")))
        for b in drawn(pipeline).iter(f"{SVG}rect")
        if len(b)
    ]
    assert all(x >= 130 and x + width <= 984.1 for _, x, width in bars)
    for one, two in zip(sorted(bars), sorted(bars)[1:], strict=False):
        assert one[0] < two[0] or one[1] + one[2] <= two[1] + 0.25


def test_a_pass_that_is_cut_by_buckets_is_one_bar():
    files = ROOT / "topologies/hgx_h100_8.yaml", ROOT / "workloads/gpt3_xl.yaml"
    changes = {"predictor": "roofline", "parallelism.overlap.grad_reduce": True, "training.global_batch": 64}
    found = titles(drawn(simulate(*files, changes)))
    assert [t.partition(":")[0] for t in found if t.startswith("backward")] == ["backward 0"]
    assert any(t.startswith("data parallel") for t in found)


@pytest.mark.parametrize(
    ("keys", "carried"),
    [
        ({"parallelism.zero": 3, "training.framework": "torchtitan"}, {"dp": "data parallel"}),
        (
            {"parallelism.cp": 2, "training.framework": "megatron-2020"},
            {"cp": "context parallel", "dp": "data parallel"},
        ),
    ],
)
def test_lanes_say_what_links_carry(keys, carried):
    """One stage sends no messages, and what the host launches crosses no link."""
    files = ROOT / "topologies/leaf_spine_32.yaml", ROOT / "workloads/gpt2_large.yaml"
    tree = drawn(simulate(*files, {"predictor": "roofline", "parallelism.tp": 1, "parallelism.pp": 1, **keys}))
    kinds = {title.partition(":")[0].rstrip("0123456789 ") for title in titles(tree)}
    passes = {"forward", "backward", "optimizer"}
    assert kinds == passes | set(carried.values())
    texts = [text.text for text in tree.iter(f"{SVG}text")]
    assert passes | {f"{short}: {kind}" for short, kind in carried.items()} <= set(texts)
    assert {texts.count(short) for short in carried} == {sum(text.startswith("rank ") for text in texts)}


def test_kinds_are_told_apart_without_colour():
    """A kind of pass by its height and place in the row, a kind of communication by its lane."""
    files = ROOT / "topologies/hgx_h100_8.yaml", ROOT / "workloads/gpt3_xl.yaml"
    split = {"parallelism.tp": 2, "parallelism.pp": 2, "parallelism.schedule": "zero_bubble"}
    tree = drawn(simulate(*files, {"predictor": "roofline", "training.global_batch": 16, **split}))
    first = next(float(b.get("y")) for b in tree.iter(f"{SVG}rect") if len(b))
    found = {}
    for box in tree.iter(f"{SVG}rect"):
        if len(box) and float(box.get("y")) < first + 40:
            kind = box[0].text.partition(":")[0].rstrip("0123456789 ")
            found.setdefault(kind, set()).add((box.get("y"), box.get("height")))
    assert found.keys() >= {"forward", "backward", "weight gradients", "tensor parallel", "pipeline", "data parallel"}
    assert all(len(places) == 1 for places in found.values())
    assert len(set.union(*found.values())) == len(found)


def test_a_title_is_escaped_and_what_is_left_out_is_said():
    files = ROOT / "topologies/superpod_h100_128.yaml", ROOT / "workloads/gpt3_xl.yaml"
    result = simulate(*files, {"predictor": "roofline", "training.global_batch": 1024}, fold=False)
    tree = drawn(result, "a < b & c")
    texts = [text.text for text in tree.iter(f"{SVG}text")]
    assert texts[0].startswith("a < b & c: ")
    left_out = len(result.plan.first) - ROWS
    assert left_out > 0
    assert any(f"{left_out:,} more classes" in text for text in texts)
