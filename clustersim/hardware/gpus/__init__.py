"""One YAML a GPU: datasheet figures, each with its source. `load("h100")` finds one by name, alias or path."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from clustersim.config.fields import validate
from clustersim.config.gpu import Gpu
from clustersim.config.yaml import own, read
from clustersim.errors import InputError, UnknownNameError, shown, suggest
from clustersim.files import exists

FOLDER = Path(__file__).parent


def load(name: str, folder: Path | None = None) -> Gpu:
    """Return the GPU of that name or alias (case does not matter), or the one that a path to a YAML file describes.

    The path starts in `folder`, that of the file which names it, or else in the working directory. Raises UnknownNameError
    with the nearest match, and ConfigError for what is wrong in the file.
    """
    if name.endswith((".yaml", ".yml")):
        beside = (folder or Path()) / name
        return _foreign(beside if exists(beside) or not exists(name) else Path(name))
    direct = FOLDER / f"{name.lower()}.yaml"
    if exists(direct):
        return _shipped(direct.stem)
    known = {alias.lower(): gpu for gpu in everything() for alias in (gpu.name, *gpu.aliases)}
    if name.lower() not in known:
        hint = suggest(name.lower(), known, {gpu.name for gpu in known.values()})
        raise UnknownNameError(f"unknown GPU {shown(name)}; {hint}, or a path to a YAML file")
    return known[name.lower()]


def _foreign(path: Path) -> Gpu:
    """Return the GPU of a user's file, which may not take the name of a shipped one: what was measured goes by names."""
    gpu = validate(Gpu, read(path))
    shipped = FOLDER / f"{gpu.name}.yaml"
    if exists(shipped) and not shipped.samefile(path):
        raise InputError(
            f"{path}: {gpu.name!r} is a shipped GPU with measured kernels of its own; give this one another name, and "
            f"`like: {gpu.name}` if it is the same chip"
        )
    return gpu


def everything() -> list[Gpu]:
    """Return all shipped GPUs, by name."""
    return [_shipped(name) for name in sorted(names())]


def names() -> frozenset[str]:
    """Return the names of all shipped GPUs."""
    return frozenset(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def _shipped(name: str) -> Gpu:
    return validate(Gpu, own(FOLDER / f"{name}.yaml"))
