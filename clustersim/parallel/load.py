"""Turn a workload file into a checked `Job`: rename aliases, apply overrides, validate fields, check across fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from clustersim.config import shipped
from clustersim.config.fields import validate, validate_partly
from clustersim.config.overrides import Overridden, SourcePlace, of_topology, scalar, with_values
from clustersim.config.workload import Model, Training, Workload
from clustersim.config.yaml import KEY, Document, Loc, Position, read
from clustersim.convert.hugging_face_workload import converted, defaults, is_config, left_out
from clustersim.convert.layout_text import stages_of
from clustersim.convert.megatron import NEEDS, NO_EFFECT, NOT_MODELLED, REMEDIES, YIELDS, find, refused, sorted_out
from clustersim.convert.megatron_groups import GroupedKey, GroupError, grouped_keys, silent
from clustersim.convert.peft import BESIDE
from clustersim.errors import InputError, UnknownNameError
from clustersim.frameworks.table import load as load_framework
from clustersim.model.parameters import parameters
from clustersim.parallel.check import check
from clustersim.parallel.job import Job

SECTIONS = ("model", "training", "parallelism")
"""Sections of a workload whose keys may have Megatron's names."""
PAIRED = ("dualpipe", "dualpipev")
"""Schedules that pair a forward with a backward pass, so that one computes during the other's exchange of expert rows."""
DEFAULTS = Workload.model_construct(model=Model.model_construct(), training=Training.model_construct())
"""Workload of which only the default values are set."""


def load(path: str | Path, overrides: Mapping[str, object] | None = None) -> Job:
    """Return the checked job that a workload file describes. path: the file, or the bare name of a shipped one.

    overrides: values by dotted key (`parallelism.tp`) or by Megatron's name (`seq_length`), which replace those of the file; text
    is parsed as YAML. Raises ConfigError with file, line and column for an invalid workload, and InputError if the file cannot be
    read.
    """
    return build(read(shipped.find("workloads", path)), overrides)


def build(
    document: Document, overrides: Mapping[str, object] | None = None, places: Mapping[str, SourcePlace] | None = None
) -> Job:
    """Return the checked job of a parsed document. Raises ConfigError for an invalid workload.

    overrides: as in `load`. places: source of each override, by its key, if that is not a command line.
    """
    return unbuilt(document).job(overrides, places)


class Unbuilt(NamedTuple):
    """A workload before its overrides."""

    document: Document
    """Document with this project's keys."""
    keys: tuple[str | int, ...]
    """Keys as they are in the file; () for a config.json."""
    config: Mapping[str, Any] | None = None
    """Contents of the config.json that describes the model; None without one."""

    def job(
        self, overrides: Mapping[str, object] | None = None, places: Mapping[str, SourcePlace] | None = None
    ) -> Job:
        """Return the job with `overrides`, which are as in `build`. Raises ConfigError if it is invalid."""
        return check(self.unchecked(overrides, places))

    def unchecked(
        self, overrides: Mapping[str, object] | None = None, places: Mapping[str, SourcePlace] | None = None
    ) -> Job:
        """Return the job with `overrides`, which are as in `build`, without checks across fields. Raises ConfigError if a single
        value is invalid."""
        values = overrides or {}
        merged = override(self.document, values, places or {})
        assumed = (*self._completed(merged), *_framework_settings(merged), *_derived_settings(merged))
        spec = validate(Workload, merged)
        if self.config is not None:
            omissions = tuple(f"without {part}" for part in left_out(merged.path, self.config))
            lora = spec.training.lora if "training" in self.document.data else None
            adapters = (f"adapters of rank {lora.rank} ({BESIDE})",) if lora else ()
            assumed = (*assumed, size_in_words(spec.model), *omissions, *adapters)
        return Job(spec, merged, sorted_out([*self.keys, *values]), assumed)

    def _completed(self, merged: Overridden) -> tuple[str, ...]:
        """Fill the missing keys of a workload that is from a config.json with defaults. Return a sentence for each.

        Return () for other workloads. Raises ConfigError if a value in the document is invalid.
        """
        if self.config is None:
            return ()
        validate_partly(Workload, merged)
        values = defaults(merged.data, self.config)
        return tuple(str(value) for value in values if _filled(merged.data, value.key, value.value))


