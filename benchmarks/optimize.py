"""The search for the best split of GPT-3 175B on 1,024 H100: candidates, those simulated, seconds of CPU, and the pick.

    python benchmarks/optimize.py [--calculon CHECKOUT]

All legal splits, and those of two schedules with a sharded optimizer. `--calculon` runs the search of a checkout of Calculon
(calculon-ai/calculon, `llm-optimal-execution`; it needs pandas and psutil) over its own space on the same batch: tp inside a
node, no overlap, no offloading. What it picks is simulated here too: a closed form is fast, and blind to what transfers share.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from json import loads
from pathlib import Path
from typing import Any

from clustersim.optimization.objective import objective
from clustersim.optimization.search import free, search
from clustersim.optimization.space import CandidateSpace
from clustersim.sweeps.axes import space
from clustersim.sweeps.evaluate import Files, SweepInputs, evaluate, load
from clustersim.sweeps.run import check
from clustersim.sweeps.space import Point

ROOT = Path(__file__).parent.parent
GPUS, NODE, BATCH = 1024, 8, 1536
SPACES: dict[str, dict[str, str]] = {
    "1f1b and interleaved, zero 1": {"parallelism.schedule": "1f1b,interleaved", "parallelism.zero": "1"},
    "all legal splits": {},
}
RECOMPUTE = {"full": "full", "attn_only": "selective", "none": "none"}
"""Calculon's word → ours."""


def case() -> SweepInputs:
    """Return the model and the cluster, of which nothing is known yet."""
    files = (ROOT / "topologies/superpod_h100_128.yaml", ROOT / "workloads/gpt3.yaml")
    return load(Files(*map(str, files), {}))


def clustersim() -> None:
    """Print a line for each space."""
    for name, given in SPACES.items():
        begun, one = time.process_time(), case()
        fixed = {"training.global_batch": str(BATCH), **given}
        points = CandidateSpace(one, space(dict.fromkeys(free(fixed), "auto"), fixed))
        check(one, [points.whole(split) for split in points.splits])
        found = search(one, points, objective("soonest"), 1)
        spent, best = time.process_time() - begun, found.best[0]
        print(f"clustersim, {name}: {spent:.1f} s of CPU, {found.points:,} candidates, {found.simulated} simulated")
        print(f"  picks {said(best.point)}: {best.row['step_time_s']:.2f} s")


def said(point: Point) -> str:
    """Return a split in words."""
    return ", ".join(
        f"{key.rpartition('.')[2]} {value}" for key, value in point.items() if key != "training.global_batch"
    )


def calculon(folder: Path) -> None:
    """Print what Calculon's search takes, what it picks, and how long that takes here."""
    sys.path.insert(0, str(folder))
    llm = import_module("calculon.llm")
    app = llm.Llm.Application(read(folder / "models/gpt3-175B.json"))
    described = read(folder / "systems/h100_80g_nvl8.json")
    described["mem2"]["GiB"] = 0  # what would be offloaded to
    system = import_module("calculon").System(described)
    one, begun, tried = llm.OptimalExecution, time.process_time(), 0
    best: list[tuple[float, dict[str, Any], dict[str, Any]]] = []
    for tp in (tp for tp in llm.Llm.get_all_tensor_parallelisms(GPUS, app.hidden, app.attn_heads) if tp <= NODE):
        for pp in llm.Llm.get_all_pipeline_parallelisms(GPUS, tp, app.num_blocks):
            dp = llm.Llm.get_data_parallelism(GPUS, tp, pp)
            size = one.get_batch_size(dp, BATCH)
            for chunks in llm.Llm.get_valid_pipeline_interleavings(app.num_blocks, pp) if size == BATCH else ():
                for recompute in RECOMPUTE:
                    for sharded in (True, False) if dp > 1 else (False,):
                        split = (False, 1, False, GPUS, BATCH, "float16", app, system, tp, pp, dp, chunks, BATCH)
                        how = (recompute, sharded, "ar", [True], False, False, False)
                        found, count, *_ = one.search(*split, *how)
                        best, tried = one.update_list(best, found, 1), tried + count
    spent, (_, pick, stats) = time.process_time() - begun, best[0]
    print(f"Calculon, its own search: {spent:.1f} s of CPU, {tried:,} candidates")
    point = picked(pick)
    row = evaluate(case(), point)
    simulated = f"{row['step_time_s']:.2f} s" if row["status"] == "ok" else row["reason"]
    print(f"  picks {said(point)}: {BATCH / stats['sample_rate']:.2f} s by itself, simulated here: {simulated}")


def read(path: Path) -> Any:
    """Return a file of Calculon's."""
    return loads(path.read_text(encoding="utf-8"))


def picked(pick: dict[str, Any]) -> Point:
    """Return what Calculon picks as a point of a sweep."""
    chunks = pick["pipeline_interleaving"]
    return {
        "parallelism.tp": pick["tensor_par"],
        "parallelism.pp": pick["pipeline_par"],
        "parallelism.vpp": chunks,
        "parallelism.schedule": "interleaved" if chunks > 1 else "1f1b",
        "parallelism.zero": int(pick["optimizer_sharding"]),
        "training.micro_batch": pick["microbatch_size"],
        "training.recompute": RECOMPUTE[pick["activation_recompute"]],
        "training.global_batch": BATCH,
    }


def main() -> None:
    """Print the searches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calculon", type=Path, help="a checkout of calculon-ai/calculon")
    asked = parser.parse_args()
    clustersim()
    if asked.calculon:
        calculon(asked.calculon)


if __name__ == "__main__":
    main()
