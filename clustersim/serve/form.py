"""The form of a run: its choices, and the command that it becomes. Values reach the command as text only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from clustersim import plugins
from clustersim.config import shipped
from clustersim.config.options import Option
from clustersim.config.shipped import Room
from clustersim.errors import InputError
from clustersim.parallel.options import RUN_OPTIONS

OPTIONS = {option.name: option for option in RUN_OPTIONS}
"""{name: option} of the form."""
FIRST = ("nodes", "tp", "pp", "dp", "micro_batch", "schedule", "recompute")
"""Options at the top of the form. Others are collapsed."""
LETTERS, KEYS = 500, 50
"""Largest number of characters of a value, and of further keys."""
_KEY = re.compile(r"[A-Za-z_][\w.\[\]-]{0,199}")
_ELSEWHERE = re.compile(r"(?:^|[^\w.])(?:[/~]|\.\.(?:/|$))|\\")
"""Matches values that may name a file elsewhere: `/…`, `~…`, `../…`, or escapes of these in YAML."""


class RunCommand(NamedTuple):
    """A requested run as a command."""

    words: tuple[str, ...]
    """Arguments after `clustersim`."""
    shown: str
    """The command as a user would write it."""


@dataclass(frozen=True, slots=True)
class RunForm:
    """Files that can be simulated, by their names in the form."""

    files: Mapping[Room, Mapping[str, str]]
    """{room: {name in the form: shipped name or path on the command line}}"""

    @classmethod
    def of(cls, topologies: Iterable[Path], workloads: Iterable[Path]) -> RunForm:
        """Return the form of the shipped files and of further ones. Raises InputError for a missing file."""
        return cls({"topologies": _files("topologies", topologies), "workloads": _files("workloads", workloads)})

    def facts(self) -> dict[str, Any]:
        """Return the JSON data from which a page draws the form."""
        order = [*FIRST, *(name for name in OPTIONS if name not in FIRST)]
        return {
            **{room: list(names) for room, names in self.files.items()},
            "options": [_field(OPTIONS[name]) for name in order],
            "first": len(FIRST),
        }

    def command(self, asked: object) -> RunCommand:
        """Return the command of a request {topology, workload, options, set}. Raises InputError for a request of another form."""
        if not isinstance(asked, dict):
            raise InputError("the request must be an object with topology and workload")
        topology = self._file("topologies", "topology", asked.get("topology"))
        workload = self._file("workloads", "workload", asked.get("workload"))
        pairs = [*_options(asked.get("options", {})), *_settings(asked.get("set", []))]
        shown = shlex.join(["clustersim", "run", topology, workload, *(word for pair in pairs for word in pair)])
        return RunCommand(("run", topology, workload, *(f"{flag}={text}" for flag, text in pairs), "--html"), shown)

    def _file(self, room: Room, what: str, name: object) -> str:
        """Return the file of a name in the form. Raises InputError if `name` is not listed."""
        found = self.files[room].get(name) if isinstance(name, str) else None
        if found is None:
            raise InputError(f"{what}: none of that name is listed here; choose one of the form")
        return found


def _files(room: Room, more: Iterable[Path]) -> dict[str, str]:
    """Return {name in the form: shipped name or path} of the shipped files and of further ones."""
    found = {name: name for name in shipped.files(room)}
    for path in more:
        if not path.is_file():
            raise InputError(f"{path}: no such file; give a YAML file, which the form then lists")
        found[str(path)] = str(path.resolve())
    return found


def _field(option: Option) -> dict[str, Any]:
    """Return the JSON data of the field of an option."""
    values = list(plugins.names("clustersim.schedules")) if option.name == "schedule" else []
    return {"name": option.name, "flag": option.flag, "what": option.what, "values": values, "form": option.form}


def _options(given: object) -> list[tuple[str, str]]:
    """Return (flag, value) of each option of a request. Raises InputError unless it is {name: text}."""
    if not isinstance(given, dict) or not given.keys() <= OPTIONS.keys():
        raise InputError("options: an object with names of options of `clustersim run`, such as tp")
    return [(OPTIONS[name].flag, _value(name, value)) for name, value in given.items() if value != ""]


def _settings(given: object) -> list[tuple[str, str]]:
    """Return (`--set`, key=value) of each further key of a request. Raises InputError for other texts."""
    if not isinstance(given, list) or len(given) > KEYS:
        raise InputError(f"set: a list of at most {KEYS} texts, each key=value")
    found = []
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("=")) if isinstance(text, str) else ("", "", "")
        if not equals or not _KEY.fullmatch(key):
            raise InputError("further keys: each line is key=value, such as training.clip_gradients=false")
        found.append(("--set", f"{key}={_value(key, value)}"))
    return found


def _value(key: str, value: object) -> str:
    """Return a value of a request. Raises InputError unless it is one line that names no file elsewhere."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > LETTERS:
        raise InputError(f"{key}: write at most {LETTERS} letters in one line")
    if _ELSEWHERE.search(value):
        raise InputError(
            f"{key}: names a file elsewhere, which no form may; name the file with --topology or --workload"
        )
    return value


def result_names(given: object, most: int) -> Sequence[str]:
    """Return the result names in a request. Raises InputError unless they are between 1 and `most` texts."""
    names = given.get("results") if isinstance(given, dict) else None
    if not isinstance(names, list) or not 0 < len(names) <= most or not all(isinstance(name, str) for name in names):
        raise InputError(f"results: a list of 1 to {most} names")
    return names
