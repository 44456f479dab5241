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
    """One call of a PyTorch operator."""

    place: str
    """Where in the model."""
    op: str
    """Its ATen name."""
    phase: PassPhase
    kernels: tuple[Kernel, ...]
    """None for a view."""
    reads: tuple[tuple[int, float], ...]
    """The nodes whose outputs it reads, OUTSIDE for weights and inputs, and the bytes of each."""
    output: float
    """Bytes that it leaves."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A model as it runs on one GPU."""

    name: str
    nodes: tuple[OperatorCall, ...]
    parameters: int
    unknown: tuple[str, ...] = ()
    """Names of operators without an entry."""
    memory: Memory | None = None
    """Bytes that it needs there; None where unknown."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All launches in order."""
        return tuple(kernel for node in self.nodes for kernel in node.kernels)

    @property
    def flop(self) -> float:
        """FLOP of all matrix products and attention kernels."""
        return math.fsum(k.flop for k in self.kernels if k.k)


SEQUENCE = 2048
"""Tokens of a sequence where none is asked for and the model takes as many."""
EAGER = ("fp32", "tf32", "fp16", "bf16")
"""Data types that PyTorch runs eagerly; TF32 is FP32 in memory, its products run on tensor cores."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a model: None leaves it to the model. `batch` and `seq` count sequences and tokens of each."""

    training: bool = False
    batch: int | None = None
    seq: int | None = None
    dtype: str | None = None
    fusion: bool = False
