"""A whole sweep: check what would fail everywhere, simulate what is not known yet, keep every row, finish the table."""

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
from clustersim.report.store import ELSEWHERE, Question, place
from clustersim.sweeps import log, ray_cluster, runner
from clustersim.sweeps.check import check
from clustersim.sweeps.evaluate import Files, Row, SweepInputs, load
from clustersim.sweeps.legal import legal
from clustersim.sweeps.space import Point, SweepSpace
from clustersim.writing import unwritable

Show = Callable[[Iterator[tuple[int, Row]], int], Iterator[tuple[int, Row]]]
"""Passes the rows on as they come in, of as many as are simulated, and may show progress."""


class Shard(NamedTuple):
    """One of several equal parts of a sweep, as one task of a Slurm array simulates it."""

    number: int
    """From 1."""
    parts: int
    """How many there are."""

    def __str__(self) -> str:
        return f"shard-{self.number}-of-{self.parts}"

    def of(self, space: Sequence[Point]) -> list[Point]:
        """Return the points of this part: every `parts`-th one."""
        return list(space[self.number - 1 :: self.parts])

    @classmethod
    def read(cls, text: str) -> Shard:
        """Return what `--shard 2/8` names. Raises InputError."""
        number, _, count = text.partition("/")
        if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= 100_000:
            return cls(int(number), int(count))
        raise InputError(f"--shard {text}: write the number of the part and how many there are, such as 2/8")


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rows of a sweep in the order of its points, and their folder."""

    rows: list[Row]
    folder: Path
    resumed: int
    """How many were there from an earlier sweep of the same question."""
    damaged: int
    """Lines of its log that were left out."""
    cpu: float
    """Seconds of CPU that forecasting and evaluating the others took, summed over processes."""
    space: list[Point]
    """The points."""
    lost: int = 0
    """Workers of a Ray cluster that died, and whose points others simulated."""


def run(
    topology: Path,
    workload: Path,
    asked_space: SweepSpace | Sequence[Point],
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

    out: the folder of the result, by default one below `results` that is named after the inputs and `fixed`, the overrides
    that all points share; its log has every row from the moment it is known. Rows of the same inputs and `fixed` that are
    there already are not simulated again. Another result is replaced by `force` alone. engine: who plays the steps. costs:
    prices, power and carbon. command: the line of a point alone, for the table. shard: the part of the points that is simulated
    here. merge: folders of shards, or of other sweeps of the same inputs, whose rows are taken over. ray: the address of a Ray
    cluster that does the work. Raises InputError for what is wrong before any point is simulated, InterruptedSweepError on Ctrl-C
    and ClustersimError when a worker dies.
    """
    topology, workload = find("topologies", topology), find("workloads", workload)
    if ray is not None:
        ray_cluster.check(ray)
    with keeping_inputs() as read:
        places = asked_space.places if isinstance(asked_space, SweepSpace) else {}
        files = Files(str(topology), str(workload), read, engine, costs, places)
        case = load(files)
        space = legal(case, asked_space) if isinstance(asked_space, SweepSpace) else list(asked_space)
        space = shard.of(space) if shard else space
        check(case, space)
        parts = {"topology": topology, "workload": workload}
        options = {"overrides": dict(fixed or {})} | ({"engine": engine} if engine != "auto" else {})
        options |= {"costs": costs.model_dump()} if costs else {}
        asked = Question.of("sweep", parts, read, options)
        flags = {f"engine-{engine}": engine != "auto"} | ({str(shard): True} if shard else {})
        target = place(asked, out, names.default(["sweep", topology, workload], fixed or {}, flags), force)
        with log.opened(target, asked, force) as kept:
            try:
                for folder in merge:
                    kept.take(folder)
                spent = runner.Spent()
                kept.begin(space)
                found = kept.found(case, space)
                resumed = len(found)
                rows = _rows(files, case, space, workers, kept, found, show, spent, command, ray)
            except OSError as error:
                raise unwritable(target, error, ELSEWHERE) from error
            return Sweep(rows, target, resumed, kept.damaged, spent.seconds, space, spent.lost)


def _rows(
    files: Files,
    case: SweepInputs,
    space: Sequence[Point],
    workers: int,
    kept: log.SweepLog,
    found: dict[int, Row],
    show: Show,
    spent: runner.Spent,
    command: log.Command,
    ray: str | None,
) -> list[Row]:
    """Return the rows of all points, those that are not found simulated."""
    open_points = [index for index in range(len(space)) if index not in found]
    crew = partial(ray_cluster.rows, ray) if ray else None
    rows = runner.rows(files, case, [space[index] for index in open_points], workers, spent, crew)
    try:
        with closing(show(rows, len(open_points))) as coming:  # type: ignore[type-var]
            for number, row in coming:
                kept.append(space[open_points[number]], row)
                found[open_points[number]] = row
        return kept.finish(space, [found[index] for index in range(len(space))], command)
    except KeyboardInterrupt:
        done = f"points.jsonl in {kept.shown} has the {len(found)} of {len(space)} points that are done"
        raise InterruptedSweepError(f"interrupted; {done}, and the same command goes on from there") from None
    except (InputError, DiskFullError):
        raise
    except ClustersimError as error:
        done = f"points.jsonl in {kept.shown} has the {len(found)} others"
        remedy = "the same command goes on from there" if crew else "try fewer --workers"
        raise ClustersimError(f"{error}; {done}, {remedy}") from error
