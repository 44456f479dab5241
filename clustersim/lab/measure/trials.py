"""Measurements of launches, copies to and from the host, training steps, and parts of a mixture of experts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from clustersim.lab.measure import decoder
from clustersim.lab.measure.cases import FULL, LOOP, TRANSFORMERS, WHOLE, DecoderShape, Trial, Unavailable
from clustersim.lab.measure.device import Device, compiled
from clustersim.lab.measure.timing import CudaClock, summary


def copy(trial: Trial, device: Device, clock: CudaClock) -> dict[str, Any]:
    """Return `clock.time` of one pinned copy of `amount` bytes, `to_gpu` or `from_gpu`, as {field of `Timing`: value}."""
    host = torch.ones(trial.amount, dtype=torch.uint8, pin_memory=device.real)
    with clock.scope():
        own = torch.ones(trial.amount, dtype=torch.uint8, device=device.kind)
        one, other = (own, host) if trial.variant == "to_gpu" else (host, own)
        return clock.time([lambda: one.copy_(other, non_blocking=True)], 20)._asdict()


COUNT = 1000


def launch_cost(trial: Trial, device: Device, clock: CudaClock) -> dict[str, Any]:
    """Return {field of `Timing`: value} of a launch: `dispatch` on the CPU, `stream`, `graph` on the GPU."""
    value = torch.zeros(64, device=device.kind)
    if trial.variant == "dispatch":
        count = COUNT // 10
        return summary([_wall(lambda: _add(value, count), device, wait=False) / count for _ in range(20)])._asdict()
    with clock.scope():
        play = clock.captured([lambda: value.add_(1)] * COUNT) if trial.variant == "graph" else None
        events = clock.events(play or (lambda: _add(value, COUNT)), 20)
    return summary([seconds / COUNT for seconds in events])._asdict()


def _add(value: Any, count: int) -> None:
    """Launch a small kernel `count` times."""
    for _ in range(count):
        value.add_(1)


WARMUP, STEPS, TRACED = 3, 10, 2
LONG = 5.0
"""Smallest duration of measured steps in seconds. Boards reach their power limit within one."""


def training_step(trial: Trial, device: Device, clock: CudaClock) -> dict[str, Any]:
    """Return {column: cell} of a step, `between` (begin and end) and `kernels`. Raises Unavailable if it does not fit."""
    model = trial.model
    if model is None:
        raise Unavailable("a step needs a model")
    if device.real and 20 * model.parameters > device.memory:
        raise Unavailable(f"{model.name} needs {20 * model.parameters / 2**30:.0f} GiB for weights, gradients and Adam")
    gc.collect()
    before = float(torch.cuda.memory_allocated()) if device.real else 0.0  # bytes
    step = (TransformersStep if TRANSFORMERS in trial.variant else TrainingStep)(trial, model, device)
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


def _steady_steps(step: Callable[[], object], device: Device, least: float) -> list[float]:
    """Return the seconds of the second half of at least `STEPS` steps and `least` seconds, when clocks have settled."""
    seconds: list[float] = []
    while len(seconds) < (STEPS if device.real else 2) or sum(seconds) < least:
        seconds.append(_wall(step, device))
    return seconds[len(seconds) // 2 :]


def step_kernels(step: Callable[[], object], device: Device) -> list[dict[str, object]]:
    """Return rows {name, calls, seconds, steps} of the kernels in `TRACED` steps, by torch.profiler; none on a CPU."""
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


def _wall(step: Callable[[], object], device: Device, wait: bool = True) -> float:
    """Return the wall time of one step in seconds, from idle GPU to idle GPU, or without `wait` to its last launch."""
    if device.real:
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device.real and wait:
        torch.cuda.synchronize()
    return time.perf_counter() - start


class TrainingStep:
    """A model with its optimizer. A call runs one step."""

    def __init__(self, trial: Trial, model: DecoderShape, device: Device) -> None:
        self.trial, self.model, self.device = trial, model, device
        self.turns = decoder.angles(model, trial.seq, device)
        self.layers = [decoder.weights(model, device) for _ in range(model.layers)]
        self.table = device.normal(
            (model.vocab, model.hidden), "bf16", grad=True
        )  # wide: else experts get uneven loads
        logits = (device.normal((model.vocab, model.hidden), "bf16") * 0.02).requires_grad_()
        norm = torch.ones(model.hidden, dtype=torch.bfloat16, device=device.kind).requires_grad_()
        self.head = {"norm": norm, "logits": logits}
        layer = partial(decoder.layer, loop=LOOP in trial.variant)
        self.layer: Any = compiled(layer, device, repeated=False) if trial.mode == "compiled" else layer
        self._optimize([self.table, *self.head.values(), *(w for layer in self.layers for w in layer.values())])

    def _optimize(self, narrow: list[Any]) -> None:
        """Make fp32 master weights of bf16 ones (`narrow`), and their optimizer. A rate near 0 keeps routing balanced."""
        self.narrow = narrow
        self.master = [w.detach().float() for w in self.narrow]
        for wide in self.master:
            wide.grad = torch.zeros_like(wide)
        self.optimizer = torch.optim.AdamW(self.master, lr=1e-7, fused=True)

    def __call__(self) -> None:
        """Run one step."""
        trial = self.trial
        tokens = self.device.integers(trial.micro_batch * trial.seq, self.model.vocab).view(trial.micro_batch, -1)
        self._loss(tokens).backward()
        narrow = [weight.grad for weight in self.narrow]
        wide = [weight.grad for weight in self.master]
        torch._foreach_copy_(wide, narrow)
        torch.nn.utils.clip_grad_norm_(self.master, 1.0, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.narrow, self.master)
        for weight in self.narrow:
            weight.grad = None

    def _loss(self, tokens: Any) -> Any:
        """Return the loss of a batch of tokens."""
        return decoder.loss(self.model, self.table, self.head, self.layers, tokens, self._run)

    def _run(self, weights: dict[str, Any], x: Any) -> Any:
        """Return the output of one layer, recomputed in the backward pass if the trial says so."""
        if FULL in self.trial.variant:
            return checkpoint(self.layer, self.model, weights, x, self.turns, use_reentrant=False)
        return self.layer(self.model, weights, x, self.turns)


class TransformersStep(TrainingStep):
    """A mixture of Hugging Face's transformers with its optimizer. A call runs one step."""

    def __init__(self, trial: Trial, model: DecoderShape, device: Device) -> None:
        if find_spec("transformers") is None:
            raise Unavailable("transformers is not installed")
        import transformers  # type: ignore[import-not-found,unused-ignore]

        self.trial, self.model, self.device = trial, model, device
        qwen3 = "qwen3" in model.name
        config = (transformers.Qwen3MoeConfig if qwen3 else transformers.MixtralConfig)(
            hidden_size=model.hidden,
            intermediate_size=model.ffn,
            moe_intermediate_size=model.ffn,
            num_hidden_layers=model.layers,
            num_attention_heads=model.heads,
            num_key_value_heads=model.kv_heads,
            head_dim=model.dim,
            vocab_size=model.vocab,
            num_experts_per_tok=model.topk,
            norm_topk_prob=True,
            use_cache=False,
            **{"num_experts" if qwen3 else "num_local_experts": model.experts},
        )
        with torch.device(device.kind):
            self.causal = transformers.AutoModelForCausalLM.from_config(
                config,
                dtype=torch.bfloat16,
                attn_implementation="sdpa",
                experts_implementation="eager" if LOOP in trial.variant else "grouped_mm",
            )
        torch.nn.init.normal_(self.causal.get_input_embeddings().weight)
        self.causal.train()
        if FULL in trial.variant:
            self.causal.gradient_checkpointing_enable()
        self._optimize(list(self.causal.parameters()))

    def _loss(self, tokens: Any) -> Any:
        """Return the loss of a batch of tokens."""
        return self.causal(input_ids=tokens, labels=tokens).loss


