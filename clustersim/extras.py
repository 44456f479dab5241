"""Libraries that only some commands need and that come with an extra, such as `pip install "clustersim[torch]"`."""

from __future__ import annotations

from importlib.util import find_spec

from clustersim.errors import InputError


def need_torch(what: str) -> None:
    """Raise InputError when PyTorch is not installed; `what` needs it and begins the sentence."""
    if find_spec("torch") is None:
        raise InputError(f'{what} needs PyTorch, which is not installed; run pip install "clustersim[torch]"')


def need_ray(what: str) -> None:
    """Raise InputError when Ray is not installed; `what` needs it and begins the sentence."""
    if find_spec("ray") is None:
        raise InputError(f'{what} needs Ray, which is not installed; run pip install "clustersim[ray]"')


def need_optuna(what: str) -> None:
    """Raise InputError when optuna is not installed; `what` needs it and begins the sentence."""
    if find_spec("optuna") is None:
        raise InputError(f'{what} needs optuna, which is not installed; run pip install "clustersim[search]"')
