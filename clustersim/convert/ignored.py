"""Megatron's arguments that a file may hold and that do not change the time of a step here (megatron/training, megatron/core)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from clustersim.convert.table import words


class Ignored(NamedTuple):
    """Arguments of a file that were left out, as written there: those without effect on time, and those not modelled."""

    no_effect: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()


NOTHING = Ignored()


def sorted_out(keys: Iterable[object]) -> Ignored:
    """Return which of some keys are ignored, and why; hyphens count as underscores."""
    names = {str(key): str(key).rsplit(".", 1)[-1].replace("-", "_") for key in keys}
    return Ignored(
        tuple(key for key, name in names.items() if name in NO_EFFECT),
        tuple(key for key, name in names.items() if name in NOT_MODELLED),
    )


NO_EFFECT = frozenset(words("megatron_no_effect.txt"))
"""Learning rates, data, tokenizers, checkpoints, logs, numerics, what other arguments say in full: a step takes as long with them
as without."""

NOT_MODELLED = frozenset(words("megatron_not_modelled.txt"))
"""Fusions, CUDA graphs and overlaps that change a step somewhat, and that clustersim does not tell apart."""
