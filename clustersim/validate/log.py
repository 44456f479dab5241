"""The folder of a validation: every outcome is on disk as soon as it is known, and the same command resumes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clustersim.report import store
from clustersim.report.store import ELSEWHERE, Question
from clustersim.sweeps.log import kept
from clustersim.validate.evaluate import FIELDS, Outcome
from clustersim.writing import unwritable, write

if TYPE_CHECKING:
    import polars as pl

LOG = "runs.jsonl"
Key = tuple[str, str]
"""(change such as `clocks=boost`, or "", id of the run)"""


class ValidationLog:
    """Outcomes in a folder; `known` has those found when it was opened. folder: real path; shown: as the user wrote it."""

    def __init__(self, folder: Path, shown: Path, asked: Question) -> None:
        self.folder, self.shown, self.asked = folder, shown, asked
        self.known = _read(folder / LOG)

    def append(self, change: str, outcome: Outcome) -> None:
        """Add one outcome, so that a crash loses at most the one being written. Raises OSError if the log cannot be written."""
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"ablation": change, "run": outcome}) + "\n")

    def finish(self, outcomes: Sequence[Outcome], page: str) -> None:
        """Write runs.parquet and report.html, and mark the validation as complete. Raises InputError if that fails."""
        try:
            store.write_table(self.folder / "runs.parquet", frame(outcomes))
            write(self.folder / "report.html", page.encode())
            store.write_manifest(self.folder, self.asked.manifest(complete=True))
        except OSError as error:
            raise unwritable(self.shown, error, ELSEWHERE) from error


@contextmanager
def opened(target: Path, asked: Question, force: bool = False) -> Iterator[ValidationLog]:
    """Yield the log of the folder `target`, with the outcomes of an earlier validation of the same question.

    force: start a finished one again. Raises InputError if `target` has another result, and OSError if it cannot be written.
    """

    def empty(place: Path) -> None:
        """Write a manifest and a log without outcomes."""
        store.write_manifest(place, asked.manifest(complete=False))
        write(place / LOG, b"")

    with kept(target, asked, empty, force) as (folder, shown):
        if force and store.complete(folder):
            empty(folder)  # table and page stay until there are new ones
        yield ValidationLog(folder, shown, asked)


def frame(outcomes: Sequence[Outcome]) -> pl.DataFrame:
    """Return outcomes as a polars table, with a column for each part of the step."""
    import polars as pl  # `clustersim calibrate` comes here without a table to write

    parts = dict.fromkeys(name for one in outcomes for name in one["breakdown_s"])
    peers = dict.fromkeys(name for one in outcomes for name in one["peers_s"])
    rows = [
        {
            **{key: value for key, value in one.items() if key not in ("breakdown_s", "assumed", "peers_s")},
            "assumed": "; ".join(one["assumed"]),
            **{f"{name}_s": one["breakdown_s"].get(name) for name in parts},
            **{f"peer_{name}_s": one["peers_s"].get(name) for name in peers},
        }
        for one in outcomes
    ]
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)


def _read(path: Path) -> dict[Key, Outcome]:
    """Return the outcomes of a log. Truncated lines are removed, and failed runs are left out to be repeated."""
    *lines, torn = path.read_bytes().split(b"\n")
    found = [(text, entry) for text in lines if (entry := _entry(text)) is not None]
    if torn or len(found) < len(lines):
        write(path, b"".join(text + b"\n" for text, _ in found))
    return {key: outcome for _, (key, outcome) in found}


def _entry(text: bytes) -> tuple[Key, Outcome] | None:
    """Return the key and the outcome of a line; None if it is damaged, from another release, or of a failed run."""
    try:
        entry = json.loads(text)
        change, outcome = entry["ablation"], dict(entry["run"])
        whole = isinstance(change, str) and isinstance(outcome["id"], str) and outcome.keys() == FIELDS
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return ((change, outcome["id"]), outcome) if whole and outcome["status"] in ("ok", "refused") else None
