"""Points on processes: one spawned worker a core, rows as they come in."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from clustersim import plugins
from clustersim.errors import ClustersimError
from clustersim.sweeps.evaluate import Files, Row, SweepInputs, evaluate, load
from clustersim.sweeps.space import Point

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

NumberedRows = Iterator[tuple[int, Row]]
Item = TypeVar("Item")


def rows(shared: Files | SweepInputs, case: SweepInputs, points: Sequence[Point], workers: int) -> NumberedRows:
    """Yield (index, row) of every point as it is done; with one worker in this process, in order.

    shared: what every worker begins with, the inputs that it loads for itself from the bytes that were read, or the case.
    case: what they give, loaded here.
    Closing the iterator early ends the workers. Raises ClustersimError when one of them dies, after the rows that are done.
    """
    if workers == 1 or len(points) <= 1:
        for index, point in enumerate(points):
            yield index, evaluate(case, point)
        return
    yield from spread(_evaluate, points, workers, shared)


def spread(
    work: Callable[[Item], Row], items: Sequence[Item], workers: int, shared: Files | SweepInputs | None = None
) -> NumberedRows:
    """Yield (index, work(item)) of every item as it is done, on `workers` processes of their own; otherwise as `rows`."""
    from multiprocessing import active_children

    others = set(active_children())
    pool = _pool(min(workers, len(items)), shared)
    over = False
    try:
        with _deaf():
            jobs = {pool.submit(work, item): index for index, item in enumerate(items)}
        yield from _done(jobs)
        over = True
    finally:
        if not over:
            for process in set(active_children()) - others:
                process.terminate()
        pool.shutdown(cancel_futures=True)


def _pool(workers: int, shared: Files | SweepInputs | None) -> ProcessPoolExecutor:
    """Return a pool of spawned workers: a fork of a process that has used polars can hang."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    begun = (shared, plugins.permits())
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin, initargs=begun)


_case: list[SweepInputs] = []
"""In a worker: the one case that it simulates points of."""


def _evaluate(point: Point) -> Row:
    """Simulate a point in a worker."""
    return evaluate(_case[0], point)


def _begin(shared: Files | SweepInputs | None, permits: tuple[str, ...]) -> None:
    """Prepare a worker: it loads its inputs, if any, permits the same plugins, and ends when who started it is gone."""
    plugins.inherit(permits)
    from multiprocessing import parent_process

    def wait() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
    _case[:] = [shared if isinstance(shared, SweepInputs) else load(shared)] if shared else []


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


def _done(jobs: dict[Future[Row], int]) -> NumberedRows:
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
