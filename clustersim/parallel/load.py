"""A workload file → a checked `Job`: aliases renamed, overrides applied, fields validated, checks across fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clustersim.config import shipped
from clustersim.config.fields import validate, validate_given
from clustersim.config.overrides import Overridden, SourcePlace, copied, of_topology, replace, scalar
from clustersim.config.workload import Workload
from clustersim.config.yaml import KEY, Document, Loc, Position, read
from clustersim.convert.hugging_face_workload import converted, defaults, is_config, left_out
from clustersim.convert.megatron import NEEDS, REMEDIES, YIELDS, find, refused
from clustersim.convert.megatron_groups import GroupError, Joined, joined, silent
from clustersim.errors import InputError
from clustersim.parallel.check import check
from clustersim.parallel.ignored import NO_EFFECT, NOT_MODELLED, sorted_out
from clustersim.parallel.job import Job

SECTIONS = ("model", "training", "parallelism")
TP, SEQUENCE_PARALLEL = ("parallelism", "tp"), ("parallelism", "sequence_parallel")


def load(path: str | Path, overrides: Mapping[str, object] | None = None) -> Job:
    """Return the job that a workload file, or the bare name of a shipped one, describes.

    `overrides` replaces values by dotted key (`parallelism.tp`) or Megatron's name (`seq_length`); text is read as YAML
    reads it. Raises ConfigError with file, line and column, and InputError when the file cannot be read.
    """
    return build(read(shipped.find("workloads", path)), overrides)


def build(
    document: Document, overrides: Mapping[str, object] | None = None, places: Mapping[str, SourcePlace] | None = None
) -> Job:
    """Return the job of a document that has been read; `places` says of overrides where they stand, if on no command line."""
    return unbuilt(document).job(overrides, places)


class Unbuilt(NamedTuple):
    """A workload before its overrides: the document in this project's names, and the keys that its file has."""

    document: Document
    keys: tuple[str | int, ...]
    config: Mapping[str, Any] | None = None
    """The config.json that it was made of."""

    def job(
        self, overrides: Mapping[str, object] | None = None, places: Mapping[str, SourcePlace] | None = None
    ) -> Job:
        """Return the job with values replaced by dotted key, as `build` does."""
        return check(self.unchecked(overrides, places))

    def unchecked(
        self, overrides: Mapping[str, object] | None = None, places: Mapping[str, SourcePlace] | None = None
    ) -> Job:
        """Return the same where each value is one that its key can have, whether or not they go together."""
        given = overrides or {}
        merged = override(self.document, given, places or {})
        assumed = (*_without_tp(merged), *self._completed(merged))
        return Job(validate(Workload, merged), merged, sorted_out([*self.keys, *given]), assumed)

    def _completed(self, merged: Overridden) -> tuple[str, ...]:
        """Fill in the missing keys of a workload made of a config.json, and return them in words."""
        if self.config is None:
            return ()
        validate_given(Workload, merged)
        said = []
        for default in defaults(merged.data, self.config):
            *parents, last = default.key.split(".")
            here = merged.data
            for part in parents:
                here = here.setdefault(part, {})
            if last not in here:
                here[last] = default.value
                said.append(str(default))
        out = left_out(merged.path, self.config)
        return (*said, *(f"without {what}" for what in out))


def _without_tp(merged: Overridden) -> tuple[str, ...]:
    """Switch sequence parallelism off where tp is overridden by 1 and the file alone asks for it, and return that in words.

    Megatron-LM does so with a warning (megatron/training/arguments.py). A file that says both contradicts itself.
    """
    split, said = merged.data.get("parallelism"), merged.overrides
    if not isinstance(split, dict) or TP not in said or SEQUENCE_PARALLEL in said:
        return ()
    if split.get("tp") != 1 or split.get("sequence_parallel") is not True:
        return ()
    split["sequence_parallel"] = False
    return ("parallelism.sequence_parallel false (tp is 1)",)


def unbuilt(document: Document) -> Unbuilt:
    """Return a workload that has been read, before its overrides. Raises ConfigError for what is wrong with its keys."""
    _check_kind(document)
    if is_config(document.data):
        return Unbuilt(converted(document), (), document.data)
    return Unbuilt(rename(document), tuple(loc[-1] for loc, _ in _leaves(document)))


