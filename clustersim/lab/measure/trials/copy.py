"""Copies of `amount` bytes between pinned or pageable host memory and the GPU."""

from __future__ import annotations

from typing import Any

from clustersim.lab.measure.case import Trial
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.timing import Clock


def run(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
    """Return the seconds of one copy, `to_gpu` or `from_gpu`."""
    import torch

    host = torch.ones(trial.amount, dtype=torch.uint8, pin_memory=device.real)
    with clock.scope():
        own = torch.ones(trial.amount, dtype=torch.uint8, device=device.kind)
        one, other = (own, host) if trial.variant == "to_gpu" else (host, own)
        return clock.time([lambda: one.copy_(other, non_blocking=True)], 20)._asdict()
