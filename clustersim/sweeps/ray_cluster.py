"""Points on a Ray cluster: a worker per CPU of its nodes, rows as they finish, lost workers replaced.

A worker is a Ray actor that loads the sweep once, from bytes read here, and then gets a few points at a time. Points of a lost
worker go to others. Nodes that join later get workers too.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clustersim import extras
from clustersim.errors import ClustersimError, InputError
from clustersim.sweeps.evaluate import SweepInputs
from clustersim.sweeps.runner import Begin, Spent, Timed, prepared, timed
from clustersim.sweeps.space import Point
from clustersim.version import __version__

CHUNK = 8
"""Points per call, to spread the overhead of a call."""
AHEAD = 2
"""Largest number of unfinished calls per worker, so that it never waits for the next one."""
ATTEMPTS = 3
"""Number of workers that may be lost with the same points before these are given up."""
CONNECT = 5.0
"""Seconds within which an address must answer."""
LOOK = 1.0
"""Seconds between counts of the cluster's CPUs."""


class PointWorker:
    """Actor on a CPU of the cluster."""

    def __init__(self, begin: Begin) -> None:
        self.case: SweepInputs | None = prepared(begin)

    def version(self) -> str:
        """Return the versions of Python and clustersim of the worker."""
        return __version__

    def evaluate(self, points: Sequence[Point]) -> list[Timed]:
        """Return the rows of points, with the CPU time of each."""
        assert self.case is not None  # workers of a sweep always receive its inputs
        return [timed(self.case, point) for point in points]


def rows(
    address: str, begin: Begin, points: Sequence[Point], groups: Sequence[Sequence[int]], spent: Spent
) -> Generator[tuple[int, Timed], None, None]:
    """Yield (index, row) of every point as it finishes. One worker should simulate each of `groups` of indices.

    address: `auto`, HOST:PORT or ray://HOST:PORT. Raises InputError if no cluster answers there, and ClustersimError if points
    are lost with every worker that tries them.
    """
    with redirect_stdout(_Nowhere()), _connected(address) as ray:  # Ray prints messages about lost nodes
        work = _Work(ray, begin, points, deque(map(deque, groups)), spent)
        try:
            yield from work.rows()
        finally:
            work.end()


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Yield the Ray module, connected to a cluster. Raises InputError if the cluster cannot be reached."""
    import ray

    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except KeyboardInterrupt:
        raise
    except (Exception, SystemExit) as error:  # Ray ends the process if a cluster answers but refuses the connection
        raise _unreachable(address, str(error).partition("\n")[0]) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check(address: str) -> None:
    """Raise InputError if Ray is not installed, or nothing listens at an address: Ray itself would try for minutes."""
    extras.need("ray", "--ray")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise InputError(f"--ray {address}: not an address; write auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host, int(port)), CONNECT).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error)) from None


def _unreachable(address: str, why: str) -> InputError:
    what = f"--ray {address}: no Ray cluster answers ({why.rstrip('.') or 'no reason given'})"
    return InputError(f"{what}; start one with `ray start --head`, and give its address or auto")


class _Call(NamedTuple):
    """Points given to a worker in one call."""

    worker: _Worker
    places: tuple[int, ...]


@dataclass(eq=False, slots=True)
class _Worker:
    """State of a remote worker."""

    actor: Any
    own: deque[int] = field(default_factory=deque)
    """Remaining indices of the group that it works on."""
    calls: int = 0
    """Number of unfinished calls."""


class _Work:
    """The points of a sweep and the workers that simulate them."""

    def __init__(
        self, ray: Any, begin: Begin, points: Sequence[Point], groups: deque[deque[int]], spent: Spent
    ) -> None:
        self.ray, self.points, self.groups, self.spent = ray, points, groups, spent
        self.begin = ray.put(begin)
        self.kind = ray.remote(num_cpus=1, max_restarts=0)(PointWorker)
        self.starting: dict[Any, _Worker] = {}
        self.workers: set[_Worker] = set()
        self.calls: dict[Any, _Call] = {}
        self.failed = Counter[int]()

    def rows(self) -> Iterator[tuple[int, Timed]]:
        """Yield the rows as they finish."""
        left = len(self.points)
        while left:
            self._hire()
            done, _ = self.ray.wait([*self.starting, *self.calls], num_returns=1, timeout=LOOK)
            for ref in done:
                for answer in self._answered(ref):
                    left -= 1
                    yield answer

    def end(self) -> None:
        """End all workers."""
        for worker in (*self.workers, *self.starting.values()):
            self.ray.kill(worker.actor)

    def _hire(self) -> None:
        """Start a worker for every CPU of the cluster, up to the remaining work; workers without a CPU wait."""
        cpus = int(self.ray.cluster_resources().get("CPU", 0))
        have = len(self.workers) + len(self.starting)
        for _ in range(min(max(cpus, 1) - have, len(self.groups))):
            worker = _Worker(self.kind.remote(self.begin))
            self.starting[worker.actor.version.remote()] = worker

    def _answered(self, ref: Any) -> Iterator[tuple[int, Timed]]:
        """Yield the rows of a finished call, and give its worker further points."""
        call = self.calls.pop(ref, None)
        worker = call.worker if call else self.starting.pop(ref)
        try:
            found = self.ray.get(ref)
        except self.ray.exceptions.RayActorError as error:
            self._lost(worker, call, error)
            return
        worker.calls -= call is not None
        if call is None:
            _same(found)
            self.workers.add(worker)
        self._feed(worker)
        if call:
            yield from zip(call.places, found, strict=True)

    def _feed(self, worker: _Worker) -> None:
        while worker.calls < AHEAD and worker in self.workers:
            if not worker.own and self.groups:
                worker.own = self.groups.popleft()
            if not worker.own:
                return
            places = tuple(worker.own.popleft() for _ in range(min(CHUNK, len(worker.own))))
            ref = worker.actor.evaluate.remote([self.points[place] for place in places])
            self.calls[ref] = _Call(worker, places)
            worker.calls += 1

    def _lost(self, worker: _Worker, call: _Call | None, error: Any) -> None:
        """Give the points of a lost worker to others. Raises ClustersimError if no worker can start, or points end all."""
        if error.actor_init_failed:
            why = str(error).strip().rpartition("\n")[2]
            remedy = f"install clustersim {__version__} and the modules of --plugins on every node"
            raise ClustersimError(f"a worker of the Ray cluster cannot begin ({why}); {remedy}")
        if worker in self.workers:
            self.workers.remove(worker)
            self.spent.lost += 1
        if worker.own:
            self.groups.append(worker.own)
            worker.own = deque()
        if call is None:
            return
        self.failed.update(call.places)
        if max(self.failed[place] for place in call.places) >= ATTEMPTS:
            what = f"{ATTEMPTS} workers of the Ray cluster died on the same points, perhaps for lack of memory"
            raise ClustersimError(what)
        self.groups.extend(deque([place]) for place in call.places)  # one by one, so that a crash loses no others
        for other in self.workers:
            self._feed(other)


def _same(version: str) -> None:
    if version != __version__:
        what = f"a node of the Ray cluster has clustersim {version} and this is {__version__}"
        raise InputError(f"{what}; install the same version on every node")
