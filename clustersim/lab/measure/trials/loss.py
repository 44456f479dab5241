"""Cross-entropy of 16-bit logits as PyTorch runs it: cast, log-softmax, loss, and their gradients."""

from __future__ import annotations

from typing import Any

from clustersim.lab.measure.case import Trial
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.timing import Clock

TOKENS = 4096


def run(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
    """Return the seconds of forward and backward over `amount` vocabulary entries."""
    import torch
    from torch.nn.functional import cross_entropy

    tokens = TOKENS if device.real else 8
    with clock.scope():
        logits = device.normal((tokens, trial.amount), "bf16", grad=True)
        targets = device.integers(tokens, trial.amount)

        def launch() -> object:
            return torch.autograd.grad(cross_entropy(logits.float(), targets), logits)

        return clock.time([launch], 20)._asdict() | {"tokens": tokens}
