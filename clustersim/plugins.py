"""Code behind names in YAML: built-in files, entry points of installed packages, and objects that the user permits.

- `algorithm: ring` is `clustersim/collectives/algorithms/ring.py`. Files that start with an underscore do not count.
  A folder spells a name that is not a Python identifier (`1f1b`) in `ALIASES`, {name in YAML: file}.
- A package adds names by entry points, in groups that are named like the rooms (`clustersim.schedules`).
- `--plugins package.module:attribute` permits one object. Nothing else is imported: a YAML file runs no code.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from clustersim.errors import (
    ClustersimError,
    InputError,
    PluginError,
    SimulationError,
    UnknownNameError,
    option,
    shown,
    suggest,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = {
    "clustersim.predictors": "predictor",
    "clustersim.schedules": "schedule",
    "clustersim.collectives": "algorithm",
    "clustersim.topology": "kind of fabric",
    "clustersim.placements": "placement",
}
"""Rooms that packages and permitted objects can add to, and the word for one plugin in messages."""
FOLDERS = {
    "clustersim.predictors": "clustersim.predictors.kinds",
    "clustersim.schedules": "clustersim.schedules.kinds",
    "clustersim.collectives": "clustersim.collectives.algorithms",
    "clustersim.topology": "clustersim.topology.kinds",
    "clustersim.placements": "clustersim.jobs.placements",
    "clustersim.learners": "clustersim.lab.train.learners",
}
"""Package that contains the built-in files of a room, if it is not the room itself."""
_permits: ContextVar[tuple[str, ...]] = ContextVar("permits", default=())
_loaded: dict[str, str] = {}
"""{top-level module: plugin} of outside code loaded by the current command, to name the plugin that an error went through."""


@lru_cache(maxsize=64)
def names(room: str) -> Mapping[str, str]:
    """Return {name in YAML: module} of the built-in plugins of a room such as `clustersim.schedules`."""
    folder = FOLDERS.get(room, room)
    package = import_module(folder)
    spelling = {module: name for name, module in getattr(package, "ALIASES", {}).items()}
    files = [info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_")]
    return {spelling.get(file, file): f"{folder}.{file}" for file in files}


@lru_cache(maxsize=64)
def _entries(path: str) -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return {room: {name: entry point}} of all installed packages, read in one pass over them.

    path: `sys.path` as one text, so that the cache notices new packages.
    """
    from importlib.metadata import entry_points

    found = entry_points()
    return {room: {entry.name: entry for entry in found.select(group=room)} for room in FOLDERS}


def _installed(room: str) -> Mapping[str, EntryPoint]:
    """Return {name: entry point} of the installed packages that add to a room."""
    return _entries(os.pathsep.join(sys.path)).get(room, {})


def installed(room: str) -> dict[str, str]:
    """Return {name in YAML: package} of the plugins that installed packages add to a room. Imports none of them."""
    new = _installed(room).keys() - names(room).keys()
    return {name: _package(entry) for name, entry in _installed(room).items() if name in new}


def _package(entry: EntryPoint) -> str:
    """Return the name of the package that declares an entry point, or of its module."""
    return entry.dist.name if entry.dist else entry.module


@contextmanager
def permitted(*spellings: str) -> Iterator[None]:
    """Permit objects, each `package.module:attribute`, to be named in YAML and options while the context is open.

    Their names are the whole spelling, or the attribute alone. Raises InputError if a spelling has another form or if its
    attribute is the name of a built-in plugin.
    """
    flag = option("--plugins", "plugins.permitted")
    for text in spellings:
        module, _, attribute = text.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), attribute)):
            raise InputError(f"{flag} {shown(text)}: write package.module:attribute, such as mine:build")
        for room, kind in KINDS.items():
            if attribute in names(room):
                what = f"{attribute!r} is a built-in {kind}, which cannot be replaced"
                raise InputError(f"{flag} {text}: {what}; give the function another name")
    token = _permits.set(tuple(dict.fromkeys((*_permits.get(), *spellings))))
    try:
        yield
    finally:
        _permits.reset(token)


def permits() -> tuple[str, ...]:
    """Return the permitted spellings, for a worker process to `inherit`."""
    return _permits.get()


def inherit(spellings: tuple[str, ...]) -> None:
    """Permit `spellings` for the rest of this process, without checks: the parent process made them."""
    _permits.set(spellings)


def outside(room: str, name: str) -> bool:
    """Return whether a name is not built in. A built-in name may carry a parameter, as `interleaved/5` does."""
    return name.partition("/")[0] not in names(room)