def _filled(data: Any, key: str, value: object) -> bool:
    """Set a dotted key of nested dicts to `value` if it is missing. Return whether it was set. Missing sections are created; a
    section that is not a mapping is left as it is."""
    *parents, last = key.split(".")
    for part in parents:
        data = data.setdefault(part, {}) if isinstance(data, dict) else None
    return isinstance(data, dict) and last not in data and data.setdefault(last, value) is value


def size_in_words(model: Model) -> str:
    """Return a model's number of parameters as text in billions; for a mixture of experts, also of those active for one token."""
    total, active = (parameters(model, active=is_active) / 1e9 for is_active in (False, True))
    return f"{total:.4g} billion parameters" + (f", {active:.4g} billion for one token" if active < total else "")


def _framework_settings(merged: Overridden) -> Iterator[str]:
    """Set missing keys to what the workload's framework always does. Yield a sentence for each value other than the default.

    Keys are set while the result is iterated. Yield nothing for an unknown framework.
    """
    training, split = (merged.data.get(name, {}) for name in ("training", "parallelism"))
    if not isinstance(training, dict) or not isinstance(split, dict) or not training.get("framework"):
        return
    with suppress(UnknownNameError):  # an unknown framework is reported where it is used
        framework = load_framework(str(training["framework"]))
        for key, value in framework.habits(split.get("schedule"), training.get("precision")).items():
            if _filled(merged.data, key, value) and value != attrgetter(key)(DEFAULTS):
                yield f"{key} {value} ({framework.name}'s)"


