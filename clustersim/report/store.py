"""`results/<name>/`: a result on disk, written next to its place and then moved there as a whole.

A folder is replaced only if its manifest says that it is a result and it has no foreign files. The manifest records the
question, so that the result of another question is never replaced without permission.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim import plugins
from clustersim.config.fields import validate
from clustersim.config.results import FORMAT, Manifest, RunSummary, parsed
from clustersim.config.yaml import Document, Position
from clustersim.errors import ConfigError, InputError, nearest
from clustersim.files import Inputs, digest, read_bytes
from clustersim.version import __version__
from clustersim.writing import (
    ASIDE,
    LOCK,
    check_parent,
    holder,
    move_files,
    settled,
    unfinished,
    unwritable,
    workplace,
    write,
)

if TYPE_CHECKING:
    import polars as pl

    from clustersim.report.parquet import TableColumns

MANIFEST = "manifest.json"
SUMMARY = "summary.json"
NAMES = frozenset(
    {
        *(MANIFEST, SUMMARY, "trace.json.gz"),  # a run, or several jobs
        *("spans.parquet", "ranks.parquet", "links.parquet", "memory.parquet", "trace-detailed.json.gz"),  # a run
        *("jobs.parquet", "steps.parquet"),  # several jobs
        *("points.jsonl", "points.parquet", LOCK),  # a sweep
        *("runs.jsonl", "runs.parquet", "report.html"),  # a validation
    }
)
"""Names of all files that a result can have."""
RESULTS = Path("results")
"""Default folder of results."""
ELSEWHERE = "choose another place with --out"
_MANIFEST_BYTES = 64 * 2**20


def question_of(command: str, parts: Mapping[str, Path], read: Inputs, options: Mapping[str, Any]) -> Manifest:
    """Return the manifest of a question: its inputs with SHA-256, all options that change the numbers, and versions.

    `parts` are {part of the input, such as `topology`: its file}. Files that these name are in `read` and count, as do plugins.
    The digest `question` covers command, version, content of inputs and options: equal questions have equal answers. A run keeps
    the text of its files, so that its result stands alone.
    """
    import numpy
    import simpy

    named = {str(path) for path in parts.values()}
    others = {f"included {i}": path for i, path in enumerate(sorted(read.keys() - named), 1)}
    places = {**{part: str(path) for part, path in parts.items()}, **others}
    chosen = {**options, **({"plugins": list(plugins.permits())} if plugins.permits() else {})}
    contents = {part: digest(read[path]) for part, path in places.items()}
    text = json.dumps([command, __version__, sorted(contents.items()), chosen], sort_keys=True, default=str)
    data = {
        "clustersim": __version__,
        "format": FORMAT,
        "command": command,
        "question": digest(text.encode("utf-8", "surrogatepass")),
        "inputs": {
            part: {"path": path, "sha256": contents[part]} | ({"text": read[path].decode()} if command == "run" else {})
            for part, path in places.items()
        },
        "options": chosen,
        "seed": 0,
        "versions": {"numpy": numpy.__version__, "simpy": simpy.__version__},
    }
    return Manifest.model_validate(json.loads(json.dumps(data, default=str)))


def folder_for(question: Manifest, out: Path | None, default: str, force: bool = False) -> Path:
    """Return the folder for an answer: `out`, or `results/` and the default name, with a number if that is taken.

    Raises InputError if `out` has other content, unless it is a result and `force` is set.
    """
    if out is not None:
        check_target(out, question)
        stored = manifest(_real(out))
        if stored and stored.question != question.question and not force:
            files = ", ".join([Path(part.path).name for part in stored.inputs.values()][:3])
            stored_question = f"{stored.command or 'run'} of {files}" if files else "of other inputs or options"
            raise InputError(
                f"{out}: holds another result ({stored_question}); {ELSEWHERE}, or replace it with --force"
            )
        return out
    target = next(path for path in _numbered(RESULTS / default) if _is_available(path, question))
    check_target(target)
    return target


def _numbered(path: Path) -> Iterator[Path]:
    """Yield a path, then the same with the numbers from 2 on at its end."""
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in count(2))


def _is_available(path: Path, question: Manifest, force: bool = False) -> bool:
    """Return whether an answer may be put at a path: nothing is there, or a result that it replaces, with `force` any result."""
    if not os.path.lexists(path):
        return True
    replaceable = path.is_dir() and _obstacle(path) is None
    return replaceable and (force or not any(path.iterdir()) or question_digest(path) == question.question)


def question_digest(folder: Path) -> str | None:
    """Return the digest of the question that a result answers; None without a result or a recorded question."""
    stored = manifest(folder)
    return stored.question if stored else None


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the content of `summary.json` of a result. Raises InputError if there is none or it is not a JSON object."""
    path = folder / SUMMARY
    try:
        data = parsed(read_bytes(path, "the summary of a result", _MANIFEST_BYTES))
    except ValueError as error:
        raise InputError(
            f"{path}: not valid JSON ({str(error)[:60]}); write the result again with `clustersim run`"
        ) from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: not a summary of a result; write it again with `clustersim run`")
    return data


