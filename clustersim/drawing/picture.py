"""A picture in a file, in the form that the ending of its name says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from clustersim import writing
from clustersim.drawing import image, svg
from clustersim.drawing.canvas import Canvas

ENDINGS = (".svg", ".png", ".pdf")


def check(option: str, path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise InputError when no picture can be written to `path`, which `option` names, before any work is done."""
    writing.check_output(option, path, ENDINGS, inputs)
    if path.suffix.lower() in image.FORMS:
        image.available()


def write(path: Path, canvas: Canvas) -> None:
    """Write a picture. Raises InputError when the place cannot be written, DiskFullError when no space is left."""
    ending = path.suffix.lower()
    writing.save(path, image.content(canvas, ending) if ending in image.FORMS else svg.text(canvas).encode())
