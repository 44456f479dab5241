"""The instructions of a script: kernels with the collectives between them, messages, and collectives that run beside them.

`chunk` is the place of a stage among those of the rank, so that ranks which do alike have the same instructions; -1: no stage.
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
    """Parameter tensors that it launches something for, one by one."""
    parts: int = 0
    """Parts of gathered tensors that it copies into place, one by one."""


class Send(NamedTuple):
    """A message to the rank that holds the stage `ahead` (1, or -1) of that of `chunk`."""

    chunk: int
    ahead: int
    collective: Collective
    wait: bool


class Launch(NamedTuple):
    """Begin a collective on its stream, not before what was launched on another is over."""

    chunk: int
    collective: Collective
    after: Wait | None = None


class Drain(NamedTuple):
    """The host waits here until its GPU is idle."""

    chunk: int


Instruction = Compute | Send | PassMessage | Launch | Wait | Drain
