"""A whole sweep: check for errors of all points, simulate unknown points, store every row, write the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from clustersim.config.shipped import find
from clustersim.costs.figures import Figures
from clustersim.engine.player import Engine
from clustersim.errors import ClustersimError, DiskFullError, InputError, InterruptedSweepError
from clustersim.files import keeping_inputs
from clustersim.report import names
from clustersim.report.store import ELSEWHERE, folder_for, question_of
from clustersim.sweeps import log, ray_cluster, runner
from clustersim.sweeps.check import check
from clustersim.sweeps.evaluate import Files, Row, SweepInputs, load
from clustersim.sweeps.legal import legal
from clustersim.sweeps.space import Point, SweepSpace
from clustersim.writing import unwritable

Show = Callable[[Iterator[tuple[int, Row]], int], Iterator[tuple[int, Row]]]
"""Function (rows as they finish, their number) -> the same rows; it may show progress."""


class Shard(NamedTuple):
    """One of several equal parts of a sweep, as one task of a Slurm array simulates it."""

    number: int
    """Number of the part, from 1."""
    parts: int
    """Number of parts."""

    def __str__(self) -> str:
        return f"shard-{self.number}-of-{self.parts}"

    def points(self, space: Sequence[Point]) -> list[Point]:
        """Return the points of this part: every `parts`-th one, from number `number` on."""
        return list(space[self.number - 1 :: self.parts])

    @classmethod
    def read(cls, text: str) -> Shard:
        """Return the part in a text such as `2/8`. Raises InputError for text of another form."""
        number, _, count = text.partition("/")
        if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= 100_000:
            return cls(int(number), int(count))
        raise InputError(f"--shard {text}: write the number of the part and how many there are, such as 2/8")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of a sweep in the order of its points, and their folder."""

    rows: list[Row]
    folder: Path
    resumed: int
    """Number of rows from an earlier sweep of the same question."""
    damaged: int
    """Number of skipped lines of its log."""
    cpu: float
    """CPU seconds of forecasting and simulating new points, over all processes."""
    space: list[Point]
    """All points."""
    lost: int = 0
    """Number of lost workers of a Ray cluster, whose points others simulated."""


def run(
    topology: Path,
    workload: Path,
    sweep: SweepSpace | Sequence[Point],
    workers: int,
    out: Path | None = None,
    show: Show = lambda rows, _: rows,
    *,
    fixed: Mapping[str, object] | None = None,
    force: bool = False,
    engine: Engine = "auto",
    costs: Figures | None = None,
    command: log.Command = lambda _: None,
    shard: Shard | None = None,
    merge: Sequence[Path] = (),
    ray: str | None = None,
) -> Sweep:
    """Simulate every point on `workers` processes, or on a Ray cluster.

    out: folder of the result, by default one below `results` named after the inputs and `fixed`, the overrides that all points
    share; its log gets every row immediately. Existing rows with the same inputs and `fixed` are reused. Another result there is
    replaced with `force`, else kept: the next free folder is used. engine: engine of the steps. costs: prices, power and carbon.
    command: command line of a single point, for the table. shard: part of the points to simulate. merge: folders of shards, or of
    other sweeps with the same inputs, whose rows are included. ray: address of a Ray cluster to use. Raises InputError for an
    error before any point is simulated, InterruptedSweepError on Ctrl-C and ClustersimError if a worker dies.
    """
    topology, workload = find("topologies", topology), find("workloads", workload)
    if ray is not None:
        ray_cluster.check(ray)
    with keeping_inputs() as read:
        places = sweep.places if isinstance(sweep, SweepSpace) else {}
        files = Files(str(topology), str(workload), read, engine, costs, places)
        case = load(files)
        space = legal(case, sweep) if isinstance(sweep, SweepSpace) else list(sweep)
        space = shard.points(space) if shard else space
        check(case, space)
        parts = {"topology": topology, "workload": workload}
        options = {"overrides": dict(fixed or {})} | ({"engine": engine} if engine != "auto" else {})
        options |= {"costs": costs.model_dump()} if costs else {}
        question = question_of("sweep", parts, read, options)
        flags = {f"engine-{engine}": engine != "auto"} | ({str(shard): True} if shard else {})
        target = folder_for(question, out, names.default(["sweep", topology, workload], fixed or {}, flags), force)
        with log.opened(target, question, force) as sweep_log:
            try:
                for folder in merge:
                    sweep_log.take(folder)
                spent = runner.Spent()
                sweep_log.begin(space)
                known = sweep_log.known_rows(case, space)
                resumed = len(known)
                rows = _rows(files, case, space, workers, sweep_log, known, show, spent, command, ray)
            except OSError as error:
                raise unwritable(target, error, ELSEWHERE) from error
            return Sweep(rows, target, resumed, sweep_log.damaged, spent.seconds, space, spent.lost)


def _rows(
    files: Files,
    case: SweepInputs,
    space: Sequence[Point],
    workers: int,
    sweep_log: log.SweepLog,
    known: dict[int, Row],
    show: Show,
    spent: runner.Spent,
    command: log.Command,
    ray: str | None,
) -> list[Row]:
    """Return the rows of all points, in order; those not `known` are simulated, logged and added to it. Raises as `run`."""
    open_points = [index for index in range(len(space)) if index not in known]
    crew = partial(ray_cluster.rows, ray) if ray else None
    rows = runner.rows(files, case, [space[index] for index in open_points], workers, spent, crew)
    try:
        with closing(show(rows, len(open_points))) as coming:  # type: ignore[type-var]
            for number, row in coming:
                sweep_log.append(space[open_points[number]], row)
                known[open_points[number]] = row
        return sweep_log.finish(space, [known[index] for index in range(len(space))], command)
    except KeyboardInterrupt:
        done = f"points.jsonl in {sweep_log.shown} has the {len(known)} of {len(space)} points that are done"
        raise InterruptedSweepError(f"interrupted; {done}, and the same command goes on from there") from None
    except (InputError, DiskFullError):
        raise
    except ClustersimError as error:
        done = f"points.jsonl in {sweep_log.shown} has the {len(known)} others"
        remedy = "the same command goes on from there" if crew else "try fewer --workers"
        raise ClustersimError(f"{error}; {done}, {remedy}") from error
