"""Input of a sweep on a command line or in a file: values of options and keys → axes of a space."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clustersim.config.options import Option
from clustersim.config.overrides import SourcePlace, of_topology
from clustersim.config.workload import Workload
from clustersim.config.yaml import KEY, Loc, read
from clustersim.convert.megatron import find
from clustersim.errors import ConfigError, InputError, suggest
from clustersim.parallel.options import RUN_OPTIONS
from clustersim.sweeps.legal import AUTO
from clustersim.sweeps.space import SweepSpace, degrees, listed, numbers, words

_NAMED = {option.name: option for option in RUN_OPTIONS} | {option.key: option for option in RUN_OPTIONS}

_KNOWN = sorted({*(option.name for option in RUN_OPTIONS), *Workload.model_fields, "cluster", "fabric"})
"""Keys at the top of a file of axes, without aliases."""


def space(changes: Mapping[str, str | None], settings: Mapping[str, str], file: Path | None = None) -> SweepSpace:
    """Return the values of options (`changes`), `--set` (`settings`) and a file. Raises InputError if invalid, double or none."""
    options = {option.key: changes[option.key] for option in RUN_OPTIONS if changes.get(option.key) is not None}
    written, places = _written(file) if file else ({}, {})
    for key in written.keys() & (options.keys() | settings.keys()):
        raise InputError(f"{file}: {key} is on the command line too; give one of the two")
    for key in settings.keys() & options.keys():
        raise InputError(f"--set {key} is also an axis of the sweep; give one of the two")
    values = {option.key: _values(option, str(options[option.key])) for option in RUN_OPTIONS if option.key in options}
    values |= {key: _placed(key, value, places[key]) for key, value in written.items()}
    values |= {key: list(listed(value)) for key, value in settings.items()}
    unswept = {option.key for option in RUN_OPTIONS if not option.swept} | settings.keys()
    auto = tuple(key for key, items in values.items() if items == [AUTO] and key != "parallelism.dp")
    fixed = {key: items[0] for key, items in values.items() if key in unswept and len(items) == 1 and key not in auto}
    axes = {key: items for key, items in values.items() if key not in fixed and key not in auto}
    if not axes and not auto:
        raise InputError("nothing to sweep; give at least one axis, such as --tp 1,2,4,8")
    return SweepSpace(axes, fixed, frozenset(settings), auto, places)


def _values(option: Option, text: str) -> list[object]:
    """Return the values in the text of an option, in order. Raises InputError for text of another form."""
    if option.form == "degree":
        return list(degrees(option.dashed, text))
    parts = words(option.dashed, text)
    if AUTO in parts and len(parts) > 1:
        raise InputError(f"--{option.dashed}: auto is all legal values already; give it alone")
    if option.form == "word" or AUTO in parts:
        return list(parts)
    return list(numbers(option.dashed, text, least=0 if option.form == "number" else 1))


def _written(file: Path) -> tuple[dict[str, Any], dict[str, SourcePlace]]:
    """Return ({key: value}, {key: position}) of a file such as `tp: [1, 2]`, `nodes: 64..4096x2`. Raises ConfigError."""
    flat: dict[str, Any] = {}
    places: dict[str, SourcePlace] = {}
    document = read(file)

    def add(at: Loc, data: Mapping[str, Any]) -> None:
        """Add the axes in a section of the file to `flat`, and their positions to `places`."""
        for name, value in data.items():
            here = (*at, name)
            dotted = ".".join(map(str, here))
            option = _NAMED.get(dotted.replace("-", "_"))
            key = option.key if option else dotted
            if not (at or key in _NAMED or _known(key)):
                raise document.error((*here, KEY), f"unknown key {name!r}; {suggest(dotted, _KNOWN)}")
            if isinstance(value, Mapping) and key not in _NAMED:
                add(here, value)
            elif isinstance(value, Mapping):
                raise document.error(here, f"{dotted} must be a value or a list of values, such as [1, 2]")
            elif key in flat:
                raise document.error((*here, KEY), f"{dotted} is given twice, under two names; keep one of them")
            else:
                flat[key] = value
                places[key] = (str(file), *document.positions[here][:2])

    add((), document.data)
    return flat, places


def _known(key: str) -> bool:
    """Return whether a key at the top of a file starts a topology or workload key, including Megatron's names."""
    first = key.partition(".")[0]
    return of_topology(key) or first in Workload.model_fields or find(key.replace("-", "_")) is not None


def _placed(key: str, value: object, at: SourcePlace) -> list[object]:
    """Return the values of a key of a file, as `_several`. Raises ConfigError at its position `at` if they are invalid."""
    try:
        return _several(key, value)
    except InputError as error:
        raise ConfigError(*at, str(error).removeprefix("--")) from error


def _several(key: str, value: object) -> list[object]:
    """Return the distinct values of an axis in a file: the items of a list, the parts of an option's text, or else one value.

    Only the text of an option is divided, as on the command line. Raises InputError for an empty list, for `auto` among other
    items (except for dp), and for an option's text that is invalid.
    """
    if isinstance(value, list):
        if not value:
            raise InputError(f"{key}: no value; write a list of at least one")
        if AUTO in value and len(value) > 1 and key != "parallelism.dp":
            raise InputError(f"{key}: auto is all legal values already; give it alone")
        return [item for index, item in enumerate(value) if item not in value[:index]]
    option = _NAMED.get(key)
    return _values(option, value) if option and isinstance(value, str) else [value]
