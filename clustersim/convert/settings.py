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
"""{dotted key: value} of a workload, or of another tool's settings."""
ToolRefusal = tuple[str, object, str]
"""(key of a workload, whether another tool cannot express its value, reason)."""


def flat(data: Mapping[str, object], is_setting: Callable[[str], object], prefix: str = "") -> dict[str, object]:
    """Return {`prefix` + dotted key: value} of nested settings. A section is one setting if empty or `is_setting(key)`."""
    settings: dict[str, object] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        inner = value if isinstance(value, dict) and not is_setting(name) else {}
        settings |= flat(inner, is_setting, f"{name}.") if inner else {name: value}
    return settings


def under(name: str, sections: Iterable[str]) -> bool:
    """Return whether a dotted key is one of the sections, which are dotted keys too, or lies in one."""
    return any(f"{name}.".startswith(f"{section}.") for section in sections)


def nested(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings given as {dotted key: value} as nested sections."""
    data: dict[str, object] = {}
    for key, value in settings.items():
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
    """Raise InputError for the first rule (workload key, refused, reason) whose second part is true."""
    for key, wrong, why in rules:
        if wrong:
            raise unsayable(key, why)


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """Settings of a file, with the defaults of its tool."""

    path: str
    tool: str
    """Name and release of the tool, for messages."""
    rows: Mapping[str, Alias]
    """Rows of the tool's table by setting."""
    in_file: Mapping[str, object]
    """Settings of the file by dotted key."""
    neutral: tuple[str, ...] = ()
    """Sections whose settings have no effect unless the table says otherwise."""
    ignored: list[str] = field(default_factory=list)
    """Settings of the file without effect, which `spec` adds."""
    not_modelled: list[str] = field(default_factory=list)
    """Settings of the file whose effect is not modelled, which `spec` adds."""
    names: Mapping[str, str] = field(default_factory=dict)
    """{setting: its name in the file} of settings with an earlier name, for messages."""

    def error(self, name: str, why: str) -> InputError:
        """Return an error with the path, the setting, its value and the reason."""
        return InputError(f"{self.path}: {self.names.get(name, name)}: {shown(self[name])} {why}")

    def __getitem__(self, name: str) -> object:
        """Return a setting, its default if the file leaves it out."""
        return self.in_file.get(name, plain(self.rows[name].columns["default"]))

    def plain(self, spec: Workload) -> Keys:
        """Return {setting: value} for workload keys with one setting. Raises InputError for a value without a setting."""
        settings: Keys = {}
        for name, row in self.rows.items():
            if row.columns["export"] == "x":
                key = ".".join(map(str, row.key))
                settings[name] = row.write(attrgetter(key)(spec))
                if settings[name] is None:
                    raise unsayable(key, f"{name} is {' or '.join(map(str, row.words))}")
        return settings

    def number(self, name: str, least: int = 1) -> int:
        """Return an integer setting, or its default. Raises InputError unless it is between `least` and 10^9."""
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
            raise self.error(name, f"must be a whole number of at least {least}")
        return value

    def several(self, name: str) -> list[object]:
        """Return a setting as a list: the items of a list, or the words of a text; [] for another value."""
        value = self[name]
        if isinstance(value, list):
            return value
        return list(value.split()) if isinstance(value, str) else []

    def spec(self, name: str, model: Mapping[str, object]) -> dict[str, object]:
        """Return {workload key: value}: `name`, the keys of `model` under `model.`, and keys that one setting each expresses.

        Settings without effect are added to `ignored` or `not_modelled`. Raises InputError for unknown settings and unsupported
        values.
        """
        keys: dict[str, object] = {"name": name, **{f"model.{key}": value for key, value in model.items()}}
        for setting, value in {**{name: self[name] for name in self.rows}, **self.in_file}.items():
            row = self.rows.get(setting)
            if row is None:
                if not under(setting, self.neutral):
                    hint = nearest(setting, self.rows) or "leave it out"
                    raise InputError(f"{self.path}: {setting}: is not a known setting of {self.tool}; {hint.strip()}")
                self.ignored.append(setting)
            elif row.key in (("-",), ("~",)):
                (self.ignored if row.key == ("-",) else self.not_modelled).extend([setting] * (setting in self.in_file))
            elif row.key == ("!",):
                if value not in (plain(row.columns["default"]), None, False, "", []):
                    raise self.error(setting, "cannot be expressed in a workload; leave it out")
            elif row.words and value is not None and not any(same(value, word) for word in row.words):
                words = ", ".join(map(json.dumps, row.words))
                raise self.error(setting, f"cannot be expressed in a workload; write {words}")
            elif row.key != ("*",) and (converted := row.read(value)) is not None:
                keys[".".join(map(str, row.key))] = converted
        return keys
