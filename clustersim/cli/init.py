"""`clustersim init [FOLDER]`: write a commented cluster and workload that run as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clustersim.cli.answer import written_out
from clustersim.cli.commands import argument, option
from clustersim.cli.schema import FileKind, document
from clustersim.errors import InputError

TEMPLATES = Path(__file__).with_name("templates")
FILES: dict[FileKind, str] = {"cluster": "cluster.yaml", "workload": "workload.yaml"}
"""Name of the file to write for each kind."""


def init(
    folder: Annotated[Path, argument("Folder to write to; created if missing.", "FOLDER")] = Path(),
    schemas: Annotated[bool, option("Also write JSON Schemas, for editors that complete and check.")] = False,
    force: Annotated[bool, option("Replace existing files.")] = False,
) -> None:
    """Write a commented cluster and workload that run as they are."""
    made = {name: (TEMPLATES / name).read_text(encoding="utf-8") for name in FILES.values()}
    if schemas:
        for what, name in FILES.items():
            made[name] = f"# yaml-language-server: $schema={what}.schema.json\n{made[name]}"
            made[f"{what}.schema.json"] = written_out(document(what)) + "\n"
    _write(folder, made, force)
    beside = "" if folder == Path() else f"{folder}/"
    typer.echo(f"written: {', '.join(beside + name for name in made)}")
    typer.echo(f"now:     clustersim run {beside}cluster.yaml {beside}workload.yaml")


def _write(folder: Path, texts: dict[str, str], force: bool) -> None:
    """Write all files {name: text}. Raises InputError, and writes none, if one exists and `force` is not set."""
    from clustersim.writing import save, unwritable

    there = [name for name in texts if (folder / name).exists() or (folder / name).is_symlink()]
    if there and not force:
        raise InputError(f"{folder / there[0]}: is there already; give another folder, or replace it with --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    for name, text in texts.items():
        save(folder / name, text)
