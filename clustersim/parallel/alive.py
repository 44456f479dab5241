"""The fullest moment of a pass of a stage: what its layers keep then, and what lives only while an operator runs.

A forward pass adds what is kept, operator by operator, and a backward pass frees it in reverse. So a stage may be fullest at
the loss, with the activations of all its blocks, or in the backward pass of its last block, when those of the loss are gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from clustersim.model.operator import Layer


class Fullest(NamedTuple):
    """Bytes of one microbatch at the fullest moment of a pass."""

    kept: float
    """Activations of the layers up to the one that runs, with what recomputation brought back."""
    temporary: float
    """What lives beside them."""

    @property
    def total(self) -> float:
        """Both."""
        return self.kept + self.temporary


def fullest(layers: Iterable[tuple[Layer, float]], *, backward: bool) -> Fullest:
    """Return the fullest moment of a pass of a stage: of a run of like layers the last one, below which most is kept.

    layers: one of each run of like layers, with the bytes that all of the run keep.
    """
    below, found = 0.0, [Fullest(0.0, 0.0)]
    for layer, kept in layers:
        below += kept
        again = max((rerun.working for rerun in layer.reruns), default=0.0) if backward else 0.0
        found.append(Fullest(below + again, beside(layer, backward=backward)))
    return max(found, key=lambda one: one.total)


def beside(layer: Layer, *, backward: bool) -> float:
    """Return by how much a layer in its pass exceeds all that it keeps.

    Operators that come later have nothing to keep yet, or no more.
    """
    alive = [op.backward_alive if backward else op.forward_alive for op in layer.operators]
    kept = list(accumulate(op.saved for op in layer.operators))
    return max(max(before + own for before, own in zip(kept, alive, strict=True)) - kept[-1], 0.0)
