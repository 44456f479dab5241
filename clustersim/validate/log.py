"""The folder of a validation: every outcome is on disk as soon as it is known; the same command goes on where one stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clustersim.report import store
from clustersim.report.store import MANIFEST, Question
from clustersim.sweeps.log import kept
from clustersim.validate.evaluate import Outcome
from clustersim.writing import write

LOG = "runs.jsonl"
Key = tuple[str, str]
"""What was changed, such as `clocks=boost` or nothing, and the id of the run."""


class ValidationLog:
    """The outcomes of a folder; `known` as it was opened. folder: where it is; shown: as the user wrote it."""

    def __init__(self, folder: Path, shown: Path, asked: Question) -> None:
        self.folder, self.shown, self.asked = folder, shown, asked
        self.known = _read(folder / LOG)

    def append(self, change: str, outcome: Outcome) -> None:
        """Add one outcome, so that a crash loses at most the one being written. Raises OSError."""
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"ablation": change, "run": outcome}) + "\n")

    def finish(self, outcomes: Sequence[Outcome], page: str) -> None:
        """Write runs.parquet and report.html, and mark the validation as complete. Raises OSError."""
        store.write_table(self.folder / "runs.parquet", frame(outcomes))
        write(self.folder / "report.html", page.encode())
        store.write_json(self.folder / MANIFEST, {**self.asked.manifest(), "complete": True})


@contextmanager
def opened(target: Path, asked: Question, force: bool = False) -> Iterator[ValidationLog]:
    """Yield the log of the folder `target`: what an unfinished validation of the same question left, else an empty one.

    Raises InputError as `clustersim.sweeps.log.kept`.
    """

    def empty(place: Path) -> None:
        store.write_json(place / MANIFEST, {**asked.manifest(), "complete": False})
        (place / LOG).touch()

    if store.question(target) == asked.digest and _complete(target):
        target = store.put(target, asked, empty)  # what was forecast is to be forecast again
    with kept(target, asked, empty, force) as (folder, shown):
        yield ValidationLog(folder, shown, asked)


def _complete(target: Path) -> bool:
    return bool(json.loads((target / MANIFEST).read_bytes()).get("complete"))


def frame(outcomes: Sequence[Outcome]) -> Any:
    """Return outcomes as a polars table, the parts of the step as columns of their own."""
    import polars as pl

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
    """Return the outcomes of a log; a last line that a crash has torn is cut off, so that new ones follow whole lines."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        write(path, whole)
    entries = [json.loads(line) for line in whole.split(b"\n") if line]
    return {(entry["ablation"], entry["run"]["id"]): entry["run"] for entry in entries}
