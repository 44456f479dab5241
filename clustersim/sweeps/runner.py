"""Points on processes, one spawned worker per core, or on a Ray cluster: rows as they finish."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clustersim import errors, plugins
from clustersim.config.overrides import parted
from clustersim.errors import ClustersimError
from clustersim.garbage import aged, uncollected
from clustersim.parallel.options import KEYS
from clustersim.sweeps.evaluate import Files, Row, SweepInputs, evaluate, learn, load
from clustersim.sweeps.space import Point

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

NumberedRows = Iterator[tuple[int, Row]]
Item = TypeVar("Item")
Answer = TypeVar("Answer")
SPLIT = tuple(KEYS[name] for name in ("tp", "ep", "pp", "dp"))
"""Keys that, with the cluster, determine the mesh of a point."""
LEARNED = 1024
"""Number of points whose kernels one process forecasts at the start, in one call for clusters of the same GPUs. Other kernels
are forecast on demand, those of other processes too."""
ELSEWHERE = 64
"""Number of workers for which points are grouped on a Ray cluster, whose size may change."""


class Spent:
    """CPU seconds of forecasting and simulating points, over all processes, without loading."""

    seconds = 0.0
    lost = 0
    """Number of lost workers of a Ray cluster, whose points others simulated."""


class Timed(NamedTuple):
    """A row and its CPU seconds."""

    row: Row
    seconds: float


def rows(
    shared: Files | SweepInputs,
    case: SweepInputs,
    points: Sequence[Point],
    workers: int,
    spent: Spent | None = None,
    crew: Crew | None = None,
) -> NumberedRows:
    """Yield (index, row) of every point as it finishes; with one worker in this process, in order.

    shared: start of each worker, either files that it loads itself or the case. case: the loaded inputs. spent: counter of CPU
    time. crew: function that simulates points elsewhere, instead of processes here. Closing the iterator early ends the workers.
    Raises ClustersimError if a worker dies, after the finished rows.
    """
    spent = spent or Spent()
    if crew and points:
        timed_rows = crew(_begin(shared), points, grouped(list(map(_split, points)), ELSEWHERE), spent)
    elif workers > 1 and len(points) > 1:
        groups = grouped(list(map(_split, points)), workers)
        timed_rows = _spread(_evaluate, points, workers, _begin(shared), groups)
    else:
        begun = time.process_time()
        with uncollected():
            learn(case, points[:LEARNED])
            aged()
        spent.seconds += time.process_time() - begun
        timed_rows = ((index, timed(case, point)) for index, point in enumerate(points))
    with closing(timed_rows):
        for index, (row, seconds) in timed_rows:
            spent.seconds += seconds
            yield index, row


def _begin(shared: Files | SweepInputs | None) -> Begin:
    """Return the start message of a worker process: the sweep's inputs and the permitted plugins."""
    return Begin(shared, plugins.permits(), errors.asked_by_command())


def timed(case: SweepInputs, point: Point) -> Timed:
    """Simulate one point. Return its row and CPU time."""
    begun = time.process_time()
    with uncollected():
        row = evaluate(case, point)
        if row.get("player") != "simpy":  # SimPy leaves reference cycles, the compiled loop hardly any
            aged()
    return Timed(row, time.process_time() - begun)


def _split(point: Point) -> list[str]:
    """Return the values that determine the mesh of a point, and so most of what it shares with others."""
    return [repr(parted(point)[0]), *(str(point.get(key, "")) for key in SPLIT)]


