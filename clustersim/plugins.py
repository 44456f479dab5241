"""A name in YAML is a file in a folder: `algorithm: ring` is `clustersim/collectives/algorithms/ring.py`.

A room whose names are no Python identifiers (`1f1b`) maps them to its files in `ALIASES`; a plugin folder holds
plugins and nothing else, but for files that start with an underscore.

From outside come the entry points of installed packages, in groups that are called like the rooms (`clustersim.schedules`),
and what `permitted` (`--plugins package.module:attribute`) allows by name.
Nothing else is ever imported: a YAML file runs no code.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
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

ROOMS = {
    "clustersim.predictors": "predictor",
    "clustersim.schedules": "schedule",
    "clustersim.collectives": "algorithm",
    "clustersim.topology": "kind of fabric",
    "clustersim.placements": "placement",
}
"""Rooms that take plugins from outside, and what one of them is called."""
FOLDERS = {
    "clustersim.predictors": "clustersim.predictors.kinds",
    "clustersim.schedules": "clustersim.schedules.kinds",
    "clustersim.collectives": "clustersim.collectives.algorithms",
    "clustersim.topology": "clustersim.topology.kinds",
    "clustersim.placements": "clustersim.jobs.placements",
    "clustersim.learners": "clustersim.lab.train.learners",
}
"""Where the built-in ones of a room are, if not in the folder of its name."""
_GROUPS = b"[clustersim."
"""How a group of entry points for us begins, in the file of a package that has any."""
_permits: ContextVar[tuple[str, ...]] = ContextVar("permits", default=())
_loaded: dict[str, str] = {}
"""Module → name of what was loaded from outside, to say whose code an error went through."""


@lru_cache(maxsize=64)
def _files(room: str) -> Mapping[str, str]:
    folder = FOLDERS.get(room, room)
    package = importlib.import_module(folder)
    spelling = {module: name for name, module in getattr(package, "ALIASES", {}).items()}
    found = (info.name for info in pkgutil.iter_modules(package.__path__))
    return {spelling.get(f, f): f"{folder}.{f}" for f in found if not f.startswith("_")}


def names(room: str) -> dict[str, str]:
    """Return {name in YAML: module} of the plugins of a room such as `clustersim.schedules`."""
    return dict(_files(room))


def installed(room: str) -> dict[str, str]:
    """Return {name in YAML: package} of what installed packages offer in a room under new names; nothing is imported."""
    own = _files(room)
    return {
        name: entry.dist.name if entry.dist else entry.module
        for name, entry in _installed(room).items()
        if name not in own
    }


@contextmanager
def permitted(*spellings: str) -> Iterator[None]:
    """Permit these objects, each `package.module:attribute`, to be named in YAML and options while the context is open.

    The name is the whole spelling, or the attribute alone. Raises InputError for what is no such spelling, and for the name of
    something built in.
    """
    for text in spellings:
        _check_spelling(text)
    token = _permits.set(tuple(dict.fromkeys((*_permits.get(), *spellings))))
    try:
        yield
    finally:
        _permits.reset(token)


def permits() -> tuple[str, ...]:
    """Return the spellings permitted now, for a worker process to `inherit`."""
    return _permits.get()


def inherit(spellings: tuple[str, ...]) -> None:
    """Permit for the rest of this process what the one that started it permits."""
    _permits.set(spellings)


def _permitting() -> str:
    """Return the option that permits code from outside."""
    return option("--plugins", "plugins.permitted")


def _check_spelling(text: str) -> None:
    module, _, attribute = text.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise InputError(f"{_permitting()} {shown(text)}: write package.module:attribute, such as mine:build")
    for room, kind in ROOMS.items():
        if attribute in _files(room):
            what = f"{attribute!r} is a built-in {kind}, which nothing can stand for"
            raise InputError(f"{_permitting()} {text}: {what}; give the function another name")


def _installed(room: str) -> Mapping[str, EntryPoint]:
    return _entries(room, os.pathsep.join(sys.path))


@lru_cache(maxsize=64)
def _entries(room: str, path: str) -> Mapping[str, EntryPoint]:
    if not _offers(path):
        return {}
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=room)}


@lru_cache(maxsize=8)
def _offers(path: str) -> bool:
    """Return whether something on Python's path may have entry points for us.

    That nothing has, which is the rule, `importlib.metadata` takes ten times as long to say, in each run.
    """
    if any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path):
        return True
    return any(_GROUPS in text for folder in path.split(os.pathsep) for text in _entry_points(folder or "."))


def _entry_points(folder: str) -> Iterator[bytes]:
    """Yield the texts that list entry points of what is installed in a folder; what is no folder may have any."""
    try:
        found = [one for one in Path(folder).iterdir() if one.name.lower().endswith("-info")]
    except NotADirectoryError:
        yield _GROUPS  # an archive: importlib.metadata looks into it
        return
    except OSError:
        return
    for one in found:
        with suppress(OSError):
            yield (one / "entry_points.txt").read_bytes()


def outside(room: str, name: str) -> bool:
    """Return whether a name is not one of the built-in ones."""
    return name not in _files(room)


def spelled(room: str, name: str) -> str:
    """Return the one spelling of a name: built-in names and entry points are their own, permitted ones have a module.

    Raises UnknownNameError for what is neither, with the nearest match or with what permits it.
    """
    installed = _installed(room)
    if not outside(room, name):
        if name in installed:
            taken = (
                f"{name!r} is a built-in {_kind(room)}, and {_of(installed[name])} offers another one under that name"
            )
            raise InputError(f"{taken}; uninstall it, or rename its entry point")
        return name
    if name in installed or name in _permits.get():
        return name
    short = [text for text in _permits.get() if text.partition(":")[2] == name]
    if len(short) == 1:
        return short[0]
    if short:
        raise UnknownNameError(f"{shown(name)} may be {' or '.join(short)}; write one of them out")
    if ":" in name:
        permit = option(f"add --plugins {name[:60]} to the command", f"ask within plugins.permitted({name[:60]!r})")
        raise UnknownNameError(
            f"{shown(name)} is no built-in {_kind(room)}, and code from outside runs only if it is permitted; "
            f"{permit} if you trust it"
        )
    known = {*_files(room), *installed, *(text.partition(":")[2] for text in _permits.get())}
    what = room.rsplit(".", 1)[-1]
    hint = suggest(name, known, {*_files(room), *installed})
    raise UnknownNameError(
        f"{shown(name)} is none of the {what}; {hint}, or package.module:attribute with {_permitting()}"
    )


def load(room: str, name: str, attribute: str) -> Any:
    """Return `attribute` of the plugin `name`, or the object from outside that has this name (see `spelled`).

    Raises UnknownNameError, which lists what exists and the nearest match, and InputError for what cannot be loaded.
    """
    spelling = spelled(room, name)
    if not outside(room, spelling):
        return getattr(importlib.import_module(_files(room)[spelling]), attribute)
    entry = _installed(room).get(spelling) or _permitted_entry(spelling, room)
    try:
        found = entry.load()
        if isinstance(found, ModuleType):
            found = getattr(found, attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the outside module raises while it is imported
        raise UnknownNameError(f"{shown(name)} cannot be loaded ({reason(error)}); {_remedy(entry)}") from error
    if not callable(found):
        raise UnknownNameError(f"{shown(name)} is no function or class but {shown(found)}; name one that is")
    _loaded[entry.module.partition(".")[0]] = name
    return found


def _permitted_entry(spelling: str, room: str) -> EntryPoint:
    from importlib.metadata import EntryPoint

    return EntryPoint(spelling, spelling, room)


def _remedy(entry: EntryPoint) -> str:
    if entry.dist is not None:
        return f"mend or uninstall {_of(entry)}"
    return "write package.module:attribute of a package that Python finds"


def _of(entry: EntryPoint) -> str:
    return f"the package {entry.dist.name}" if entry.dist is not None else entry.value


def _kind(room: str) -> str:
    return ROOMS.get(room, "name")


def reason(error: BaseException) -> str:
    """Return type and text of an error in one line of at most 200 characters."""
    try:
        text = " ".join(str(error).split())[:200]
    except Exception:  # an error whose own __str__ fails
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def blaming(room: str, name: str) -> Iterator[None]:
    """Turn whatever a plugin from outside raises, and what our own checks say of it, into one InputError with its name."""
    try:
        yield
    except (KeyboardInterrupt, InputError):
        raise
    except BaseException as error:
        if not outside(room, name):
            raise
        what = str(error) if isinstance(error, SimulationError) else reason(error)
        raise PluginError(f"{name} does not work here ({what}); see one of the built-in ones") from error


@contextmanager
def named_by(at: Callable[[str], InputError]) -> Iterator[None]:
    """Say with `at`, which makes an error of a sentence, where the name stands that is unknown, or whose plugin fails."""
    try:
        yield
    except (UnknownNameError, PluginError) as error:
        raise at(str(error)) from error


@contextmanager
def answering() -> Iterator[None]:
    """Turn an unexpected error into one InputError that names the plugin from outside which it went through.

    One that went through none is blamed on all that were loaded, as their answers may have caused it; without any it passes.
    """
    try:
        yield
    except (KeyboardInterrupt, ClustersimError, GeneratorExit):
        raise
    except BaseException as error:
        guilty = list(_through(error.__traceback__))
        if not guilty and not isinstance(error, OSError) and type(error).__module__.partition(".")[0] != "typer":
            guilty = list(dict.fromkeys(_loaded.values()))
        if not guilty:
            raise
        text = f"{' or '.join(guilty)} does not work here ({reason(error)})"
        raise PluginError(f"{text}; see one of the built-in ones, or leave {_permitting()} out") from error


def _through(traceback: TracebackType | None) -> Iterator[str]:
    """Yield the name of the innermost plugin whose code is in a traceback."""
    last = None
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        last = _loaded.get(module, last)
        traceback = traceback.tb_next
    if last is not None:
        yield last


def forget() -> None:
    """Begin anew: nothing that was loaded before is to blame for what happens from now on."""
    _loaded.clear()


def strings(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of options that may hold several names with commas between."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())
