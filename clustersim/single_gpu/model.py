"""A model on one GPU as a graph: PyTorch operator calls in order, with the kernels of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from clustersim.model.kernel import Kernel
from clustersim.parallel.memory import Memory

PassPhase = Literal["forward", "backward", "accumulate"]
OUTSIDE = -1
"""Index that stands for the producer of weights and inputs."""


class OperatorCall(NamedTuple):
    """One call of a PyTorch operator."""

    place: str
    """Name of the module or layer that makes the call."""
    op: str
    """ATen name of the operator."""
    phase: PassPhase
    kernels: tuple[Kernel, ...]
    """Kernels that the call launches; empty for a view."""
    reads: tuple[tuple[int, float], ...]
    """(index of the producing call or OUTSIDE, bytes) of each tensor that the call reads."""
    output: float
    """Bytes of the result."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Operator calls of a model on one GPU, in order."""

    name: str
    nodes: tuple[OperatorCall, ...]
    parameters: int
    unknown: tuple[str, ...] = ()
    """Names of operators without an entry in the price table."""
    memory: Memory | None = None
    """Memory that the model needs; None if unknown."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels in the order of their launches."""
        return tuple(kernel for node in self.nodes for kernel in node.kernels)

    @property
    def flop(self) -> float:
        """FLOP of all matrix products and attention kernels."""
        return math.fsum(k.flop for k in self.kernels if k.k)


SEQUENCE = 2048
"""Default number of tokens per sequence, if the model accepts that many."""
EAGER = ("fp32", "tf32", "fp16", "bf16")
"""Data types that PyTorch runs eagerly. TF32 is FP32 in memory, with GEMMs on tensor cores."""


@dataclass(frozen=True, slots=True)
class Request:
    """Options of a prediction; None leaves a value to the model. `batch` counts sequences, `seq` tokens of each."""

    training: bool = False
    batch: int | None = None
    seq: int | None = None
    dtype: str | None = None
    fusion: bool = False
