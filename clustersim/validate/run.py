"""A whole validation: read the files, simulate every run, store each outcome, return the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from clustersim.config.topology import NCCL_ALGORITHMS
from clustersim.engine.player import Engine
from clustersim.errors import ClustersimError, DiskFullError, InputError, InterruptedSweepError
from clustersim.predictors.load import get
from clustersim.report.store import ELSEWHERE
from clustersim.sweeps.runner import spread
from clustersim.validate import log
from clustersim.validate.adapt import ABLATIONS, Setup, adapt
from clustersim.validate.evaluate import Outcome, evaluate, with_expected
from clustersim.validate.runs import PUBLISHED, Refusal, Run, read, repeated
from clustersim.validate.strangers import EVERYTHING, Knowledge, hidden_sources, publisher_group
from clustersim.writing import unwritable

Ablation = tuple[str, str]
"""(changed part, value), such as ("predictor", "roofline")."""
UNSEEN: Ablation = ("publisher", "unseen")
"""Change that removes all constants read from the run's own publisher's steps, for runs that use some."""
STRANGER: Ablation = ("publisher", "stranger")
"""Change that also removes the framework, recipe, node and phrases that only its own publisher uses, for runs that use some."""
ForecastTask = tuple[Ablation | None, Run, Knowledge]
"""(change, run, knowledge of the forecast)"""
Tracked = Iterator[tuple[int, Outcome]]
"""(index of a task, its outcome), in the order in which tasks finish."""
ShowOutcomes = Callable[[Tracked, int], Tracked]
"""Function that passes outcomes on as they finish, of a total number, and may show progress."""


def load(paths: Sequence[Path]) -> list[Run]:
    """Return the rows of all files; a repeated id gives an unreadable run with a new id. Raises InputError without good rows."""
    result: list[Run] = []
    where: dict[str, Path] = {}
    for path in paths:
        for run in read(path):
            result.append(repeated(path, run, str(where[run.id])) if run.id in where else run)
            where.setdefault(run.id, path)
    if all(run.unreadable for run in result):
        raise InputError(result[0].unreadable)
    return result


def ablations(texts: Sequence[str]) -> list[Ablation]:
    """Return the changes of `--ablate` texts such as `predictor=roofline|linear`. Raises InputError for an unknown change."""
    changes: list[Ablation] = []
    for text in texts:
        part, equals, values = text.partition("=")
        if not equals or part not in ABLATIONS:
            raise InputError(f"--ablate {text!r}: write one of {', '.join(f'{name}=…' for name in ABLATIONS)}")
        changes += [(part, value) for value in values.replace(",", "|").split("|")]
    for part, value in changes:
        _check(part, value)
    return changes


def _check(part: str, value: str) -> None:
    """Raise InputError if a part cannot be changed to a value."""
    known = {"clocks": ("boost", "sustained"), "fabric": ("ideal",), "host": ("ideal",)}.get(part)
    if known and value not in known:
        raise InputError(f"--ablate {part}={value}: write {' or '.join(f'{part}={name}' for name in known)}")
    if part == "predictor":
        get(value)
    if part == "nccl" and value not in NCCL_ALGORITHMS:
        raise InputError(f"--ablate nccl={value}: write one of {', '.join(NCCL_ALGORITHMS)}")


def simulate(
    runs: Sequence[Run],
    changes: Sequence[Ablation],
    workers: int,
    kept: log.ValidationLog,
    show: ShowOutcomes = lambda rows, _: rows,
    engine: Engine = "auto",
) -> dict[Ablation | None, list[Outcome]]:
    """Simulate every run unchanged and under each change, on `workers` processes.

    Return {change, None for unchanged runs, UNSEEN or STRANGER: outcomes in the order of the runs}. Outcomes in the log `kept`
    are not simulated again, nor runs whose inputs do not differ under UNSEEN or STRANGER. Raises
    InterruptedSweepError on Ctrl-C, with everything stored, and ClustersimError if a worker dies.
    """
    requested: list[ForecastTask] = [(version, run, EVERYTHING) for version in (None, *changes) for run in runs]
    requested += differing(runs)
    by_key = dict(kept.known)
    tasks = [task for task in requested if (_name(task[0]), task[1].id) not in by_key]
    try:
        with closing(show(_each(tasks, workers, engine), len(tasks))) as outcomes:  # type: ignore[type-var]
            for index, outcome in outcomes:
                version, run, _ = tasks[index]
                kept.append(_name(version), outcome)
                by_key[_name(version), run.id] = outcome
    except KeyboardInterrupt:
        done = f"{len(by_key)} of {len(requested)} are kept in {kept.shown}, and the same command goes on from there"
        raise InterruptedSweepError(f"interrupted; {done}") from None
    except OSError as error:
        raise unwritable(kept.shown, error, ELSEWHERE) from error
    except (InputError, DiskFullError):
        raise
    except ClustersimError as error:
        raise ClustersimError(f"{error}; {len(by_key)} others are kept in {kept.shown}, try fewer --workers") from error
    result = {version: [by_key[_name(version), run.id] for run in runs] for version in (None, *changes)}
    last = result[None]
    for version in (UNSEEN, STRANGER):
        # a run that was not simulated again has the same inputs without its publisher; only its expected time changes
        simulated = {run.id: by_key[_name(version), run.id] for change, run, _ in requested if change == version}
        last = [simulated.get(row["id"]) or with_expected(row, publisher_group(row["publisher"])) for row in last]
        result[version] = last
    return result


def differing(runs: Sequence[Run]) -> list[ForecastTask]:
    """Return tasks for the runs whose inputs differ without their publisher (UNSEEN) or as a stranger's (STRANGER).

    A source is hidden if, among the runs of shipped publishers, only the run's publisher group uses it.
    """
    shipped = read(PUBLISHED)
    publishers = {publisher_group(run.publisher) for run in shipped}
    known_runs = {run.id: run for run in (*shipped, *runs) if publisher_group(run.publisher) in publishers}
    setups = {run.id: _setup(run, EVERYTHING) for run in (*known_runs.values(), *runs)}
    used = ((run.publisher, setup.sources) for run in known_runs.values() if (setup := setups[run.id]) is not None)
    hidden = hidden_sources(used)
    tasks: list[ForecastTask] = []
    for run in runs:
        group, last = publisher_group(run.publisher), setups[run.id]
        views = {UNSEEN: Knowledge(run.publisher), STRANGER: Knowledge(group, hidden.get(group, frozenset()))}
        for version, view in views.items():
            setup = None if last is None else _setup(run, view)
            if setup is None or last is None or (setup.topology, setup.workload) == (last.topology, last.workload):
                continue
            tasks.append((version, run, view))
            last = setup
    return tasks


def _setup(run: Run, view: Knowledge) -> Setup | None:
    """Return the files of a run; None if it is refused or invalid."""
    try:
        return adapt(run, view=view)
    except (Refusal, InputError):
        return None


def _name(version: Ablation | None) -> str:
    """Return the name of a change in the log, such as `clocks=boost`; "" for none."""
    return "" if version is None else "=".join(version)


def _each(tasks: Sequence[ForecastTask], workers: int, engine: Engine) -> Tracked:
    """Yield (index of the task, outcome). Runs of the same cluster are adjacent, so that it is built once."""
    clusters = [(run.gpu, run.num_gpus or 0) for _, run, _ in tasks]
    evaluate_one = partial(_evaluate, engine=engine)
    if workers == 1 or len(tasks) == 1:
        for index in sorted(range(len(tasks)), key=clusters.__getitem__):
            yield index, evaluate_one(tasks[index])
    else:
        yield from spread(evaluate_one, tasks, workers, clusters)


def _evaluate(task: ForecastTask, engine: Engine) -> Outcome:
    """Return the outcome of a task."""
    version, run, view = task
    change = None if version is None or version in (UNSEEN, STRANGER) else dict([version])
    return evaluate(run, change, engine, view)
