"""A whole training step on one GPU: forward, backward, clipping, Adam on fp32 master weights, new bf16 weights."""

from __future__ import annotations

import time
from typing import Any

from clustersim.lab.measure import decoder
from clustersim.lab.measure.case import DecoderShape, Trial, Unavailable
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.fuse import compiled
from clustersim.lab.measure.timing import Clock, summary

WARMUP, STEPS = 3, 10
FULL = "full recompute"


def run(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
    """Return seconds of a step, tokens and peak memory in bytes. Raises Unavailable for a trial that cannot fit."""
    import torch

    model = trial.model
    if model is None:
        raise Unavailable("a step needs a model")
    if device.real and 20 * model.parameters > device.memory:
        raise Unavailable(f"{model.name} needs {20 * model.parameters / 2**30:.0f} GiB for weights, gradients and Adam")
    step = TrainingStep(trial, model, device)
    for _ in range(WARMUP):
        step()
    if device.real:
        torch.cuda.reset_peak_memory_stats()
    timing = summary([_wall(step, device) for _ in range(STEPS if device.real else 2)])
    peak = float(torch.cuda.max_memory_allocated()) if device.real else 0.0
    facts = {"tokens": trial.micro_batch * trial.seq, "peak_memory_bytes": peak, "parameters": model.parameters}
    return timing._asdict() | facts


def _wall(step: TrainingStep, device: Device) -> float:
    """Return the seconds of one step as the user sees them: by the wall clock, from idle GPU to idle GPU."""
    import torch

    if device.real:
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device.real:
        torch.cuda.synchronize()
    return time.perf_counter() - start


class TrainingStep:
    """A model with its optimizer; a call is one step."""

    def __init__(self, trial: Trial, model: DecoderShape, device: Device) -> None:
        import torch

        self.trial, self.model, self.device = trial, model, device
        self.turns = decoder.angles(model, trial.seq, device)
        self.layers = [decoder.weights(model, device) for _ in range(model.layers)]
        self.table = (device.normal((model.vocab, model.hidden), "bf16") * 0.02).requires_grad_()
        logits = (device.normal((model.vocab, model.hidden), "bf16") * 0.02).requires_grad_()
        norm = torch.ones(model.hidden, dtype=torch.bfloat16, device=device.kind).requires_grad_()
        self.head = {"norm": norm, "logits": logits}
        self.narrow = [self.table, *self.head.values(), *(w for layer in self.layers for w in layer.values())]
        self.master = [w.detach().float() for w in self.narrow]
        for wide in self.master:
            wide.grad = torch.zeros_like(wide)
        self.optimizer = torch.optim.AdamW(self.master, lr=1e-4, fused=True)
        self.layer = compiled(decoder.layer, device) if trial.mode == "compiled" else decoder.layer

    def __call__(self) -> None:
        """Run one step."""
        import torch

        trial = self.trial
        tokens = self.device.integers(trial.micro_batch * trial.seq, self.model.vocab).view(trial.micro_batch, -1)
        decoder.loss(self.model, self.table, self.head, self.layers, tokens, self._run).backward()
        narrow = [weight.grad for weight in self.narrow]
        wide = [weight.grad for weight in self.master]
        torch._foreach_copy_(wide, narrow)
        torch.nn.utils.clip_grad_norm_(self.master, 1.0, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.narrow, self.master)
        for weight in self.narrow:
            weight.grad = None

    def _run(self, weights: dict[str, Any], x: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        if self.trial.variant == FULL:
            return checkpoint(self.layer, self.model, weights, x, self.turns, use_reentrant=False)
        return self.layer(self.model, weights, x, self.turns)