def run_summary(folder: Path) -> RunSummary:
    """Return the summary of a run. Raises InputError if it does not have this release's format."""
    path = str(folder / SUMMARY)
    try:
        return validate(RunSummary, _stored(path, read_summary(folder)))
    except ConfigError as error:
        raise InputError(f"{error}; run the simulation again") from error


def complete(folder: Path) -> bool:
    """Return whether a result that is written step by step (of a sweep or validation) is finished."""
    stored = manifest(folder)
    return stored is not None and stored.complete is True


def manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a result; None if this program wrote none.

    For a damaged one or another release's, it has version and command, and what is wrong with the rest.
    """
    try:
        with (folder / MANIFEST).open("rb") as file:
            data = parsed(file.read(_MANIFEST_BYTES))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if not isinstance(data, dict) or not isinstance(version := data.get("clustersim"), str):
        return None
    try:
        return validate(Manifest, _stored(str(folder / MANIFEST), data))
    except ConfigError as error:
        command = data.get("command")
        known = {"clustersim": version, "command": command if isinstance(command, str) else ""}
        return Manifest.model_construct(None, **known, damaged=error.message)


def write_manifest(folder: Path, data: Manifest, **progress: object) -> None:
    """Write the manifest of a result to a folder. Raises OSError.

    progress: `points` of a sweep, and `complete`, whether a folder that is written step by step is finished.
    """
    write_json(folder / MANIFEST, data.written() | progress)


def _stored(path: str, data: dict[str, Any]) -> Document:
    """Return plain data as a document whose errors name file and key."""
    return Document(path, data, {(): Position(0, 0)})


def manifest_of(folder: Path, command: str) -> Manifest:
    """Return the manifest of a result of `command`. Raises InputError, which says what is there instead, if there is none."""
    stored = manifest(folder)
    wanted = f"give the folder of a {command}, such as one below results/"
    if stored is None and _is_file(folder / MANIFEST):
        raise InputError(
            f"{folder}/{MANIFEST}: is cut off or damaged, so that nothing says what was run; run the simulation again"
        )
    if stored is None:
        what = "a file" if folder.is_file() else "no result"
        raise InputError(f"{folder}: is {what}; {nearest(str(folder), _results(folder.parent, RESULTS))}{wanted}")
    if stored.damaged or not stored.command:
        wrong = stored.damaged or "command is missing"
        why = f"is damaged, or of another release ({wrong}), and so says nothing that was run"
        raise InputError(f"{folder}/{MANIFEST}: {why}; run the simulation again")
    if stored.command != command:
        raise InputError(f"{folder}: is the result of `clustersim {stored.command}`, not of a {command}; {wanted}")
    return stored


def _results(*above: Path) -> Iterator[str]:
    """Yield the folders inside those in `above` that are results of this program."""
    for folder in above:
        with suppress(OSError):
            yield from (str(path) for path in folder.iterdir() if _is_file(path / MANIFEST))


def _is_fixed(folder: Path) -> bool:
    """Return whether a folder is the working directory or a mount, which cannot be replaced; another process may remove it."""
    try:
        return folder.samefile(Path.cwd()) or os.path.ismount(folder)
    except (FileNotFoundError, NotADirectoryError):
        return False


def check_target(target: Path, question: Manifest | None = None) -> None:
    """Raise InputError if no result can be written to `target`, before any work is done.

    An existing folder must be empty or an older result, and its content will be replaced. The working directory and a mount
    cannot be replaced: they must be empty or have an answer to the question `question_digest`, once it is known.
    """
    if not str(target).isprintable():
        raise InputError(f"{str(target)!r}: not a valid folder name; {ELSEWHERE}")
    try:
        real = _real(target)
        if _is_file(real):
            raise InputError(f"{target}: is a file, not a folder; {ELSEWHERE}")
        if (stranger := _obstacle(real)) is not None:
            raise InputError(
                f"{target}: has files that do not belong to a result ({stranger}); choose an empty or new folder with --out"
            )
        finished = _is_fixed(real) and any(not unfinished(path.name) for path in real.iterdir())
        if question and finished and question_digest(real) != question.question:
            what = "a mounted file system" if os.path.ismount(real) else "the working folder"
            raise InputError(f"{target}: is {what}, which cannot be replaced; name a folder inside with --out")
        check_parent(real / MANIFEST if _is_fixed(real) else real, str(target), ELSEWHERE)
        if who := holder(real):
            raise in_use(target, who)
    except OSError as error:
        raise unwritable(target, error, ELSEWHERE) from error


def in_use(target: Path, who: str) -> InputError:
    """Return the error for a folder that another process (`who`, in words) writes."""
    return InputError(f"{target}: is being written by {who}; wait for it, or {ELSEWHERE}")


def _real(target: Path) -> Path:
    """Return the path with links followed, also if the last target does not exist yet. Raises OSError for a cycle of links."""
    try:
        return target.resolve()
    except RuntimeError as error:  # Python 3.12 and older: a cycle of links
        raise OSError(str(error)) from error


def _is_file(target: Path) -> bool:
    """Return whether something other than a folder is there, with one call: another process may be replacing it."""
    try:
        return not stat.S_ISDIR(target.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return target.is_symlink()


def _obstacle(folder: Path) -> str | None:
    """Return the reason not to replace a folder: the name of a foreign file, or its missing manifest. None if there is none.

    If another process replaces the folder during the check, it is repeated.
    """
    while (identity := _identity(folder)) is not None:
        with suppress(FileNotFoundError, NotADirectoryError):
            reason = _obstacle_now(folder)
            if _identity(folder) == identity:
                return reason
    return None


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return (device, inode) of a folder, by which a replaced one is recognized; None if there is none."""
    try:
        status = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _obstacle_now(folder: Path) -> str | None:
    """Return the name of a foreign file in a folder, or that its manifest is missing, read once; None if it can be replaced."""
    names = sorted(path for path in folder.iterdir() if not unfinished(path.name))
    for path in names:
        if path.name not in NAMES or not stat.S_ISREG(path.lstat().st_mode):
            return path.name
    return f"no {MANIFEST} of clustersim" if names and manifest(folder) is None else None


