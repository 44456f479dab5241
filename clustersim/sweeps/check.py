"""Errors in a sweep before any point is simulated: a value that no point can have, or only illegal points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import ValidationError

from clustersim.config.overrides import parted
from clustersim.errors import InputError, UnknownNameError
from clustersim.preparation import check_names
from clustersim.sweeps.evaluate import SweepInputs
from clustersim.sweeps.space import Point


def check(case: SweepInputs, space: Sequence[Point]) -> None:
    """Raise the InputError of a value that is invalid in every point that has it, or else the one of every point.

    A value is invalid if its key can never have it, such as a negative rate or an unknown name. A number that only contradicts
    others, such as a tp that divides no heads, makes its points illegal, and their rows report it.
    """
    _values((parted(point)[0] for point in space), case.cluster)
    _values((parted(point)[1] for point in space), lambda data: check_names(case.workload.unchecked(data, case.places)))
    first: InputError | None = None
    for point in space:
        try:
            case.cluster(point)
            case.job(point)
        except InputError as error:
            first = first or error
        else:
            return
    if first:
        raise first


def _values(points: Iterable[Mapping[str, object]], read: Callable[[Mapping[str, object]], object]) -> None:
    """Raise the first error of a value for which `read` fails in every point."""
    sound: set[tuple[str, str]] = set()
    wrong: dict[tuple[str, str], InputError] = {}
    for changes in points:
        new = [pair for key, value in changes.items() if (pair := (key, repr(value))) not in sound]
        if not new:
            continue
        try:
            read(changes)
        except InputError as error:
            if isinstance(error, UnknownNameError) or isinstance(error.__cause__, ValidationError | UnknownNameError):
                wrong = dict.fromkeys(new, error) | wrong
                continue
        sound.update(new)
    first = next((error for pair, error in wrong.items() if pair not in sound), None)
    if first:
        raise first
