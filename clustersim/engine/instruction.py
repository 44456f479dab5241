"""The instructions of a script: kernels with the collectives between them, messages, and collectives that run beside them."""

from __future__ import annotations

from typing import NamedTuple

from clustersim.model.operator import Collective, Steps


class Compute(NamedTuple):
    """Kernels and the collectives between them, in lock-step with the group of `family` (None: alone)."""

    kind: str
    stage: int
    items: Steps
    family: str | None
    tensors: int = 0
    """Parameter tensors that it launches something for, one by one."""
    parts: int = 0
    """Parts of gathered tensors that it copies into place, one by one."""


class Send(NamedTuple):
    """A message to the rank that holds `stage`."""

    stage: int
    collective: Collective
    wait: bool


class Recv(NamedTuple):
    """Wait for the message for `stage` in `family`."""

    stage: int
    family: str


class Wait(NamedTuple):
    """Wait until all that were launched on the stream of a family are over, or the first `first` of the step."""

    family: str
    first: int | None = None
    but: int = 0
    """So many of the last ones are left out."""


class Launch(NamedTuple):
    """Begin a collective on its stream, not before what was launched on another is over."""

    stage: int
    collective: Collective
    after: Wait | None = None


class Drain(NamedTuple):
    """The host waits here until its GPU is idle."""

    stage: int


Instruction = Compute | Send | Recv | Launch | Wait | Drain
