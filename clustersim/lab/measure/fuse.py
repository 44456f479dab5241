"""Functions fused by torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clustersim.lab.measure.device import Device


def compiled(call: Callable[..., Any], device: Device) -> Callable[..., Any]:
    """Return `call` compiled for the shapes of its first run; on a CPU traced only, which needs no compiler."""
    import torch
    import torch._functorch.config as settings

    torch._dynamo.reset()  # it compiles a function for eight shapes at most, and then runs it eagerly without a word
    settings.donated_buffer = False  # else a backward pass runs once
    backend = "inductor" if device.real else "aot_eager"
    made: Callable[..., Any] = torch.compile(call, backend=backend, dynamic=False)
    return made
