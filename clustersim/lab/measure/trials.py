"""What is measured apart from single kernels: launches, copies to and from the host, layers, training steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from clustersim.lab.measure import decoder
from clustersim.lab.measure.cases import DecoderShape, Trial, Unavailable
from clustersim.lab.measure.device import Device, compiled
from clustersim.lab.measure.timing import Clock, CudaClock, summary


def copy(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
    """Return the seconds of one copy, `to_gpu` or `from_gpu`."""
    import torch

    host = torch.ones(trial.amount, dtype=torch.uint8, pin_memory=device.real)
    with clock.scope():
        own = torch.ones(trial.amount, dtype=torch.uint8, device=device.kind)
        one, other = (own, host) if trial.variant == "to_gpu" else (host, own)
        return clock.time([lambda: one.copy_(other, non_blocking=True)], 20)._asdict()


COUNT = 1000


def launch_cost(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
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


def layer(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
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


TOKENS = 4096


def cross_entropy_loss(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
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


WARMUP, STEPS = 3, 10
FULL = "full recompute"


def training_step(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
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


def unfused_attention(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
    """Return the seconds of causal attention of `amount` heads, `forward` or forward and `backward`."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backward = trial.variant == "backward"
    with clock.scope():
        q, k, v = (device.normal((trial.micro_batch, trial.amount, trial.seq, 128), "bf16", backward) for _ in range(3))
        gradient = torch.randn_like(q)

        def launch() -> object:
            with sdpa_kernel(SDPBackend.MATH):
                out = scaled_dot_product_attention(q, k, v, is_causal=True)
            return torch.autograd.grad(out, (q, k, v), gradient) if backward else out

        return clock.time([launch], 20)._asdict() | {"tokens": trial.micro_batch * trial.seq}


RUNS: dict[str, Callable[[Trial, Device, Clock], dict[str, Any]]] = {
    "copy": copy,
    "launch": launch_cost,
    "layer": layer,
    "loss": cross_entropy_loss,
    "step": training_step,
    "unfused": unfused_attention,
}
"""By what a trial names: the row of a trial, its seconds and what else there is to say."""
