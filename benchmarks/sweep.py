"""Points of a sweep for each second of CPU: GPT-3 175B over splits, schedules and microbatches, the first time and again.

The second pass asks for other clocks, so that no answer can be looked up. `--calculon FOLDER` puts a checkout of Calculon
(calculon-ai/calculon, a closed form) beside it on the same splits. Workers play no part: CPU is what their sum would be. Bytecode
is kept, as where the package is installed: what only points need is imported in the first pass.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from clustersim import preparation
from clustersim.cache import Cache
from clustersim.sweeps import runner
from clustersim.sweeps.evaluate import Files, SweepInputs, load
from clustersim.sweeps.space import points

ROOT = Path(__file__).parent.parent
AXES: dict[str, Sequence[object]] = {"tp": [2, 4, 8], "pp": [4, 8, 16, 32], "micro_batch": [1, 2, 4]}
SCHEDULES = (("1f1b", [1]), ("gpipe", [1]), ("interleaved", [2, 3, 4]), ("zero_bubble", [1, 2, 4]))
MICROBATCHES = (8, 96, 384, 1536)
CLOCKS = (0.8, 0.77, 0.75)
"""Of the first pass and of those after it."""


def space(axes: dict[str, Sequence[object]], batch: int, clocks: float) -> list[dict[str, object]]:
    """Return the points of some axes; batch: sequences in a step."""
    fixed = {"training.global_batch": batch, "training.recompute": "full", "clocks": clocks}
    return [{**point, **fixed} for point in points(axes)]


def passes(name: str, case: SweepInputs, spaces: Iterable[list[dict[str, object]]]) -> None:
    """Print one line for each pass over a space with one simulator."""
    for number, asked in enumerate(spaces):
        spent = runner.Spent()
        rows = [row for _, row in runner.rows(case, case, asked, 1, spent)]
        ends = Counter(row["status"] for row in rows)
        line(f"{name}, {'warm' if number else 'first'}", len(rows), ends["ok"], spent.seconds)


def line(name: str, asked: int, done: int, seconds: float) -> None:
    """Print a pass."""
    each = f"{1e3 * seconds / asked:8.2f} ms a point  {asked / seconds:7.1f} points/s"
    print(f"{name:<36} {asked:4} asked {done:4} simulated  {seconds:7.3f} s  {each}", flush=True)


def clustersim(topology: str, gpus: int, engine: str) -> None:
    """Print what the splits, all schedules and more microbatches cost on one cluster."""

    def case() -> SweepInputs:
        preparation.FORECASTS.cache = Cache(16, 1)  # a first pass knows no kernel
        return load(Files(str(ROOT / "topologies" / topology), str(ROOT / "workloads" / "gpt3.yaml"), {}, engine))

    batch = gpus * 3 // 2
    passes(f"{gpus:,} GPUs, 1f1b", case(), (space(AXES, batch, share) for share in CLOCKS))
    if gpus > 1024:
        return
    axes = [{**AXES, "schedule": [name], "vpp": chunks} for name, chunks in SCHEDULES]
    every = ([point for one in axes for point in space(one, batch, share)] for share in CLOCKS)
    passes(f"{gpus:,} GPUs, all schedules", case(), every)
    for count in MICROBATCHES:
        split: dict[str, Sequence[object]] = {"tp": [8], "pp": [8], "dp": [16], "micro_batch": [1]}
        passes(f"{count} microbatches", case(), (space(split, 16 * count, share) for share in CLOCKS))


def calculon(folder: Path, gpus: int) -> None:
    """Print what the same splits cost a checkout of Calculon."""
    sys.path.insert(0, str(folder))
    system_of, llm = import_module("calculon").System, import_module("calculon.llm").Llm

    def read(name: str) -> Any:
        return json.loads((folder / name).read_text(encoding="utf-8"))

    base, logger = read("examples/3072_t4_p64_d12_mbs4_full.json"), logging.getLogger("calculon")
    base |= {"num_procs": gpus, "batch_size": gpus * 3 // 2, "optimizer_sharding": False}
    app, system = llm.Application(read("models/gpt3-175B.json")), system_of(read("systems/h100_80g_nvl8.json"))
    splits = list(points(AXES))
    for number in range(2):
        fit, begun = 0, time.process_time()
        for point in splits:
            tp, pp, size = point["parallelism.tp"], point["parallelism.pp"], point["training.micro_batch"]
            split = {"tensor_par": tp, "pipeline_par": pp, "data_par": gpus // (tp * pp), "microbatch_size": size}
            try:
                model = llm(app, logger)
                model.compile(
                    system, llm.Execution.from_json({**base, **split, "num_procs": gpus, "batch_size": gpus * 3 // 2})
                )
                model.run(system)
                fit += 1
            except llm.Error:
                continue
        line(f"Calculon, {gpus:,} GPUs, pass {number + 1}", len(splits), fit, time.process_time() - begun)


def main() -> None:
    """Print one line a pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calculon", type=Path, help="a checkout of calculon-ai/calculon")
    parser.add_argument("--engine", default="auto", choices=("auto", "simpy"))
    parser.add_argument("--small", action="store_true", help="1,024 GPUs alone")
    asked = parser.parse_args()
    sys.dont_write_bytecode = False
    clustersim("superpod_h100_128.yaml", 1024, asked.engine)
    if not asked.small:
        clustersim("fattree_3840.yaml", 30_720, asked.engine)
    if asked.calculon:
        calculon(asked.calculon, 1024)


if __name__ == "__main__":
    main()
