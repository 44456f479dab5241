"""The pictures of docs/gallery.md and docs/trust.md: each drawn by what a command of the page draws, from shipped files."""

import csv
from collections.abc import Callable, Mapping

from documents import ROOT
from validation_page import picture

from clustersim.figures import canvas
from clustersim.figures.bars import splits
from clustersim.figures.timeline import picture as timeline
from clustersim.hardware.gpus import load as load_gpu
from clustersim.simulation import simulate
from clustersim.sweeps.evaluate import Files, Row, evaluate, load
from clustersim.validate.runs import PUBLISHED

IMAGES = ROOT / "docs/images"
SLOW = {"faults": [{"gpu": 2, "slowdown": 1.5}]}


def rows(cluster: str, workload: str, points: list[Mapping[str, object]]) -> list[Row]:
    """Return the rows of a sweep over some points; the files are named from the top of the checkout."""
    case = load(Files(str(ROOT / cluster), str(ROOT / workload), {}))
    return [evaluate(case, point) for point in points]


def scaling() -> str:
    """Return what more nodes do to a step of the same batch."""
    found = rows(
        "topologies/superpod_h100_128.yaml",
        "workloads/llama3_70b.yaml",
        [{"cluster.nodes": n} for n in (32, 64, 128, 256)],
    )
    words = (
        "Llama 3 70B, one batch of 8M tokens: what do more nodes bring?",
        "where a step goes, on the mean of all GPUs; tp 8 · pp 4",
        lambda row: f"{row['gpus']:,} GPUs",
    )
    return canvas.svg(splits(found, *words))


def oversubscription() -> str:
    """Return what thinner leaves do to a step whose gradients cross them."""
    points = [{"fabric.tiers.0.oversubscription": n} for n in (1, 2, 4, 8, 16)]
    found = rows("docs/examples/oversubscribed.yaml", "docs/examples/gradients.yaml", points)
    ways = iter(points)
    for row in found:
        row["ratio"] = next(ways)["fabric.tiers.0.oversubscription"]
    words = (
        "GPT-3 XL, all data parallel, on 128 H100: how thin may the leaves be?",
        "ports down over ports up of each leaf; 5.3 GB of gradients cross them at the end of each step",
        lambda row: f"{row['ratio']} : 1",
    )
    return canvas.svg(splits(found, *words))


def gpus() -> str:
    """Return the same job on nodes of several GPUs."""
    names = ("a100", "h100", "h200", "b200", "b300")
    found = rows("topologies/hgx_h100_8.yaml", "workloads/llama3_8b.yaml", [{"cluster.gpu": name} for name in names])
    words = (
        "Llama 3 8B on one node of 8: which GPU?",
        "where a step goes; a GPU of your own is one more file of datasheet figures",
        lambda row: str(row["gpu"]),
    )
    return canvas.svg(splits(found, *words))


def slow_gpu() -> str:
    """Return the timeline of four stages of which one computes on a slow GPU."""
    files = ROOT / "topologies/nvlink_h100_4.yaml", ROOT / "docs/examples/pipeline.yaml"
    result = simulate(*files, {"predictor": "roofline", **SLOW})
    title = "GPU 2 takes 1.5 times as long, and all others wait for it"
    return canvas.svg(timeline(result.record, result.plan, title))


def trust() -> str:
    """Return forecasts against measured steps, of the table that is shipped."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    return picture({"runs": [outcome(row) for row in table]})


def outcome(row: Mapping[str, str]) -> dict[str, object]:
    """Return a row of the shipped table as `validate` returns what it found."""
    measured, predicted = float(row["sec_per_iter"]), float(row["predicted_s"])
    return {
        **{key: row[key] for key in ("id", "gpu", "model", "tp", "pp", "dp", "num_gpus")},
        "architecture": load_gpu(row["gpu"]).architecture,
        "measured_s": measured,
        "predicted_s": predicted,
        "error": predicted / measured - 1,
    }


PICTURES: Mapping[str, Callable[[], str]] = {
    "scaling": scaling,
    "oversubscription": oversubscription,
    "gpus": gpus,
    "slow_gpu": slow_gpu,
    "trust": trust,
}
"""Name below docs/images → its drawing."""
