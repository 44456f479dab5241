"""Results below one folder: their list, and paths to them that never leave the folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clustersim.errors import InputError
from clustersim.report import store
from clustersim.writing import unfinished

PAGE = "report.html"
DEPTH = 4
"""Depth of folders in which results are looked for."""
MOST = 1000
"""Largest number of listed results, the newest."""
_FIGURES = ("step_time_s", "expected_step_time_s", "tokens_per_s", "mfu")


@dataclass(frozen=True, slots=True)
class ResultsFolder:
    """A folder with results."""

    root: Path
    """Path without symbolic links."""
    _known: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = field(default_factory=dict)
    """{folder: ((time, size) of its manifest, facts read from it)}"""

    @classmethod
    def of(cls, path: Path) -> ResultsFolder:
        """Return the results of a folder. Raises InputError if it is not a folder, or is itself a result."""
        if not path.is_dir():
            what = "is not a folder" if path.exists() else "no such folder"
            raise InputError(f"{path}: {what}; give the folder that results are in, or make it with mkdir")
        if _is_result(path):
            raise InputError(f"{path}: is one result; give the folder that it lies in: {path.resolve().parent}")
        return cls(path.resolve())

    def find(self, name: str) -> Path | None:
        """Return the folder of a result by its relative path, or None if there is none or it is outside."""
        parts = name.split("/")
        if {"", ".", ".."} & {*parts} or (os.sep != "/" and os.sep in name):
            return None
        try:
            name.encode()
            path = self.root.joinpath(*parts).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # missing, a cycle of links, a zero byte, not valid Unicode
            return None
        return path if self.root in path.parents and _is_result(path) else None

    def file(self, name: str, file: str) -> Path | None:
        """Return a file of a result, or None for unknown files and links."""
        folder = self.find(name) if file in store.NAMES else None
        return folder / file if folder and _is_file(folder / file) else None

    def rows(self) -> list[dict[str, Any]]:
        """Return `row` of all results, the newest first, at most MOST."""
        folders = list(_results(self.root, DEPTH))
        for gone in self._known.keys() - {*folders}:
            self._known.pop(gone, None)
        rows = [row for folder in folders if (row := self.row(folder))]
        return sorted(rows, key=lambda row: -row["written"])[:MOST]

    def row(self, folder: Path) -> dict[str, Any] | None:
        """Return {`name`, `written`, `report`, `command`, …} of a result; None if it is gone or its name is not Unicode."""
        name = folder.relative_to(self.root).as_posix()
        try:
            status = (folder / store.MANIFEST).stat()
            name.encode()
        except (OSError, UnicodeEncodeError):
            return None
        key = status.st_mtime_ns, status.st_size
        known = self._known.get(folder)
        if known is None or known[0] != key:
            known = self._known[folder] = key, _result_facts(folder)
        return {"name": name, "written": status.st_mtime, "report": _is_file(folder / PAGE), **known[1]}


def _results(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the results in a folder, `depth` levels deep. Links are not followed."""
    try:
        with os.scandir(folder) as entries:
            below = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for path in sorted(below):
        if _is_result(path):
            yield path
        elif depth > 1 and not unfinished(path.name):
            yield from _results(path, depth - 1)


def _is_result(folder: Path) -> bool:
    """Return whether a folder is a result of plain files. Links could lead elsewhere, and a FIFO could block its reader."""
    try:
        with os.scandir(folder) as entries:
            files = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries if entry.name in store.NAMES}
    except OSError:
        return False
    return store.MANIFEST in files and all(files.values())


def _is_file(path: Path) -> bool:
    """Return whether a path is a plain file and no link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _result_facts(folder: Path) -> dict[str, Any]:
    """Return {`command`: `?` if unknown}, and of a sweep `points` and `complete`, else the figures of its summary."""
    manifest = None
    with suppress(OSError):
        manifest = store.manifest(folder)
    command = _text(manifest.command if manifest and manifest.command else "?")
    if manifest and command == "sweep":
        return {"command": command, "points": len(manifest.points or ()), "complete": manifest.complete is True}
    return {"command": command, **_figures(folder)} if _is_file(folder / "summary.json") else {"command": command}


def _figures(folder: Path) -> dict[str, Any]:
    """Return the figures of a summary for the list, without invalid ones: _FIGURES, `split`, `gpus` and `gpu`."""
    try:
        summary = store.read_summary(folder)
    except InputError:
        return {}
    figures: dict[str, Any] = {key: summary[key] for key in _FIGURES if _is_number(summary.get(key))}
    split, cluster = summary.get("parallelism"), summary.get("cluster")
    if isinstance(split, dict):
        figures["split"] = {k: v for k in ("tp", "cp", "pp", "dp", "ep") if isinstance(v := split.get(k), int)}
    if isinstance(cluster, dict):
        figures["gpus"] = gpus if _is_number(gpus := cluster.get("gpus")) else None
        figures["gpu"] = _text(cluster.get("gpu", ""))
    return figures


def _text(value: object) -> str:
    """Return a value as valid Unicode of at most 80 characters."""
    return str(value)[:80].encode(errors="replace").decode()


def _is_number(value: object) -> bool:
    """Return whether a value of a JSON file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
