"""Points on processes: one spawned worker a core, rows as they come in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clustersim.sweep.evaluate import Row, evaluate
from clustersim.sweep.space import Point


def rows(topology: str, workload: str, points: Sequence[Point], workers: int) -> Iterator[tuple[int, Row]]:
    """Yield (index, row) of every point as it is done; with one worker in this process, in order.

    Workers are spawned, not forked: a fork of a process that has used polars can hang.
    """
    if workers == 1 or len(points) == 1:
        for index, point in enumerate(points):
            yield index, evaluate(topology, workload, point)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    with ProcessPoolExecutor(min(workers, len(points)), mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(evaluate, topology, workload, point): index for index, point in enumerate(points)}
        try:
            for job in as_completed(jobs):
                yield jobs[job], job.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