def put(target: Path, question: Manifest, fill: Callable[[Path], None], force: bool = False) -> Path:
    """Let `fill` write a folder, move it to `target`, and return its path.

    Another result that another process has put there is replaced with `force`, else the path gets the next number. A folder that
    cannot be filled leaves nothing. Raises InputError if the path cannot be written, and DiskFullError if no space is left.
    """
    check_target(target, question)
    real = _real(target)
    stands = _is_fixed(real)
    home = real if stands else real.parent
    new_parents = [parent for parent in real.parents if not parent.exists()]
    try:
        home.mkdir(parents=True, exist_ok=True)
        with workplace(home) as work:
            new = work / "new"
            new.mkdir()
            fill(new)
            if unknown := {path.name for path in new.iterdir()} - NAMES:
                raise ValueError(f"{unknown}: a folder with these is no result; add them to store.NAMES")
            with settled(home):
                free = (path for path in _numbered(real) if _is_available(path, question, force) and not holder(path))
                final = real if stands else next(free)
                if stands:
                    move_files(new, final, MANIFEST)  # which identifies the other files
                else:
                    _replace(new, final, work / ASIDE)
        new_parents = []
    except OSError as error:
        raise unwritable(target, error, ELSEWHERE) from error
    finally:
        for parent in new_parents:
            with suppress(OSError):
                parent.rmdir()
    return target if final == real else target.with_name(final.name)


def _replace(new: Path, target: Path, aside: Path) -> None:
    """Move `new` to `target`, which is first moved to `aside`. The caller restores `aside` if `target` stays empty."""
    aside.mkdir()
    if target.exists():
        target.rename(aside / target.name)
    new.rename(target)
    aside.rename(aside.with_name("replaced"))


def write_json(path: Path, data: Any) -> None:
    """Write plain data as indented JSON. Raises OSError if it cannot be written."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    write(path, text.encode("utf-8", "backslashreplace"))


def write_table(path: Path, table: TableColumns | pl.DataFrame) -> None:
    """Write a table as parquet from memory, so that a full disk raises OSError as for any other file."""
    from io import BytesIO

    from clustersim.report.parquet import encoded

    if isinstance(table, Mapping):
        write(path, encoded(table))
    else:
        table.write_parquet(buffer := BytesIO())
        write(path, buffer.getvalue())
