"""A graph: what PyTorch calls, in order, with the kernels of each call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from clustersim.model.kernel import Kernel
from clustersim.parallel.memory import Memory

PassPhase = Literal["forward", "backward", "accumulate"]
OUTSIDE = -1
"""The producer of weights and inputs."""


class OperatorCall(NamedTuple):
    """One call of a PyTorch operator.

    `place` is where in the model, `op` the ATen name; `kernels` is empty for a view. `reads` names the nodes whose outputs
    it reads and the bytes of each, OUTSIDE for weights and inputs; `output` is the bytes that it leaves.
    """

    place: str
    op: str
    phase: PassPhase
    kernels: tuple[Kernel, ...]
    reads: tuple[tuple[int, float], ...]
    output: float


@dataclass(frozen=True, slots=True)
class Graph:
    """A model as it runs on one GPU; `parameters` counts the elements of its weights, `unknown` names operators without an entry.

    memory: the bytes that it needs there, None where nobody said.
    """

    name: str
    nodes: tuple[OperatorCall, ...]
    parameters: int
    unknown: tuple[str, ...] = ()
    memory: Memory | None = None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All launches in order."""
        return tuple(kernel for node in self.nodes for kernel in node.kernels)

    @property
    def flop(self) -> float:
        """FLOP of all matrix products and attention kernels."""
        return math.fsum(k.flop for k in self.kernels if k.k)