PART_CALLS = 10


def mixture_part(trial: Trial, device: Device, clock: CudaClock) -> dict[str, Any]:
    """Return {column: cell} of one part of a mixture's layer, timed as the mean of `PART_CALLS` forward and backward passes.

    That is the larger of the host's and the GPU's time. `kernels` has the GPU's. Raises Unavailable.
    """
    model = trial.model
    if model is None:
        raise Unavailable("a part of a mixture needs a model")
    w = decoder.weights(model, device)
    x = device.normal((trial.micro_batch * trial.seq, model.hidden), "bf16", grad=True)
    shares, chosen = (value.detach() for value in decoder.routed(model, w, x))
    rows, order, ends = (value.detach() for value in decoder.permuted(model, x, chosen))
    rows.requires_grad_(), shares.requires_grad_()
    every = (x, w["router"], w["fc1"], w["fc2"])
    parts: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
        "router": (lambda: decoder.routed(model, w, x)[0], (x, w["router"])),
        "permute": (lambda: decoder.permuted(model, x, chosen)[0], (x,)),
        "experts": (lambda: decoder.expert_rows(model, w, rows, ends), (rows, w["fc1"], w["fc2"])),
        "unpermute": (lambda: decoder.unpermuted(model, rows, order, shares), (rows, shares)),
        WHOLE: (lambda: decoder.grouped_mixture(model, w, x), every),
        f"{WHOLE}, {LOOP}": (lambda: decoder.looped_mixture(model, w, x), every),
    }
    call, inputs = parts[trial.variant]
    gradient = torch.randn_like(call())

    def play() -> object:
        """Run the part's forward and backward pass."""
        return torch.autograd.grad(call(), inputs, gradient)

    seconds = [_wall(lambda: [play() for _ in range(PART_CALLS)], device) / PART_CALLS for _ in range(4)]
    facts = {"tokens": len(x), "kernels": step_kernels(play, device)}
    return summary(seconds[1:])._asdict() | facts


RUNS: dict[str, Callable[[Trial, Device, CudaClock], dict[str, Any]]] = {
    "copy": copy,
    "launch": launch_cost,
    "mixture": mixture_part,
    "step": training_step,
}
"""{`what` of a trial: function that returns the cells of its row}"""
