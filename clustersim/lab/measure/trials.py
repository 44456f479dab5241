"""Measurements of launches, copies to and from the host, layers and training steps."""

from __future__ import annotations

import gc
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
    """Return the seconds of one launch: `dispatch` is CPU time, `stream` and `graph` GPU time. Raises Unavailable."""
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
    """Return the seconds of forward and backward pass over `amount` vocabulary entries."""
    import torch
    from torch.nn.functional import cross_entropy

    tokens = TOKENS if device.real else 8
    with clock.scope():
        logits = device.normal((tokens, trial.amount), "bf16", grad=True)
        targets = device.integers(tokens, trial.amount)

        def launch() -> object:
            return torch.autograd.grad(cross_entropy(logits.float(), targets), logits)

        return clock.time([launch], 20)._asdict() | {"tokens": tokens}


WARMUP, STEPS, TRACED = 3, 10, 2
LONG = 5.0
"""Smallest duration of measured steps in seconds. Boards reach their power limit within one."""
FULL = "full recompute"


def training_step(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
    """Return seconds of a step, tokens, and peak memory in bytes. Raises Unavailable for a trial that does not fit."""
    import torch

    model = trial.model
    if model is None:
        raise Unavailable("a step needs a model")
    if device.real and 20 * model.parameters > device.memory:
        raise Unavailable(f"{model.name} needs {20 * model.parameters / 2**30:.0f} GiB for weights, gradients and Adam")
    before = _allocated(device)
    step = TrainingStep(trial, model, device)
    for _ in range(WARMUP):
        step()
    if device.real:
        torch.cuda.reset_peak_memory_stats()
    seconds = _steady_steps(step, device, LONG if device.real else 0.0)
    timing = summary(seconds)
    since = time.perf_counter() - sum(seconds)
    peak = float(torch.cuda.max_memory_allocated()) - before if device.real else 0.0
    facts = {"tokens": trial.micro_batch * trial.seq, "peak_memory_bytes": peak, "parameters": model.parameters}
    until = time.perf_counter()
    return timing._asdict() | facts | {"between": (since, until), "kernels": step_kernels(step, device)}


def _steady_steps(step: TrainingStep, device: Device, least: float) -> list[float]:
    """Return the seconds of the second half of at least `STEPS` steps and `least` seconds, when clocks have settled."""
    seconds: list[float] = []
    while len(seconds) < (STEPS if device.real else 2) or sum(seconds) < least:
        seconds.append(_wall(step, device))
    return seconds[len(seconds) // 2 :]


def _allocated(device: Device) -> float:
    """Return the bytes that PyTorch has allocated on the GPU before the next step."""
    import torch

    gc.collect()
    return float(torch.cuda.memory_allocated()) if device.real else 0.0


def step_kernels(step: TrainingStep, device: Device) -> list[dict[str, object]]:
    """Return the name, calls and seconds of each kernel in `TRACED` steps, by torch.profiler."""
    from torch.profiler import ProfilerActivity, profile

    if not device.real:
        return []
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(TRACED):
            _wall(step, device)
    rows = profiler.key_averages()
    return [
        {"name": row.key[:200], "calls": row.count, "seconds": row.self_device_time_total / 1e6, "steps": TRACED}
        for row in sorted(rows, key=lambda row: -row.self_device_time_total)
        if row.self_device_time_total > 0
    ]


def _wall(step: TrainingStep, device: Device) -> float:
    """Return the wall time of one step in seconds, from idle GPU to idle GPU."""
    import torch

    if device.real:
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device.real:
        torch.cuda.synchronize()
    return time.perf_counter() - start


class TrainingStep:
    """A model with its optimizer. A call runs one step."""

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
        self.layer = compiled(decoder.layer, device, again=False) if trial.mode == "compiled" else decoder.layer

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
    """Return the seconds of causal attention with `amount` heads, `forward` only, or forward and `backward`."""
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
"""{`what` of a trial: function that returns the cells of its row}"""
