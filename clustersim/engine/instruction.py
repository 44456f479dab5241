"""Instructions of a script: kernels with the collectives between them, messages, and concurrent collectives.

`chunk` is the index of a stage among those of the rank, so that equivalent ranks have equal instructions; -1: no stage.
"""

from __future__ import annotations

from typing import NamedTuple

from clustersim.engine.program import PassMessage, Wait
from clustersim.model.operator import Collective, Steps


class Compute(NamedTuple):
    """Kernels and the collectives between them, in lock-step with the group of `family` (None: alone)."""

    kind: str
    chunk: int
    items: Steps
    family: str | None
    tensors: int = 0
    """Number of parameter tensors with a launch each."""
    parts: int = 0
    """Number of parts of gathered tensors that are copied into place, with a launch each."""


class Send(NamedTuple):
    """A message to the rank of the stage `ahead` (1 or -1) of the stage of `chunk`."""

    chunk: int
    ahead: int
    collective: Collective
    wait: bool


class Launch(NamedTuple):
    """Start of a collective on its stream, after the launches on another stream that it waits for."""

    chunk: int
    collective: Collective
    after: Wait | None = None


class Drain(NamedTuple):
    """Point where the host waits until its GPU is idle."""

    chunk: int


Instruction = Compute | Send | PassMessage | Launch | Wait | Drain