def _check_kind(document: Document) -> None:
    """Raise ConfigError for a file that describes something else than a workload."""
    for key in ("cluster", "fabric"):
        if key in document.data:
            what = "this is a topology, not a workload; the topology comes first, then the workload"
            raise document.error((key, KEY), what)
    if document.path.endswith(".json") and not document.data.keys() & {"model_type", "model"}:
        raise document.error((), "lacks model_type; a Hugging Face config.json has it, a workload has model")
    if "jobs" in document.data:
        raise document.error(("jobs", KEY), "this is a file of jobs, not a workload; `clustersim jobs` plays it")


def rename(document: Document) -> Document:
    """Return the document with Megatron's names replaced by this project's, and without those that are ignored.

    Raises ConfigError when a value is given under both names.
    """
    data: dict[str, Any] = {}
    positions = dict(document.positions)
    leaves = _leaves(document)
    names = {str(loc[-1]).replace("-", "_"): (loc, value) for loc, value in leaves}
    given = {name: value for name, (_, value) in names.items()}
    for loc, value in leaves:
        key = str(loc[-1]).replace("-", "_")
        if silent(key, given) or (key in NEEDS and not NEEDS[key] & names.keys()):
            continue
        if (remedy := refused(key, value)) is not None:
            raise document.error(loc, f"{loc[-1]} is not supported; {remedy}")
        if _dropped(key) or YIELDS.get(key, frozenset()) & names.keys():
            continue
        alias = find(key)
        target, converted = (alias[0], alias[1](value)) if alias else ((*loc[:-1], key), value)
        if alias and converted is None:
            continue
        if target != loc:
            _move(document, positions, loc, target)
        _put(document, data, target, converted, loc)
    for together in _joined(document, names):
        loc = names[together.name][0]
        _move(document, positions, loc, together.key)
        _put(document, data, together.key, together.value, loc)
    return Document(document.path, data, positions)


def _joined(document: Document, names: Mapping[str, tuple[Loc, Any]]) -> list[Joined]:
    """Return the keys that some of Megatron's arguments mean together. Raises ConfigError."""
    try:
        return joined({name: value for name, (_, value) in names.items()})
    except GroupError as error:
        raise document.error(names[error.name][0], str(error)) from error


def _dropped(key: str) -> bool:
    return key in NO_EFFECT or key in NOT_MODELLED or key in REMEDIES


def _leaves(document: Document) -> list[tuple[Loc, Any]]:
    """Return the values of the top level and of the sections; empty sections stay, to be judged by validation."""
    found: list[tuple[Loc, Any]] = []
    for key, value in document.data.items():
        if key in SECTIONS and isinstance(value, dict) and value:
            found += [((key, inner), item) for inner, item in value.items()]
        else:
            found.append(((key,), value))
    return found


def _move(document: Document, positions: dict[Loc, Position], source: Loc, target: Loc) -> None:
    positions[target] = document.positions[source]
    for depth in range(1, len(target)):
        positions.setdefault(target[:depth], document.positions[source])


def _put(document: Document, data: dict[str, Any], target: Loc, value: Any, source: Loc) -> None:
    """Set a value at its place, with parents as needed."""
    here = data
    for part in target[:-1]:
        inner = here.setdefault(str(part), {})
        if not isinstance(inner, dict):
            raise document.error(
                source, f"{'.'.join(map(str, target))} cannot be set, {part} is a single value; remove it"
            )
        here = inner
    last = str(target[-1])
    if isinstance(here.get(last), dict) and isinstance(value, dict):
        value = {**value, **here[last]}
    elif last in here:
        raise document.error(source, f"{'.'.join(map(str, target))} is given twice under two names; keep one of them")
    here[last] = value


def override(document: Document, overrides: Mapping[str, object], places: Mapping[str, SourcePlace]) -> Overridden:
    """Return the document with values replaced; unknown keys fail in validation like those of the file."""
    data = copied(document.data)
    found: dict[Loc, SourcePlace] = {}
    for key, raw in overrides.items():
        if of_topology(key):
            raise InputError(
                f"{key}: is a key of a topology, and this changes keys of the workload; change the topology's file"
            )
        name, value = key.rsplit(".", 1)[-1].replace("-", "_"), scalar(key, raw)
        if (remedy := refused(name, value)) is not None:
            raise InputError(f"{key}={raw}: {name} is not supported; {remedy}")
        if _dropped(name):
            continue
        alias = find(name)
        target: Loc = alias[0] if alias else tuple(key.replace("-", "_").split("."))
        converted = alias[1](value) if alias else value
        if alias and converted is None:
            continue
        replace(data, target, converted, key)
        found[target] = places.get(key, (f"{document.path} (command line)", 0, 0))
    return Overridden(document.path, data, document.positions, found)
