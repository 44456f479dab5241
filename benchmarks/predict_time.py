"""How long the predictor takes on one core: the kernels of a job, and of each class as many as a minute is to hold."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np

from clustersim.engine.script import kernels, scripts
from clustersim.hardware import gpus
from clustersim.model.kernel import Kernel, attention, gemm, vector
from clustersim.parallel.load import load
from clustersim.parallel.stages import stages
from clustersim.predictors.classes import class_of
from clustersim.predictors.load import get
from clustersim.predictors.weights_file import FOLDER
from clustersim.schedules.check import load as load_schedule

ROOT = Path(__file__).parent.parent
JOB_BAR, MILLION_BAR = 0.02, 60.0
COLD = (
    "import time; begun = time.perf_counter(); from clustersim.predictors.load import get; import numpy; "
    "imported = time.perf_counter(); get('neusight'); print(imported - begun, time.perf_counter() - imported)"
)


def best(action: Callable[[], object], repeats: int) -> float:
    """Return the least seconds that `action` took in some tries."""
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        action()
        found.append(time.perf_counter() - begun)
    return min(found)


def of_job(path: Path) -> list[Kernel]:
    """Return the distinct kernels of a workload as `clustersim run` collects them."""
    job = load(path).place(1024, 8)
    split = job.parallelism
    schedule = load_schedule(split.schedule, split.pp, job.microbatches, split.vpp)
    return kernels(scripts(job, stages(job), schedule))


def random_kernels(count: int) -> list[Kernel]:
    """Return kernels of all kinds and data types with sides drawn evenly in their logarithms."""
    rng = np.random.default_rng(0)
    sides = np.exp(rng.uniform(np.log(64), np.log(16384), (count, 3))).astype(int).tolist()
    turn = rng.integers(8, size=count).tolist()
    types = np.array(["fp32", "bf16", "fp16", "fp8"])[rng.integers(4, size=count)].tolist()
    return [_kernel(*row) for row in zip(turn, types, sides, strict=True)]


def _kernel(turn: int, dtype: str, sides: list[int]) -> Kernel:
    m, n, k = sides
    if turn < 3:
        return gemm("linear", "forward", dtype, 1, m, n, k)
    if turn < 5:
        return gemm(("bmm", "grouped_gemm")[turn - 3], "forward", dtype, 8, m, n, k)
    if turn == 5:
        return attention("forward", dtype, 4, 16, 8, m, m, 128, True)
    return vector("layernorm" if turn == 6 else "elementwise", "add", dtype, m, n, 1.0, 12.0)


def main() -> None:
    """Print the figures against their bars."""
    predictor, gpu = get("neusight"), gpus.load("h100")
    cold = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    imported, loaded = map(float, cold.split())
    print(f"cold: imports {1e3 * imported:.0f} ms, weights {1e3 * loaded:.0f} ms")
    sizes = {path.name: path.stat().st_size for path in sorted(FOLDER.glob("*.safetensors"))}
    print("weights:", ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items()))
    distinct = of_job(ROOT / "workloads" / "gpt3.yaml")
    took = best(lambda: predictor.predict(distinct, gpu), 20)
    print(f"gpt3.yaml, {len(distinct)} distinct kernels: {1e3 * took:.2f} ms (bar {1e3 * JOB_BAR:.0f} ms)")
    many = random_kernels(1_000_000)
    took = best(lambda: predictor.predict(many, gpu), 1)
    print(f"{len(many):,} random kernels: {took:.1f} s (bar {MILLION_BAR:.0f} s)")
    parts: dict[str, list[Kernel]] = {}
    for kernel in many:
        parts.setdefault(class_of(kernel.kind, kernel.dtype), []).append(kernel)
    for name, part in sorted(parts.items()):
        took = best(lambda part=part: predictor.predict(part, gpu), 1)
        print(f"  {name:<24} {len(part):>8,}  {1e6 * took / len(part):6.1f} us a kernel")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
