"""Points on processes: one spawned worker a core, rows as they come in."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clustersim.errors import ClustersimError
from clustersim.sweep.evaluate import Row, evaluate
from clustersim.sweep.space import Point
from clustersim.topology.model import Topology

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

Rows = Iterator[tuple[int, Row]]


def rows(topology: str, workload: str, points: Sequence[Point], workers: int) -> Rows:
    """Yield (index, row) of every point as it is done; with one worker in this process, in order.

    Closing the iterator early ends the workers. Raises ClustersimError when one of them dies, after the rows that are done.
    """
    if workers == 1 or len(points) == 1:
        from clustersim.topology.build import load

        cluster = load(topology)
        for index, point in enumerate(points):
            yield index, evaluate(cluster, workload, point)
        return
    from multiprocessing import active_children

    others = set(active_children())
    pool = _pool(min(workers, len(points)))
    over = False
    try:
        with _deaf():
            jobs = {pool.submit(_evaluate, topology, workload, point): index for index, point in enumerate(points)}
        yield from _done(jobs)
        over = True
    finally:
        if not over:
            for process in set(active_children()) - others:
                process.terminate()
        pool.shutdown(cancel_futures=True)


def _pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of spawned workers: a fork of a process that has used polars can hang."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_follow_parent)


_own: dict[str, Topology] = {}
"""The cluster of a worker, which ends with its sweep; empty in every other process."""


def _evaluate(topology: str, workload: str, point: Point) -> Row:
    """Simulate one point in a worker, on the cluster that it built for its first one."""
    from clustersim.topology.build import load

    if topology not in _own:
        _own[topology] = load(topology)
    return evaluate(_own[topology], workload, point)


def _follow_parent() -> None:
    """End this worker when the process that started it is gone, however it went."""
    from multiprocessing import parent_process

    def wait() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignore Ctrl-C while workers start: they inherit that, and the first process alone answers it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _done(jobs: dict[Future[Row], int]) -> Rows:
    from concurrent.futures import BrokenExecutor, as_completed

    lost = 0
    for job in as_completed(jobs):
        try:
            row = job.result()
        except BrokenExecutor:
            lost += 1
            continue
        yield jobs[job], row
    if lost:
        raise ClustersimError(f"a worker process died, perhaps for lack of memory, and {lost} points have no result")
