"""A whole validation: read the files, simulate every run, keep each on disk, hand back what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

from clustersim.engine.player import Engine
from clustersim.errors import ClustersimError, DiskFullError, InputError, InterruptedSweepError
from clustersim.report.store import ELSEWHERE
from clustersim.sweeps.runner import spread
from clustersim.validate import log
from clustersim.validate.adapt import ABLATIONS, adapt
from clustersim.validate.evaluate import Outcome, evaluate
from clustersim.validate.refusal import Refusal
from clustersim.validate.runs import Run, read, repeated
from clustersim.writing import unwritable

Ablation = tuple[str, str]
"""What is changed and to what: ("predictor", "roofline")."""
UNSEEN: Ablation = ("publisher", "unseen")
"""Runs whose forecast rests on a figure that was read from their own publisher are simulated without that too."""
Tracked = Iterator[tuple[int, Outcome]]
ShowOutcomes = Callable[[Tracked, int], Tracked]
"""Passes outcomes on as they come in, and may show progress of so many."""
WAVE = 4096
"""Runs handed to the workers at a time."""


def load(paths: Sequence[Path]) -> list[Run]:
    """Return the runs of all files; one id may stand once in all of them. Raises InputError where no row can be read."""
    result: list[Run] = []
    where: dict[str, Path] = {}
    for path in paths:
        for run in read(path):
            result.append(repeated(path, run, str(where[run.id])) if run.id in where else run)
            where.setdefault(run.id, path)
    if all(run.unreadable for run in result):
        raise InputError(result[0].unreadable)
    return result


def ablations(given: Sequence[str]) -> list[Ablation]:
    """Return the changes of `--ablate` texts such as `predictor=roofline|linear`. Raises InputError."""
    found: list[Ablation] = []
    for text in given:
        part, equals, values = text.partition("=")
        if not equals or part not in ABLATIONS:
            raise InputError(f"--ablate {text!r}: write one of {', '.join(f'{name}=…' for name in ABLATIONS)}")
        found += [(part, value) for value in values.replace(",", "|").split("|")]
    for part, value in found:
        _check(part, value)
    return found


def _check(part: str, value: str) -> None:
    known = {"clocks": ("boost", "sustained"), "fabric": ("ideal",), "host": ("ideal",)}.get(part)
    if known and value not in known:
        raise InputError(f"--ablate {part}={value}: write {' or '.join(f'{part}={name}' for name in known)}")
    if part == "predictor":
        from clustersim.predictors.load import get

        get(value)
    if part == "nccl":
        from clustersim.config.topology import NCCL_ALGORITHMS

        if value not in NCCL_ALGORITHMS:
            raise InputError(f"--ablate nccl={value}: write one of {', '.join(NCCL_ALGORITHMS)}")


def simulate(
    runs: Sequence[Run],
    changes: Sequence[Ablation],
    workers: int,
    kept: log.ValidationLog,
    show: ShowOutcomes = lambda rows, _: rows,
    engine: Engine = "auto",
) -> dict[Ablation | None, list[Outcome]]:
    """Simulate every run as it is and under each change, on `workers` processes; return the outcomes in order.

    Under UNSEEN are those of the runs alone that it concerns. What the log knows already is not simulated again. Raises
    InterruptedSweepError on Ctrl-C, with everything kept, and ClustersimError when a worker dies.
    """
    versions: dict[Ablation | None, Sequence[Run]] = dict.fromkeys((None, *changes), runs)
    versions[UNSEEN] = [run for run in runs if _rests_on_its_own(run)]
    found = dict(kept.known)
    asked = [(version, run) for version, concerned in versions.items() for run in concerned]
    tasks = [(version, run) for version, run in asked if (_name(version), run.id) not in found]
    try:
        with closing(show(_each(tasks, workers, engine), len(tasks))) as outcomes:  # type: ignore[type-var]
            for index, outcome in outcomes:
                version, run = tasks[index]
                kept.append(_name(version), outcome)
                found[_name(version), run.id] = outcome
    except KeyboardInterrupt:
        done = f"{len(found)} of {len(asked)} are kept in {kept.shown}, and the same command goes on from there"
        raise InterruptedSweepError(f"interrupted; {done}") from None
    except OSError as error:
        raise unwritable(kept.shown, error, ELSEWHERE) from error
    except (InputError, DiskFullError):
        raise
    except ClustersimError as error:
        raise ClustersimError(f"{error}; {len(found)} others are kept in {kept.shown}, try fewer --workers") from error
    return {version: [found[_name(version), run.id] for run in concerned] for version, concerned in versions.items()}


def _rests_on_its_own(run: Run) -> bool:
    """Return whether a figure that was read from a run's own publisher stands in its files."""
    try:
        return adapt(run) != adapt(run, unseen=True)
    except (Refusal, InputError):
        return False


def _name(version: Ablation | None) -> str:
    return "" if version is None else "=".join(version)


def _each(tasks: Sequence[tuple[Ablation | None, Run]], workers: int, engine: Engine) -> Tracked:
    """Yield (index, outcome); runs of one cluster come together, so that it is built once."""
    clusters = [(run.gpu, run.num_gpus or 0) for _, run in tasks]
    order = sorted(range(len(tasks)), key=clusters.__getitem__)
    evaluate_one = partial(_evaluate, engine=engine)
    if workers == 1 or len(tasks) == 1:
        for index in order:
            yield index, evaluate_one(tasks[index])
        return
    waiting = iter(order)
    while wave := list(islice(waiting, WAVE)):
        parts = [tasks[i] for i in wave], workers, [clusters[i] for i in wave]
        with closing(spread(evaluate_one, *parts)) as rows:  # type: ignore[type-var]
            for place, outcome in rows:
                yield wave[place], outcome


def _evaluate(task: tuple[Ablation | None, Run], engine: Engine) -> Outcome:
    version, run = task
    if version == UNSEEN:
        return evaluate(run, None, engine, unseen=True)
    return evaluate(run, dict([version]) if version else None, engine)
