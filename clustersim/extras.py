"""Libraries that only some commands need and that come with an extra, such as `pip install "clustersim[torch]"`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from clustersim.errors import InputError

Library = Literal["torch", "ray", "uvicorn", "matplotlib"]
_EXTRAS: dict[Library, tuple[str, str]] = {
    "torch": ("PyTorch", "torch"),
    "ray": ("Ray", "ray"),
    "uvicorn": ("uvicorn", "serve"),
    "matplotlib": ("matplotlib", "plots"),
}
"""{library: (its name in messages, name of the extra that installs it)}"""


def need(library: Library, what: str, otherwise: str = "") -> None:
    """Raise InputError if a library is not installed.

    what: the feature that needs it, with which the message begins. otherwise: another remedy than to install it.
    """
    if find_spec(library) is None:
        name, extra = _EXTRAS[library]
        remedy = f'run pip install "clustersim[{extra}]"{otherwise and f", or {otherwise}"}'
        raise InputError(f"{what} needs {name}, which is not installed; {remedy}")
