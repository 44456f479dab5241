"""The shipped topologies and workloads: a bare name such as `superpod_h100_128` finds its file, installed or in a checkout.

The number in a topology's name counts nodes. Older names, which counted GPUs, still work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from clustersim.errors import InputError, nearest
from clustersim.files import exists

Room = Literal["topologies", "workloads"]
"""Kinds of shipped files, by the name of their folder."""
SUFFIXES = (".yaml", ".yml", ".xml")
"""Suffixes by which an argument is a path and not a name."""
RENAMED: Mapping[str, str] = {
    "astrasim_64": "astrasim_32",
    "dragonfly_1056": "dragonfly_132",
    "dragonfly_plus_13680": "dragonfly_plus_3420",
    "grid_64": "grid_32",
    "hpn_dual_plane_1024": "hpn_dual_plane_128",
    "leaf_spine_256": "leaf_spine_32",
    "mi300x_128": "mi300x_16",
    "rail_only_1024": "rail_only_128",
}
"""{old name: present name} of topologies whose number counted GPUs."""


def folder(room: Room) -> Path:
    """Return the folder of a room's files: in the installed package, or at the top of the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_data" / room
    return installed if installed.is_dir() else package.parent / room


def files(room: Room) -> dict[str, Path]:
    """Return {name without suffix: path} of the shipped files of a room."""
    return {path.stem: path for path in sorted(folder(room).glob("*.y*ml"))}


def find(room: Room, argument: str | Path) -> Path:
    """Return the path of a file or shipped name, old or new; for a model's folder its config.json. Raises InputError if none."""
    if not str(argument).strip():
        raise InputError(f"{str(argument)!r}: names no {_WORDS[room]}; give a file, or one of `clustersim list {room}`")
    path = Path(argument)
    known, new = files(room), renamed(room, path)
    if _exists(path) and not (str(path) in known and path.is_dir()):
        config = path / "config.json"
        return config if room == "workloads" and os.path.isdir(path) and _exists(config) else path  # noqa: PTH112 - see files.exists
    if str(path) in known:
        return known[str(path)]
    if new is not None:
        new_path = path.with_name(new + path.suffix)
        if path.suffix not in SUFFIXES:
            return known[new]
        if _exists(new_path):
            return new_path
    raise InputError(_absent(room, path, new))


def called(room: Room, path: Path) -> str:
    """Return the argument of `find` for a path: the bare name of a shipped file if it was found by name, else the path."""
    return path.stem if files(room).get(path.stem) == path and find(room, path.stem) == path else str(path)


def renamed(room: Room, argument: str | Path) -> str | None:
    """Return the present name of a shipped file for its old name or old path; None for any other argument."""
    path = Path(argument)
    name = path.stem if path.suffix in SUFFIXES else str(path)
    return RENAMED.get(name) if room == "topologies" and not _exists(path) else None


def _exists(path: Path) -> bool:
    """Return whether a path exists or its content was recorded; True for a path that cannot be checked before it is read."""
    try:
        return exists(path) or bool(path.stat())
    except (FileNotFoundError, ValueError):
        return False
    except OSError:
        return True


def _absent(room: Room, path: Path, new: str | None) -> str:
    """Return the message for a missing file. new: present name of the file if `path` is an old name, else None."""
    known, what, other = files(room), _WORDS[room], _OTHER[room]
    name = new or path.stem
    if "," in str(path):
        several = "; `clustersim jobs` takes several workloads, with blanks between them" if room == "workloads" else ""
        return f"{path}: no such file; a list with commas is not a {what}, so give one{several}"
    if path.suffix in SUFFIXES:
        shipped = f", and the bare name {name} finds the shipped one" if name in known else ""
        return f"{path}: no such file; `ls {path.parent}` shows what is there{shipped}"
    if str(path) in files(other):
        return f"{path} is a {_WORDS[other]}, not a {what}; the topology comes first, then the workload"
    return (
        f"{path}: no such file, and no shipped {what} has that name; {nearest(str(path), known)}"
        f"`clustersim list {room}` shows them all"
    )


_WORDS: Mapping[Room, str] = {"topologies": "topology", "workloads": "workload"}
_OTHER: Mapping[Room, Room] = {"topologies": "workloads", "workloads": "topologies"}
