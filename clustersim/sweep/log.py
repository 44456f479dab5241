"""The folder of a sweep: every row is on disk as soon as it is known, so that an early end loses none.

manifest.json has the inputs, all points and whether the sweep is complete; points.jsonl one line a point, with its
overrides and its row; points.parquet, written at the end, the ranked table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from clustersim.output.store import folder, manifest, write_atomically, write_json
from clustersim.sweep.evaluate import Row
from clustersim.sweep.space import Point
from clustersim.sweep.table import frame

LOG = "points.jsonl"


def start(target: Path, inputs: Mapping[str, Path], space: Sequence[Point]) -> None:
    """Replace `target` by the folder of a sweep that has no row yet. Raises InputError when it cannot be written."""
    with folder(target) as place:
        write_json(place / "manifest.json", _manifest(inputs, space, complete=False))
        (place / LOG).touch()


def append(target: Path, point: Point, row: Row) -> None:
    """Add one row to the log, so that a crash loses at most the row being written."""
    with (target / LOG).open("a", encoding="utf-8") as file:
        file.write(_line(point, row))


def read(target: Path) -> dict[str, Row]:
    """Return the rows of a log by `key` of their points; a last line that a crash has torn is left out."""
    rows: dict[str, Row] = {}
    for line in (target / LOG).read_text(encoding="utf-8").split("\n")[:-1]:
        entry = json.loads(line)
        rows[key(entry["point"])] = entry["row"]
    return rows


def key(point: Point) -> str:
    """Return the overrides of a point as text that does not depend on their order."""
    return json.dumps(point, sort_keys=True)


def finish(target: Path, inputs: Mapping[str, Path], space: Sequence[Point], rows: Sequence[Row]) -> None:
    """Write the table and put the log, whose lines came in as points were done, into the order of the space."""
    lines = "".join(map(_line, space, rows))
    write_atomically(target / LOG, lambda path: path.write_text(lines, encoding="utf-8"))
    write_atomically(target / "points.parquet", frame(rows).write_parquet)
    data = _manifest(inputs, space, complete=True)
    write_atomically(target / "manifest.json", lambda path: write_json(path, data))


def _line(point: Point, row: Row) -> str:
    return json.dumps({"point": point, "row": row}, sort_keys=True) + "\n"


def _manifest(inputs: Mapping[str, Path], space: Sequence[Point], complete: bool) -> dict[str, object]:
    return {**manifest(dict(inputs), {"points": list(space)}), "complete": complete}