def grouped(keys: Sequence[Any], workers: int) -> list[list[int]]:
    """Return the indices of items in groups of equal keys, each for one worker, and small enough that no worker idles."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    groups = [list(group) for _, group in groupby(order, key=keys.__getitem__)]
    most = -(-len(keys) // (4 * workers))
    return [group[start : start + most] for group in groups for start in range(0, len(group), most)]


def spread(work: Callable[[Item], Row], items: Sequence[Item], workers: int, keys: Sequence[Any]) -> NumberedRows:
    """Yield (index, work(item)) of every item as it finishes, on `workers` new processes; otherwise as `rows`.

    keys: one per item; one process handles items with equal keys, unless others would wait.
    """
    yield from _spread(work, items, workers, _begin(None), grouped(keys, workers))


class Begin(NamedTuple):
    """Start data of a worker: its inputs, if any, and permitted plugins."""

    shared: Files | SweepInputs | None
    permits: tuple[str, ...]
    command: bool
    """Whether a command started the work, so that messages name its options."""


def _spread(
    work: Callable[[Item], Answer], items: Sequence[Item], workers: int, begin: Begin, groups: Sequence[Sequence[int]]
) -> Generator[tuple[int, Answer], None, None]:
    """Yield (index, work(item)); one process handles each of `groups` of indices. Raises ClustersimError if items stay undone."""
    from multiprocessing import active_children

    others = set(active_children())
    _start_cleaner()
    pools = [_pool(begin) for _ in range(min(workers, len(items)))]
    over = False
    try:
        yield from _fed(work, items, pools, deque(map(deque, groups)))
        over = True
    finally:
        if not over:
            for process in set(active_children()) - others:
                process.terminate()
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def _fed(
    work: Callable[[Item], Answer],
    items: Sequence[Item],
    pools: Sequence[ProcessPoolExecutor],
    groups: deque[deque[int]],
) -> Generator[tuple[int, Answer], None, None]:
    """Yield (index, work(item)) as it finishes. Every process of `pools` has one item in work and one queued."""
    from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait

    queues = [deque[int]() for _ in pools]
    running: dict[Future[Answer], tuple[int, int]] = {}
    left, dead = len(items), set[int]()

    def feed(pool: int) -> None:
        """Submit the next item to a pool, from its queue or the next group; nothing if none is left."""
        if not queues[pool] and groups:
            queues[pool] = groups.popleft()
        if queues[pool]:
            index = queues[pool].popleft()
            try:
                running[pools[pool].submit(work, items[index])] = pool, index
            except BrokenExecutor:
                queues[pool].appendleft(index)
                dead.add(pool)

    with _deaf():
        for pool in (*range(len(pools)), *range(len(pools))):
            feed(pool)
    while running:
        for job in wait(running, return_when=FIRST_COMPLETED).done:
            pool, index = running.pop(job)
            try:
                answer = job.result()
            except BrokenExecutor:
                dead.add(pool)
                continue
            feed(pool)
            left -= 1
            yield index, answer
        for pool in dead:  # other processes continue with its items
            if queues[pool]:
                groups.append(queues[pool])
                queues[pool] = deque()
        for pool in {*range(len(pools))} - dead:
            if groups and not any(at == pool for at, _ in running.values()):
                feed(pool)
    if left:
        raise ClustersimError(f"a worker process died, perhaps for lack of memory, and {left} points have no result")


def _start_cleaner() -> None:
    """Start Python's process that removes semaphores of killed processes; it would otherwise print a warning."""
    from multiprocessing.resource_tracker import ensure_running

    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, "ignore:resource_tracker:UserWarning")))
    try:
        ensure_running()
    finally:
        del os.environ["PYTHONWARNINGS"]
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before


def _pool(begin: Begin) -> ProcessPoolExecutor:
    """Return a pool of one spawned worker, because a fork of a process that has used polars can hang."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_prepare, initargs=(begin,))


Crew = Callable[[Begin, Sequence[Point], Sequence[Sequence[int]], Spent], Generator[tuple[int, Timed], None, None]]
"""Function that simulates points elsewhere, each group of indices preferably on one worker. Yields (index, row and CPU seconds)
as they finish."""

_case: list[SweepInputs] = []
"""In a worker: the single case whose points it simulates."""


def _evaluate(point: Point) -> Timed:
    """Simulate a point in a worker."""
    return timed(_case[0], point)


def _prepare(begin: Begin) -> None:
    """Prepare a worker: load its inputs, if any, permit the same plugins, and watch for the end of the parent process."""
    from multiprocessing import parent_process

    def exit_with_parent() -> None:
        """End this process when its parent ends."""
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
    case = prepared(begin)
    _case[:] = [case] if case else []


def prepared(begin: Begin) -> SweepInputs | None:
    """Return the loaded inputs of a worker, if any, and permit the parent's plugins in this process."""
    plugins.inherit(begin.permits)
    errors.inherit(begin.command)
    if not begin.shared:
        return None
    return begin.shared if isinstance(begin.shared, SweepInputs) else load(begin.shared)


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignore Ctrl-C while workers start: they inherit this, so only the first process handles it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
