"""One YAML file per GPU: datasheet figures, each with its source. `load("h100")` finds a GPU by name, alias or path."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from clustersim.config.fields import validate
from clustersim.config.gpu import Gpu
from clustersim.config.yaml import read, read_packaged
from clustersim.errors import InputError, UnknownNameError, shown, suggest
from clustersim.files import exists

FOLDER = Path(__file__).parent
"""Folder of the YAML files."""
VENDOR = re.compile(r"nvidia|amd|instinct|tesla|geforce|tensor core|(?<=[\s_])gpus?$")
"""Words in names that do not identify a chip."""
FORM = re.compile(r"sxm|pcie|nvl(?!\d)")
"""Form factors in the names of shipped GPUs."""
BOARD = re.compile(
    r"[\s_-]*(?:sxm\d?|pcie|nvl(?:\d+)?|superchip|oam|\d+ ?gi?b?(?![a-z])|\d+w|ac|hbm\d\w?)(?=[\s_-]|$)|[\s_]*\(.*"
)
"""Parts of a name after the chip's name: form factor, memory, power and other properties of the board."""


def load(name: str, folder: Path | None = None) -> Gpu:
    """Return the GPU with that name or alias (case does not matter), or the one described by the YAML file at that path.

    folder: folder of the file that names the path, which is tried first; then the working directory. Raise
    UnknownNameError with the nearest match, and ConfigError for an error in the file.
    """
    if name.endswith((".yaml", ".yml")):
        relative = (folder or Path()) / name
        return _foreign(relative if exists(relative) or not exists(name) else Path(name))
    direct = FOLDER / f"{name.lower()}.yaml"
    if exists(direct):
        return _shipped(direct.stem)
    known = {alias.lower(): gpu for gpu in everything() for alias in (gpu.name, *gpu.aliases)}
    if name.lower() not in known:
        hint = suggest(name.lower(), known, {gpu.name for gpu in known.values()})
        raise UnknownNameError(f"unknown GPU {shown(name)}; {hint}, a YAML file, or a node of `clustersim list nodes`")
    return known[name.lower()]


def spelled(text: str) -> Gpu | None:
    """Return the shipped GPU that a text such as `NVIDIA H100 SXM5 80 GB` names; None if no GPU matches.

    The chip decides, then the form factor (by default SXM), then the memory.
    """
    plain = VENDOR.sub("", text.lower()).strip()
    known = {VENDOR.sub("", alias.lower()).strip(): gpu for gpu in everything() for alias in (gpu.name, *gpu.aliases)}
    chips: dict[str, list[Gpu]] = {}
    for name, gpu in known.items():
        chips.setdefault(BOARD.sub("", name), []).append(gpu)
    if plain in known and BOARD.sub("", plain) != plain:
        return known[plain]
    words = re.sub(r"[\s_]+", "-", plain)
    mentioned = [chip for chip in chips if re.search(rf"(?<![a-z0-9]){re.escape(chip)}(?![a-z0-9])", words)]
    if not mentioned:
        return None
    candidates = chips[max(mentioned, key=len)]
    form, memory = FORM.search(words), re.search(r"(\d+)-?gi?b?(?![a-z])", words)
    boards = [gpu for gpu in candidates if (form[0] if form else "sxm") in gpu.name] or candidates
    usual = known.get(max(mentioned, key=len), boards[0])
    if memory:
        return min(boards, key=lambda gpu: (abs(gpu.memory / 2**30 - float(memory[1])), gpu is not usual))
    return usual if usual in boards else max(boards, key=lambda gpu: gpu.memory)


def _foreign(path: Path) -> Gpu:
    """Return the GPU of a user's file. Raises InputError for the name of a shipped GPU, as the name selects measurements."""
    gpu = validate(Gpu, read(path))
    shipped = FOLDER / f"{gpu.name}.yaml"
    if exists(shipped) and path.exists() and not shipped.samefile(path):
        raise InputError(
            f"{path}: {gpu.name!r} is a shipped GPU with measured kernels of its own; give this one another name, and "
            f"`like: {gpu.name}` if it is the same chip"
        )
    return gpu


def everything() -> list[Gpu]:
    """Return all shipped GPUs, sorted by name."""
    return [_shipped(name) for name in sorted(names())]


def names() -> frozenset[str]:
    """Return the names of all shipped GPUs."""
    files = os.listdir(FOLDER)  # noqa: PTH208 - dozens of Path objects take longer than the rest
    return frozenset([file.removesuffix(".yaml") for file in files if file.endswith(".yaml")])


@cache
def _shipped(name: str) -> Gpu:
    return validate(Gpu, read_packaged(FOLDER / f"{name}.yaml"))