def spelled(room: str, name: str) -> str:
    """Return the full spelling of a name: `math:sqrt` for a permitted `sqrt`, and the name itself for all others.

    Raises UnknownNameError if nothing has this name, with the nearest match or the option that permits it, and InputError
    if an installed package offers the name of a built-in plugin.
    """
    entries, kind = _installed(room), KINDS.get(room, "name")
    if not outside(room, name):
        if name in entries:
            taken = f"{name!r} is a built-in {kind}, and the package {_package(entries[name])} offers another one"
            raise InputError(f"{taken} under that name; uninstall it, or rename its entry point")
        return name
    if name in entries or name in _permits.get():
        return name
    short = [text for text in _permits.get() if text.partition(":")[2] == name]
    if len(short) == 1:
        return short[0]
    if short:
        raise UnknownNameError(f"{shown(name)} may be {' or '.join(short)}; write one of them out")
    if ":" in name:
        permit = option(f"add --plugins {name[:60]} to the command", f"call within plugins.permitted({name[:60]!r})")
        what = f"{shown(name)} is not a built-in {kind}, and outside code runs only if it is permitted"
        raise UnknownNameError(f"{what}; {permit} if you trust it")
    known = {*names(room), *entries}
    hint = suggest(name, known | {text.partition(":")[2] for text in _permits.get()}, known)
    remedy = f"package.module:attribute with {option('--plugins', 'plugins.permitted')}"
    raise UnknownNameError(f"{shown(name)} is not one of the {room.rpartition('.')[2]}; {hint}, or {remedy}")


def load(room: str, name: str, attribute: str) -> Any:
    """Return `attribute` of the built-in plugin `name`, or the outside object that has this name.

    Raises UnknownNameError if the name is unknown (see `spelled`), or if its object cannot be imported or called.
    """
    spelling = spelled(room, name)
    if not outside(room, spelling):
        return getattr(import_module(names(room)[spelling.partition("/")[0]]), attribute)
    from importlib.metadata import EntryPoint

    entry = _installed(room).get(spelling) or EntryPoint(spelling, spelling, room)
    try:
        plugin = entry.load()
        if isinstance(plugin, ModuleType):
            plugin = getattr(plugin, attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an imported module can raise anything, SystemExit too
        remedy = "write package.module:attribute of a package that Python finds"
        if entry.dist is not None:
            remedy = f"mend or uninstall the package {entry.dist.name}"
        raise UnknownNameError(f"{shown(name)} cannot be loaded ({_reason(error)}); {remedy}") from error
    if not callable(plugin):
        raise UnknownNameError(f"{shown(name)} is not a function or class but {shown(plugin)}; name one that is")
    _loaded[entry.module.partition(".")[0]] = name
    return plugin


def _reason(error: BaseException) -> str:
    """Return the type and text of an error in one line, cut to 200 characters of text."""
    try:
        text = " ".join(str(error).split())[:200]
    except Exception:  # an error whose own __str__ fails
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def blaming(room: str, name: str) -> Iterator[None]:
    """Raise a PluginError that names an outside plugin instead of any error in the context. Errors of built-in plugins pass."""
    try:
        yield
    except (KeyboardInterrupt, InputError):
        raise
    except BaseException as error:
        if not outside(room, name):
            raise
        what = str(error) if isinstance(error, SimulationError) else _reason(error)
        raise PluginError(f"{name} does not work here ({what}); see one of the built-in ones") from error


@contextmanager
def named_by(at: Callable[[str], InputError]) -> Iterator[None]:
    """Raise `at(message)`, which adds the place of the name, instead of an UnknownNameError or PluginError in the context."""
    try:
        yield
    except (UnknownNameError, PluginError) as error:
        raise at(str(error)) from error


@contextmanager
def answering() -> Iterator[None]:
    """Raise a PluginError instead of an unexpected error while outside plugins are loaded.

    It names the plugin whose code is in the traceback, or else all loaded ones, as their results may have caused the error.
    Without loaded plugins the error passes.
    """
    try:
        yield
    except (KeyboardInterrupt, ClustersimError, GeneratorExit):
        raise
    except BaseException as error:
        guilty = _innermost(error.__traceback__)
        if not guilty and not isinstance(error, OSError) and type(error).__module__.partition(".")[0] != "typer":
            guilty = " or ".join(dict.fromkeys(_loaded.values()))
        if not guilty:
            raise
        remedy = f"see one of the built-in ones, or leave {option('--plugins', 'plugins.permitted')} out"
        raise PluginError(f"{guilty} does not work here ({_reason(error)}); {remedy}") from error


def _innermost(traceback: TracebackType | None) -> str:
    """Return the name of the plugin whose code is the innermost of all plugins in a traceback, or an empty text."""
    last = ""
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        last = _loaded.get(module, last)
        traceback = traceback.tb_next
    return last


def forget() -> None:
    """Clear the record of loaded plugins, so that errors of the next command do not name them."""
    _loaded.clear()
