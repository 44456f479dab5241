"""One transformer layer, forward and backward: eager, compiled, or as a CUDA graph."""

from __future__ import annotations

from typing import Any

from clustersim.lab.measure import decoder
from clustersim.lab.measure.case import Trial, Unavailable
from clustersim.lab.measure.cuda import CudaClock
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.fuse import compiled
from clustersim.lab.measure.timing import Clock, summary


def run(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
    """Return the seconds of a layer's forward and backward pass. Raises Unavailable."""
    import torch

    model = trial.model
    if model is None:
        raise Unavailable("a layer needs a model")
    with clock.scope():
        w, turns = decoder.weights(model, device), decoder.angles(model, trial.seq, device)
        x = device.normal((trial.micro_batch, trial.seq, model.hidden), "bf16", grad=True)
        gradient = torch.randn_like(x)
        call = compiled(decoder.layer, device) if trial.mode == "compiled" else decoder.layer

        def launch() -> object:
            return torch.autograd.grad(call(model, w, x, turns), (x, *w.values()), gradient)

        return _timed(trial, clock, launch) | {"tokens": trial.micro_batch * trial.seq}


def _timed(trial: Trial, clock: Clock, launch: Any) -> dict[str, Any]:
    if trial.mode == "graph" or not isinstance(clock, CudaClock):
        return clock.time([launch], 20)._asdict()
    for _ in range(3):
        launch()
    return summary(clock.events(launch, 20))._asdict()  # eager launches: dispatch is a part of what is measured
