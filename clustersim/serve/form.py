"""The forms of commands: their choices, and the command that each becomes. Values reach the command as text only.

Fields are the options of the commands themselves, with their help and choices.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from clustersim import plugins
from clustersim.config import shipped
from clustersim.config.shipped import Room
from clustersim.errors import InputError
from clustersim.parallel.options import RUN_OPTIONS

FORMS: Mapping[str, tuple[str, Sequence[str]]] = {
    "run": ("Simulate a step", ("nodes", "tp", "pp", "dp", "micro_batch", "schedule", "recompute")),
    "sweep": ("Try many splits", ("nodes", "tp", "pp", "ep", "micro_batch", "schedule", "recompute")),
    "optimize": ("Find the best split", ("nodes", "objective", "target", "within", "top", "price", "unlikely")),
    "plan": ("Plan a training run", ("tokens", "days", "nodes", "budget", "gpu", "objective", "within", "pareto")),
}
"""{command: (title, options at the top of its form)}; the other options that set keys are collapsed."""
LETTERS, KEYS = 500, 50
"""Largest number of characters of a value, and of further keys."""
_KEY = re.compile(r"[A-Za-z_][\w.\[\]-]{0,199}")
_ELSEWHERE = re.compile(r"(?:^|[^\w.])(?:[/~]|\.\.(?:/|$))|\\")
"""Matches values that may name a file elsewhere: `/…`, `~…`, `../…`, or escapes of these in YAML."""


class Field(NamedTuple):
    """An option in a form: its name, spelling and help text."""

    name: str
    flag: str
    what: str
    values: Sequence[str]
    """Values to choose from; empty for any text."""
    switch: bool
    """Whether the option has no value."""
    example: str | None
    """Example of a value, or its name in `--help`."""

    @classmethod
    def of(cls, option: inspect.Parameter) -> Field:
        """Return the field of an option of a command, as its signature describes it."""
        kind, shown = option.annotation.__origin__, option.annotation.__metadata__[0]
        flags = [text for text in (shown.default, *shown.param_decls) if isinstance(text, str)]
        values = [text for part in (kind, *get_args(kind)) for text in get_args(part) if isinstance(text, str)]
        if option.name == "schedule" and shown.metavar is None:  # one, not several
            values = list(plugins.names("clustersim.schedules"))
        flag = next(iter(flags), f"--{option.name.replace('_', '-')}")
        return cls(option.name, flag, shown.help, values, kind is bool, shown.metavar)


class RunCommand(NamedTuple):
    """A requested command."""

    words: tuple[str, ...]
    """Arguments after `clustersim`."""
    shown: str
    """The command as a user would write it."""


@dataclass(frozen=True, slots=True)
class RunForm:
    """Forms of commands, and the files that they can name."""

    files: Mapping[Room, Mapping[str, str]]
    """{room: {name in the form: shipped name or path on the command line}}"""
    fields: Mapping[str, Mapping[str, Field]]
    """{command: {name of an option: its field, the first ones at the top}}"""
    workers: int = 1
    """Number of processes of a sweep."""

    @classmethod
    def of(
        cls, topologies: Iterable[Path], workloads: Iterable[Path], commands: Mapping[str, Callable[..., None]]
    ) -> RunForm:
        """Return the forms of commands, with the shipped files and further ones. Raises InputError for a missing file."""
        fields = {}
        for name, command in commands.items():
            known, axes = inspect.signature(command).parameters, [option.name for option in RUN_OPTIONS]
            names = dict.fromkeys((*FORMS[name][1], *axes))
            fields[name] = {option: Field.of(known[option]) for option in names if option in known}
        rooms: Mapping[Room, Iterable[Path]] = {"topologies": topologies, "workloads": workloads}
        return cls({room: _files(room, more) for room, more in rooms.items()}, fields)

    def facts(self) -> dict[str, Any]:
        """Return the JSON data of the forms: names of `topologies` and `workloads`, and `commands` with their options."""
        shown = []
        for name, fields in self.fields.items():
            title, first = FORMS[name]
            options = [field._asdict() for field in fields.values()]
            shown.append({"command": name, "title": title, "first": len(first), "options": options})
        return {**{room: list(names) for room, names in self.files.items()}, "commands": shown}

    def command(self, request: object) -> RunCommand:
        """Return the command of a request {command, topology, workload, options, set}. Raises InputError for another form."""
        if not isinstance(request, dict):
            raise InputError("the request must be an object with topology and workload")
        name = request.get("command", "run")
        if not isinstance(name, str) or name not in self.fields:
            raise InputError(f"command: must be one of {', '.join(self.fields)}")
        files = [] if name == "plan" else [self._file("topologies", "topology", request.get("topology"))]
        files += [self._file("workloads", "workload", request.get("workload"))]
        pairs = [*_options(name, self.fields[name], request.get("options", {})), *_settings(request.get("set", []))]
        words = [f"{flag}={text}" if text else flag for flag, text in pairs]
        shown = shlex.join(["clustersim", name, *files, *(word for pair in pairs for word in pair if word)])
        more = {"run": ["--html"], "sweep": [f"--workers={self.workers}"]}.get(name, [])
        return RunCommand((name, *files, *words, *more), shown)

    def _file(self, room: Room, what: str, name: object) -> str:
        """Return the file of a name in the form. Raises InputError if `name` is not listed."""
        path = self.files[room].get(name) if isinstance(name, str) else None
        if path is None:
            raise InputError(f"{what}: none of that name is listed here; choose one of the form")
        return path


def _files(room: Room, more: Iterable[Path]) -> dict[str, str]:
    """Return {name in the form: shipped name or path} of the shipped files and of further ones."""
    names = {name: name for name in shipped.files(room)}
    for path in more:
        if not path.is_file():
            raise InputError(f"{path}: no such file; give a YAML file, which the form then lists")
        names[str(path)] = str(path.resolve())
    return names


def _options(command: str, fields: Mapping[str, Field], options: object) -> list[tuple[str, str]]:
    """Return (flag, value) of each option of a request; a switch has no value. Raises InputError unless it is {name: text}."""
    if not isinstance(options, dict) or not options.keys() <= fields.keys():
        raise InputError(
            f"options: an object with names of options of `clustersim {command}`, such as {next(iter(fields))}"
        )
    values = {name: _value(name, value) for name, value in options.items() if value != ""}
    if wrong := [name for name, text in values.items() if fields[name].switch and text != "yes"]:
        raise InputError(f"{wrong[0]}: write yes, or leave it out")
    return [(fields[name].flag, "" if fields[name].switch else text) for name, text in values.items()]


def _settings(texts: object) -> list[tuple[str, str]]:
    """Return (`--set`, key=value) of each further key of a request. Raises InputError for other texts."""
    if not isinstance(texts, list) or len(texts) > KEYS:
        raise InputError(f"set: a list of at most {KEYS} texts, each key=value")
    settings = []
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("=")) if isinstance(text, str) else ("", "", "")
        if not equals or not _KEY.fullmatch(key):
            raise InputError("further keys: each line is key=value, such as training.clip_gradients=false")
        settings.append(("--set", f"{key}={_value(key, value)}"))
    return settings


def _value(key: str, value: object) -> str:
    """Return a value of a request. Raises InputError unless it is one line that names no file elsewhere."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > LETTERS:
        raise InputError(f"{key}: write at most {LETTERS} letters in one line")
    if _ELSEWHERE.search(value):
        raise InputError(f"{key}: may name a file elsewhere, which no form may; write a name or a number")
    return value


def result_names(request: object, most: int) -> Sequence[str]:
    """Return the result names in a request. Raises InputError unless they are between 1 and `most` texts."""
    names = request.get("results") if isinstance(request, dict) else None
    if not isinstance(names, list) or not 0 < len(names) <= most or not all(isinstance(name, str) for name in names):
        raise InputError(f"results: a list of 1 to {most} names")
    return names
