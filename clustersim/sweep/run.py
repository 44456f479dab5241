"""A whole sweep: check what would fail everywhere, simulate, keep every row on disk, finish the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from clustersim.errors import ClustersimError, InputError, InterruptedSweepError
from clustersim.output.store import unwritable
from clustersim.pipeline import check_names
from clustersim.sweep import log, runner
from clustersim.sweep.evaluate import Row
from clustersim.sweep.space import Point

Show = Callable[[Iterator[tuple[int, Row]]], Iterator[tuple[int, Row]]]
"""Passes the rows on as they come in, and may show progress."""


def run(
    topology: Path, workload: Path, space: Sequence[Point], workers: int, target: Path, show: Show = lambda rows: rows
) -> list[Row]:
    """Simulate every point on `workers` processes and return the rows in the order of `space`.

    `target` becomes the folder of the result; its log has every row from the moment it is known. Raises InputError for
    what is wrong before any point is simulated, InterruptedSweepError on Ctrl-C and ClustersimError when a worker dies.
    """
    check(topology, workload, space)
    inputs = {"topology": topology, "workload": workload}
    log.start(target, inputs, space)
    found: dict[int, Row] = {}
    kept = f"points.jsonl in {target} has the"
    try:
        with closing(show(runner.rows(str(topology), str(workload), space, workers))) as rows:  # type: ignore[type-var]
            for index, row in rows:
                log.append(target, space[index], row)
                found[index] = row
        ordered = [found[index] for index in range(len(space))]
        log.finish(target, inputs, space, ordered)
    except KeyboardInterrupt:
        raise InterruptedSweepError(f"interrupted; {kept} {len(found)} of {len(space)} points that are done") from None
    except InputError:
        raise
    except ClustersimError as error:
        raise ClustersimError(f"{error}; {kept} {len(found)} others, try fewer --workers") from error
    except OSError as error:
        raise unwritable(target, error) from error
    return ordered


def check(topology: Path, workload: Path, space: Sequence[Point]) -> None:
    """Raise the InputError that would be the fate of every point: of the cluster, or of the workload."""
    from clustersim.topology.build import load as load_cluster
    from clustersim.workload.load import load

    load_cluster(topology)
    first: InputError | None = None
    seen: set[tuple[str, str]] = set()
    for point in islice(space, 200):
        try:
            job = load(workload, point)
        except InputError as error:
            first = first or error
            continue
        names = job.parallelism.schedule, job.spec.predictor
        if names not in seen:
            check_names(job)
            seen.add(names)
    if first is not None and not seen:
        raise first
