"""The page of a sweep: the best points, the effect of two axes together, and the command of each point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clustersim.config.results import Manifest
from clustersim.errors import InputError
from clustersim.explain.explanation import explained
from clustersim.pages.shell import page
from clustersim.parallel.options import FLAGS
from clustersim.question import StoredRun
from clustersim.report import store
from clustersim.report.terminal import NAMES
from clustersim.simulation import Progress, silent
from clustersim.sweeps import log
from clustersim.sweeps.evaluate import COLUMNS, Row
from clustersim.sweeps.space import Point, varied
from clustersim.sweeps.table import FRONT, HIGHER
from clustersim.units import plural

SCRIPTS = (
    *("words.js", "common.js", "plot.js", "points.js", "scatter.js", "heat_map.js", "parallel.js", "point_detail.js"),
    *("what_ifs.js", "explorer.js"),
)
STYLES = ("base.css", "explorer.css")
MOST_POINTS = 100_000
DIGITS = 6
"""Significant digits of numbers in the page."""


def sweep_page(folder: Path, explain: bool = False, progress: Progress = silent) -> str:
    """Return the page of a folder of `clustersim sweep` as HTML. explain: whether it has what-ifs of the fastest point.

    Raises InputError if it is not such a folder, or has no points.
    """
    points = sweep_rows(folder)
    if len(points) > MOST_POINTS:
        most = f"a page has at most {MOST_POINTS:,}; sweep fewer axes at once"
        raise InputError(f"{folder}: has {len(points):,} points, and {most}")
    if not (finished := [point for point in points if point[1]["status"] == "ok"]):
        why = f"none of its {plural(len(points), 'point', 'points')} has a result to draw: {points[0][1]['reason']}"
        raise InputError(f"{folder}: {why}")
    data = sweep_data(points, manifest := store.manifest_of(folder, "sweep"))
    if explain:
        stored = _stored_point(folder, manifest, max(finished, key=lambda point: point[1]["tokens_per_s"])[0])
        with stored.holding():
            data["why"] = explained(stored.question, progress, stored.again(progress)).facts()
    return page(f"Sweep: {folder.name}", SCRIPTS, STYLES, data)


def sweep_rows(folder: Path) -> list[tuple[Point, Row]]:
    """Return (point, row) of each point of a sweep. Raises InputError if the folder is not a sweep or has no points."""
    store.manifest_of(folder, "sweep")
    points, rows, _ = log.read(folder)
    if not rows:
        raise InputError(f"{folder}: has no points yet; run the sweep again, which goes on from there")
    return [(points[name], rows[name]) for name in rows]


def sweep_data(points: Sequence[tuple[Point, Row]], manifest: Manifest) -> dict[str, object]:
    """Return the JSON data of the page: `columns` of what differs between points, and the values that all share in `same`."""
    space = [point for point, _ in points]
    axes = [COLUMNS.get(key, key) for key in varied(space)]
    settings = [{COLUMNS.get(key, key): value for key, value in point.items()} for point in space]
    pairs = zip(points, settings, strict=True)
    table = [row | {name: setting[name] for name in axes if name in setting} for (_, row), setting in pairs]
    names = dict.fromkeys(name for row in table for name in row)
    columns = {name: [row.get(name) for row in table] for name in names}
    finished = [row for row in table if row["status"] == "ok"] or [{}]
    same = {
        name: finished[0].get(name)
        for name in columns
        if name not in axes and all(row.get(name) == finished[0].get(name) for row in finished)
    }
    kept = [name for name in columns if name in axes or name in ("status", "reason") or name not in same]
    return {
        "command": _stored_point(Path(), manifest, {}).question.words,
        "flags": _flags(space),
        "axes": axes,
        "columns": {name: _packed(columns[name]) for name in kept},
        "same": {name: value for name, value in same.items() if value is not None and name not in ("status", "reason")},
        "points": len(table),
        "higher": list(HIGHER),
        "front": list(FRONT.values()),
        "names": NAMES,
        "manifest": manifest.model_dump(include={"clustersim", "inputs", "options", "versions"}, exclude_unset=True),
    }


def _packed(values: Sequence[object]) -> dict[str, object]:
    """Return a column: {`numbers`}, or {`texts`: distinct ones, `places`: index of each value's text, -1 for None}."""
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        return {"numbers": [float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for v in values]}
    texts: dict[str, int] = {}
    places = [-1 if value is None else texts.setdefault(str(value), len(texts)) for value in values]
    return {"texts": list(texts), "places": places}


def _flags(space: Sequence[Point]) -> list[list[str]]:
    """Return (column, option, key, value shared by all points or an empty text) of each key of the points."""
    keys = dict.fromkeys(key for point in space for key in point)
    shared = {key: str(space[0].get(key)) for key in keys if len({str(point.get(key)) for point in space}) == 1}
    return [[COLUMNS.get(key, key), FLAGS.get(key, ""), key, shared.get(key, "")] for key in keys]


def _stored_point(folder: Path, manifest: Manifest, point: Point) -> StoredRun:
    """Return the run of one point of a sweep. Raises InputError if the manifest names no inputs."""
    if not {"topology", "workload"} <= manifest.inputs.keys():
        raise InputError(f"{store.MANIFEST}: names no inputs; run the sweep again")
    options = manifest.options.model_copy(update={"overrides": point, "engine": manifest.options.engine or "auto"})
    return StoredRun(folder, manifest.model_copy(update={"options": options}))