def _derived_settings(merged: Overridden) -> Iterator[str]:
    """Set keys that Megatron-LM derives from other arguments (megatron/training/arguments.py). Yield a sentence for each.

    Sequence parallelism is off without tensor parallelism, a layout fixes the chunks per rank, schedules that pair passes overlap
    exchanges with the other pass, and several chunks mean interleaving.
    """
    split = merged.data.get("parallelism")
    if not isinstance(split, dict):
        return
    if split.get("tp", 1) == 1 and split.get("sequence_parallel") is True:
        split["sequence_parallel"] = False
        yield "parallelism.sequence_parallel false (tp is 1)"
    stages, layout = split.get("pp"), split.get("layout")
    if isinstance(stages, int) and stages > 1 and isinstance(layout, str) and "vpp" not in split:
        with suppress(InputError):  # an invalid layout is reported where it is checked
            split["vpp"] = max(stages_of(layout) // stages, 1)
            yield f"parallelism.vpp {split['vpp']} (the stages of the layout / pp)"
    if (
        split.get("schedule") in PAIRED
        and split.get("ep", 1) != 1
        and isinstance(split.setdefault("overlap", {}), dict)
    ):
        recomputes = merged.data.get("training", {}).get("recompute", "none") == "full"
        if "ep" not in split["overlap"] and not recomputes:
            split["overlap"]["ep"] = "microbatch"
            yield f"parallelism.overlap.ep microbatch (what {split['schedule']} pairs passes for)"
    chunks = split.get("vpp")
    if isinstance(chunks, int) and isinstance(stages, int) and chunks > 1 and stages > 1 and "schedule" not in split:
        split["schedule"] = "interleaved"
        yield "parallelism.schedule interleaved (vpp is above 1)"


def unbuilt(document: Document) -> Unbuilt:
    """Return a parsed workload, or config.json of Hugging Face, before its overrides. Raises ConfigError for a document of
    another kind, or a key that is not supported."""
    _check_kind(document)
    if is_config(document.data):
        return Unbuilt(converted(document), (), document.data)
    return Unbuilt(rename(document), tuple(loc[-1] for loc, _ in _leaves(document)))


def _check_kind(document: Document) -> None:
    """Raise ConfigError if a document describes something other than a workload: a topology, jobs, or JSON without a model."""
    for key in ("cluster", "fabric"):
        if key in document.data:
            what = "this is a topology, not a workload; the topology comes first, then the workload"
            raise document.error((key, KEY), what)
    if document.path.endswith(".json") and not document.data.keys() & {"model_type", "model"}:
        raise document.error((), "lacks model_type; a Hugging Face config.json has it; or see `clustersim import`")
    if "jobs" in document.data:
        raise document.error(("jobs", KEY), "this is a file of jobs, not a workload; `clustersim jobs` simulates it")


def rename(document: Document) -> Document:
    """Return the document with Megatron's names replaced by this project's keys. Names without effect are left out.

    Raise ConfigError if a value is set under two names, or a name is not supported.
    """
    data: dict[str, Any] = {}
    positions = dict(document.positions)
    leaves = _leaves(document)
    names = {str(loc[-1]).replace("-", "_"): (loc, value) for loc, value in leaves}
    values = {name: value for name, (_, value) in names.items()}
    for loc, value in leaves:
        key = str(loc[-1]).replace("-", "_")
        if silent(key, values) or (key in NEEDS and not NEEDS[key] & names.keys()):
            continue
        if (remedy := refused(key, value)) is not None:
            raise document.error(loc, f"{loc[-1]} is not supported; {remedy}")
        if _dropped(key) or YIELDS.get(key, frozenset()) & names.keys():
            continue
        alias = find(key)
        target, converted = (alias.key, alias.read(value)) if alias else ((*loc[:-1], key), value)
        if alias and converted is None:
            continue
        if target != loc:
            _move(document, positions, loc, target)
        _put(document, data, target, converted, loc)
    for derived in _derived_from_several(document, names):
        loc = names[derived.name][0]
        _move(document, positions, loc, derived.key)
        _put(document, data, derived.key, derived.value, loc)
    return Document(document.path, data, positions)


def _derived_from_several(document: Document, names: Mapping[str, tuple[Loc, Any]]) -> list[GroupedKey]:
    """Return the keys that follow from several of Megatron's arguments together.

    names: {argument: (its position in the document, its value)}. Raises ConfigError if the arguments conflict.
    """
    try:
        return grouped_keys({name: value for name, (_, value) in names.items()})
    except GroupError as error:
        raise document.error(names[error.name][0], str(error)) from error


def _dropped(key: str) -> bool:
    """Return whether a name of Megatron's is ignored."""
    return key in NO_EFFECT or key in NOT_MODELLED or key in REMEDIES


def _leaves(document: Document) -> list[tuple[Loc, Any]]:
    """Return (position, value) of each value at the top level and in the sections of a document. Empty sections are values
    themselves, so that validation rejects them."""
    leaves: list[tuple[Loc, Any]] = []
    for key, value in document.data.items():
        if key in SECTIONS and isinstance(value, dict) and value:
            leaves += [((key, inner), item) for inner, item in value.items()]
        else:
            leaves.append(((key,), value))
    return leaves


def _move(document: Document, positions: dict[Loc, Position], source: Loc, target: Loc) -> None:
    """Give `target` and its parents the position in the file that `source` has."""
    positions[target] = document.positions[source]
    for depth in range(1, len(target)):
        positions.setdefault(target[:depth], document.positions[source])


def _put(document: Document, data: dict[str, Any], target: Loc, value: Any, source: Loc) -> None:
    """Set the value at `target` in nested dicts, and create its parents. A mapping is merged into an existing one.

    source: position in the document for errors. Raises ConfigError if the value is there already, or a parent is a single value.
    """
    parent = data
    for part in target[:-1]:
        inner = parent.setdefault(str(part), {})
        if not isinstance(inner, dict):
            raise document.error(source, f"{'.'.join(map(str, target))} cannot be set, {part} is one value; remove it")
        parent = inner
    last = str(target[-1])
    if isinstance(parent.get(last), dict) and isinstance(value, dict):
        value = {**value, **parent[last]}
    elif last in parent:
        raise document.error(source, f"{'.'.join(map(str, target))} is given twice under two names; keep one of them")
    parent[last] = value


def override(document: Document, overrides: Mapping[str, object], places: Mapping[str, SourcePlace]) -> Overridden:
    """Return the document with values replaced. Ignored names change nothing; unknown keys fail in validation later.

    overrides, places: as in `build`. Raises InputError for a key of a topology, a name that is not supported, or a place that
    the workload does not have.
    """
    replacements: list[tuple[Loc, object, str]] = []
    for key, raw in overrides.items():
        if of_topology(key):
            raise InputError(
                f"{key}: is a key of a topology, and this changes keys of the workload; change the topology's file"
            )
        name, value = key.rsplit(".", 1)[-1].replace("-", "_"), scalar(key, raw)
        name = name if key.count(".") < 2 else key  # deeper keys are not aliases: lora.rank is not Megatron's rank
        if (remedy := refused(name, value)) is not None:
            raise InputError(f"{key}={raw}: {name} is not supported; {remedy}")
        if _dropped(name):
            continue
        alias = find(name)
        target: Loc = alias.key if alias else tuple(key.replace("-", "_").split("."))
        converted = alias.read(value) if alias else value
        if alias and converted is None:
            continue
        replacements.append((target, converted, key))
    return with_values(document, replacements, places)
