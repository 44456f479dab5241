"""The folder of a validation: every outcome is on disk as soon as it is known, and the same command resumes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clustersim.config.results import Manifest
from clustersim.report import store
from clustersim.sweeps.log import kept
from clustersim.validate.evaluate import FIELDS, Outcome
from clustersim.writing import unwritable, write

if TYPE_CHECKING:
    import polars as pl

LOG = "runs.jsonl"
"""Name of the log in the folder: a line of JSON for each outcome."""
Key = tuple[str, str]
"""(change such as `clocks=boost`, or "" for none; id of the run)"""


class ValidationLog:
    """Outcomes in a folder; `known` has those on disk when it was opened. folder: real path; shown: path in messages."""

    def __init__(self, folder: Path, shown: Path, question: Manifest) -> None:
        self.folder, self.shown, self.question = folder, shown, question
        self.known = _read(folder / LOG)

    def append(self, change: str, outcome: Outcome) -> None:
        """Add an outcome with its `change` (see Key), so that a crash loses at most this one. Raises OSError if that fails."""
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"ablation": change, "run": outcome}) + "\n")

    def finish(self, outcomes: Sequence[Outcome], page: str) -> None:
        """Write runs.parquet and report.html, and mark the validation as complete. Raises InputError or DiskFullError."""
        try:
            store.write_table(self.folder / "runs.parquet", frame(outcomes))
            write(self.folder / "report.html", page.encode())
            store.write_manifest(self.folder, self.question, complete=True)
        except OSError as error:
            raise unwritable(self.shown, error, store.ELSEWHERE) from error


@contextmanager
def opened(target: Path, question: Manifest, force: bool = False) -> Iterator[ValidationLog]:
    """Yield the log of the folder `target`, with the outcomes of an earlier validation of the same question.

    If `target` has another result, the log is in the next free folder, such as `target-2`, or with `force` replaces that result.
    `force` also starts a complete validation again. Raises InputError if the folder cannot be written, has files that are not of
    a result, or is in use; DiskFullError if no space is left.
    """

    def empty(place: Path) -> None:
        """Write a manifest and a log without outcomes."""
        store.write_manifest(place, question, complete=False)
        write(place / LOG, b"")

    with kept(target, question, empty, force) as (folder, shown):
        if force and store.complete(folder):
            empty(folder)  # the old table and page stay until the new ones are written
        yield ValidationLog(folder, shown, question)


def frame(outcomes: Sequence[Outcome]) -> pl.DataFrame:
    """Return a polars table of outcomes with columns `PART_s` for each part and `peer_TOOL_s` for each tool, null if missing."""
    import polars as pl  # `clustersim calibrate` comes here without a table to write

    parts = dict.fromkeys(name for outcome in outcomes for name in outcome["breakdown_s"])
    peers = dict.fromkeys(name for outcome in outcomes for name in outcome["peers_s"])
    rows = [
        {
            **{key: value for key, value in outcome.items() if key not in ("breakdown_s", "assumed", "peers_s")},
            "assumed": "; ".join(outcome["assumed"]),
            **{f"{name}_s": outcome["breakdown_s"].get(name) for name in parts},
            **{f"peer_{name}_s": outcome["peers_s"].get(name) for name in peers},
        }
        for outcome in outcomes
    ]
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)


def _read(path: Path) -> dict[Key, Outcome]:
    """Return the outcomes of a log, and remove damaged lines and failed runs from it, so that these runs are repeated."""
    *lines, truncated = path.read_bytes().split(b"\n")
    entries = [(text, entry) for text in lines if (entry := _entry(text)) is not None]
    if truncated or len(entries) < len(lines):
        write(path, b"".join(text + b"\n" for text, _ in entries))
    return {key: outcome for _, (key, outcome) in entries}


def _entry(text: bytes) -> tuple[Key, Outcome] | None:
    """Return the key and the outcome of a line; None if it is damaged, from another release, or of a failed run."""
    try:
        entry = json.loads(text)
        change, outcome = entry["ablation"], dict(entry["run"])
        complete = isinstance(change, str) and isinstance(outcome["id"], str) and outcome.keys() == FIELDS
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return ((change, outcome["id"]), outcome) if complete and outcome["status"] in ("ok", "refused") else None
