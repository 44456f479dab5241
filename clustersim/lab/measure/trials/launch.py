"""What a launch costs: dispatch by the CPU, the gap between kernels of a stream, and that in a CUDA graph."""

from __future__ import annotations

import time
from typing import Any

from clustersim.lab.measure.case import Trial, Unavailable
from clustersim.lab.measure.cuda import CudaClock
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.timing import Clock, summary

COUNT = 1000


def run(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
    """Return the seconds of one launch: `dispatch` CPU time, `stream` and `graph` GPU time. Raises Unavailable."""
    import torch

    value = torch.zeros(64, device=device.kind)
    if trial.variant == "dispatch":
        return summary([_dispatch(device, value) for _ in range(20)])._asdict()
    if not isinstance(clock, CudaClock):
        raise Unavailable("a CPU has neither streams nor graphs")
    with clock.scope():
        play = clock.captured([lambda: value.add_(1)] * COUNT) if trial.variant == "graph" else None
        events = clock.events(play or (lambda: _many(value)), 20)
    return summary([seconds / COUNT for seconds in events])._asdict()


def _many(value: Any) -> None:
    for _ in range(COUNT):
        value.add_(1)


def _dispatch(device: Device, value: Any) -> float:
    import torch

    if device.real:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(COUNT // 10):
        value.add_(1)
    return (time.perf_counter() - start) / (COUNT // 10)
