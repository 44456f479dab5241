"""Settings files of other tools by tables of dotted keys: meaning of each, no effect, or not supported.

Column `key` of a table is a workload key, `*` if code converts the setting, `-` without effect, `~` not modelled, and `!` if only
the default is supported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from clustersim.config.overrides import replace
from clustersim.config.workload import Workload
from clustersim.convert.table import Alias, plain, same
from clustersim.errors import InputError, nearest, shown

Keys = dict[str, object]
"""Values by dotted key, of a workload or of settings."""
ToolRefusal = tuple[str, object, str]
"""A key of a workload, whether another tool cannot say its value, and why."""


def flat(data: Mapping[str, object], whole: Callable[[str], object], at: str = "") -> dict[str, object]:
    """Return nested settings by dotted key; a section stays one setting if `whole` of its dotted key is true."""
    found: dict[str, object] = {}
    for key, value in data.items():
        name = f"{at}{key}"
        inner = value if isinstance(value, dict) and not whole(name) else {}
        found |= flat(inner, whole, f"{name}.") if inner else {name: value}
    return found


def under(name: str, sections: Iterable[str]) -> bool:
    """Return whether a dotted key is one of the sections, which are dotted keys too, or lies in one."""
    return any(f"{name}.".startswith(f"{section}.") for section in sections)


def nested(found: Mapping[str, object]) -> dict[str, object]:
    """Return settings by dotted key as nested sections."""
    data: dict[str, object] = {}
    for key, value in found.items():
        replace(data, tuple(key.split(".")), value, key)
    return data


def toml(data: Mapping[str, object], title: str) -> str:
    """Return sections of settings as TOML after a comment with `title`."""
    return "\n".join([f"# {title}", *_sections(data, ""), ""])


def _sections(data: Mapping[str, object], at: str) -> Iterator[str]:
    """Yield the lines of the section named `at`, and of the sections inside it."""
    plain = {key: value for key, value in data.items() if not isinstance(value, dict)}
    if plain and at:
        yield from ("", f"[{at}]")
    yield from (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in plain.items())
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _sections(value, f"{at}.{key}" if at else key)


def unsayable(key: str, why: str) -> InputError:
    """Return the error for a workload key that another tool cannot express."""
    return InputError(f"{key}: cannot be expressed: {why}; change it before you export")


def refuse(rules: Iterable[ToolRefusal]) -> None:
    """Raise InputError for the first key that another tool cannot say."""
    for key, wrong, why in rules:
        if wrong:
            raise unsayable(key, why)


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """Settings of a file, with the defaults of its tool."""

    path: str
    tool: str
    rows: Mapping[str, Alias]
    given: Mapping[str, object]
    """Settings of the file by dotted key."""
    neutral: tuple[str, ...] = ()
    """Sections whose settings have no effect unless the table says otherwise."""
    ignored: list[str] = field(default_factory=list)
    not_modelled: list[str] = field(default_factory=list)

    def error(self, name: str, why: str) -> InputError:
        """Return an error at one setting."""
        return InputError(f"{self.path}: {name}: {shown(self[name])} {why}")

    def __getitem__(self, name: str) -> object:
        """Return a setting, its default if the file leaves it out."""
        row = self.rows[name]
        return self.given.get(name, plain(row.columns["default"]))

    def plain(self, spec: Workload) -> Keys:
        """Return the workload keys as settings, for keys with one setting. Raises InputError for a value without one."""
        found: Keys = {}
        for name, row in self.rows.items():
            if row.columns["export"] == "x":
                key = ".".join(map(str, row.key))
                found[name] = row.write(attrgetter(key)(spec))
                if found[name] is None:
                    raise unsayable(key, f"{name} is {' or '.join(map(str, row.words))}")
        return found

    def number(self, name: str, least: int = 1) -> int:
        """Return an integer setting of at least `least`. Raises InputError for another value."""
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
            raise self.error(name, f"must be a whole number of at least {least}")
        return value

    def several(self, name: str) -> list[object]:
        """Return a setting that is a list, or words, as a list; [] for another value."""
        value = self[name]
        if isinstance(value, list):
            return value
        return list(value.split()) if isinstance(value, str) else []

    def spec(self, name: str, model: Mapping[str, object]) -> dict[str, object]:
        """Return the workload keys of settings with one key each. Raises InputError if a value cannot be expressed."""
        found: dict[str, object] = {"name": name, **{f"model.{key}": value for key, value in model.items()}}
        for own, value in {**{name: self[name] for name in self.rows}, **self.given}.items():
            row = self.rows.get(own)
            if row is None:
                if not under(own, self.neutral):
                    hint = nearest(own, self.rows) or "leave it out"
                    raise InputError(f"{self.path}: {own}: is not a known setting of {self.tool}; {hint.strip()}")
                self.ignored.append(own)
            elif row.key in (("-",), ("~",)):
                (self.ignored if row.key == ("-",) else self.not_modelled).extend([own] * (own in self.given))
            elif row.key == ("!",):
                if value not in (plain(row.columns["default"]), None, False, "", []):
                    raise self.error(own, "cannot be expressed in a workload; leave it out")
            elif row.words and value is not None and not any(same(value, word) for word in row.words):
                words = ", ".join(map(json.dumps, row.words))
                raise self.error(own, f"cannot be expressed in a workload; write {words}")
            elif row.key != ("*",) and (meant := row.read(value)) is not None:
                found[".".join(map(str, row.key))] = meant
        return found
