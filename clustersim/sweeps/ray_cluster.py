"""Points on a Ray cluster: tasks on all CPUs of its nodes, rows as they finish, tasks of lost nodes repeated.

A task simulates a few points in a worker process of Ray, which loads the sweep once, from bytes read here. Ray queues the tasks,
also for nodes that join later.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any
from uuid import uuid4

from clustersim import extras
from clustersim.errors import ClustersimError, InputError
from clustersim.sweeps.evaluate import SweepInputs
from clustersim.sweeps.runner import Begin, Spent, Timed, prepared, timed
from clustersim.sweeps.space import Point
from clustersim.version import __version__

CHUNK = 16
"""Largest number of points per task, to spread the overhead of a task; points of one task share kernels."""
ATTEMPTS = 3
"""Number of workers that may be lost with the same points before these are given up."""
CONNECT = 5.0
"""Seconds within which an address must answer."""
LOST = ("WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "ObjectLostError")
"""Names of Ray's exceptions for a task that ended with its worker."""
_loaded: dict[str, SweepInputs] = {}
"""In a worker of Ray: inputs of the sweep, by its name."""


class PointError(ClustersimError):
    """The simulation of a point raised an error that `evaluate` does not expect."""


def evaluated(name: str, begin: Sequence[Any], points: Sequence[Point]) -> tuple[str, list[Timed]]:
    """Return the version of clustersim of this worker, and the rows of points with the CPU time of each.

    name: of the sweep. begin: a reference to its `Begin`, in a sequence because Ray would otherwise copy it for each task.
    Raises PointError if a simulation fails, to tell that from an error at the worker's start.
    """
    if name not in _loaded:
        import ray

        _loaded.clear()
        case = prepared(ray.get(begin[0]))
        assert case is not None  # workers of a sweep always receive its inputs
        _loaded[name] = case
    try:
        return __version__, [timed(_loaded[name], point) for point in points]
    except Exception as error:
        raise PointError(f"{type(error).__name__}: {error}".partition("\n")[0]) from error


def rows(
    address: str, begin: Begin, points: Sequence[Point], groups: Sequence[Sequence[int]], spent: Spent
) -> Generator[tuple[int, Timed], None, None]:
    """Yield (index, row and its CPU seconds) of every point as it finishes. One worker should simulate each of `groups`.

    groups: indices of points. address: `auto`, HOST:PORT or ray://HOST:PORT. spent: counts lost workers. Raises InputError if
    no cluster answers there or a node has another version, and ClustersimError if points are lost with every worker that tries
    them.
    """
    with redirect_stdout(StringIO()), _connected(address) as ray:  # Ray prints messages about lost nodes
        task = ray.remote(num_cpus=1, max_retries=0)(evaluated)
        name, shared, failed = uuid4().hex, [ray.put(begin)], Counter[int]()
        lost = tuple(getattr(ray.exceptions, lost_name) for lost_name in LOST)

        def started(places: Sequence[int]) -> Any:
            """Return Ray's reference to the rows of the points with these indices."""
            return task.remote(name, shared, [points[place] for place in places])

        parts = [group[first : first + CHUNK] for group in groups for first in range(0, len(group), CHUNK)]
        calls = {started(places): tuple(places) for places in parts}
        try:
            while calls:
                [done], _ = ray.wait([*calls], num_returns=1)
                places = calls.pop(done)
                try:
                    version, timed_rows = ray.get(done)
                except lost:
                    spent.lost += 1
                    failed.update(places)
                    if max(failed[place] for place in places) >= ATTEMPTS:
                        what = (
                            f"{ATTEMPTS} workers of the Ray cluster died on the same points, perhaps for lack of memory"
                        )
                        raise ClustersimError(what) from None
                    calls |= {started([place]): (place,) for place in places}  # so that a crash loses no others
                except ray.exceptions.RayError as error:
                    raise _failure(error) from None
                else:
                    _check_version(version)
                    yield from zip(places, timed_rows, strict=True)
        finally:
            for call in calls:
                ray.cancel(call, force=True)


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Yield the Ray module, connected to `address` as in `rows`. Raises InputError if the cluster cannot be reached."""
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
    """Return the error for an address where no Ray cluster answers. why: Ray's words."""
    what = f"--ray {address}: no Ray cluster answers ({why.rstrip('.') or 'no reason given'})"
    return InputError(f"{what}; start one with `ray start --head`, and give its address or auto")


def _failure(error: Exception) -> ClustersimError:
    """Return the error to raise for a task that failed: in a simulation, in Ray itself, or at the start of its worker."""
    import ray

    lines = str(error).strip().splitlines() or [type(error).__name__]
    if not isinstance(error, ray.exceptions.RayTaskError):
        return ClustersimError(f"the Ray cluster failed ({lines[0]})")
    if isinstance(error.cause, PointError):
        return ClustersimError(f"a simulation failed on a worker of the Ray cluster ({error.cause})")
    remedy = f"install clustersim {__version__} and the modules of --plugins on every node"
    return ClustersimError(f"a worker of the Ray cluster cannot begin ({lines[-1]}); {remedy}")


def _check_version(version: str) -> None:
    """Raise InputError unless a node's version of clustersim is this one."""
    if version != __version__:
        what = f"a node of the Ray cluster has clustersim {version} and this is {__version__}"
        raise InputError(f"{what}; install the same version on every node")
