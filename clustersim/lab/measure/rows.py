"""Rows of the two files, and what is said about them."""

from __future__ import annotations

from typing import Any

from clustersim.lab.measure.case import Case, Trial
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.meter import Reading
from clustersim.lab.measure.timing import Timing
from clustersim.predictors.features import MATRIX

KEY = ("gpu", "kind", "op", "dtype", "layout", "batch", "m", "n", "k", "heads", "kv_heads", "causal", "mode", "note")
WHOLE_COLUMNS = (
    *("gpu", "what", "variant", "mode", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq"),
    *("micro_batch", "amount", "tokens", "parameters", "latency_s", "low_s", "high_s", "samples", "tokens_per_s"),
    *("peak_memory_bytes", "clock_mhz", "power_w", "torch", "cuda"),
)
WHOLE_KEY = ("gpu", "what", "variant", "mode", "model", "seq", "micro_batch", "amount")


def kernel_row(case: Case, mode: str, device: Device) -> dict[str, object]:
    """Return what the row of a case says before it is measured; `mode` is burst or sustained."""
    kernel = case.kernel._asdict() | {"flop": float(case.kernel.flop), "bytes": float(case.kernel.bytes)}
    return kernel | _place(device) | {"layout": case.layout, "mode": mode, "note": case.note}


def trial_row(trial: Trial, device: Device) -> dict[str, object]:
    """Return what the row of a trial says before it is measured."""
    model = trial.model._asdict() | {"model": trial.model.name} if trial.model else {}
    facts = {key: value for key, value in trial._asdict().items() if key != "model" and value not in ("", 0)}
    return {**model, **facts, "mode": trial.mode, **_place(device)}


def _place(device: Device) -> dict[str, Any]:
    return {"gpu": device.gpu, "torch": device.torch, "cuda": device.cuda}


def name(one: Case | Trial) -> str:
    """Return a case or trial in a few words."""
    if isinstance(one, Trial):
        model = f"{one.model.name} seq {one.seq} × {one.micro_batch}" if one.model else ""
        parts: tuple[str, ...] = (
            one.what,
            model,
            one.mode if one.model else "",
            one.variant,
            f"{one.amount:,}" if one.amount else "",
        )
    else:
        k = one.kernel
        shape = "×".join(str(size) for size in (k.batch, k.m, k.n, k.k) if size)
        parts = (k.kind, k.op, k.dtype, one.layout, shape, one.note)
    return " ".join(part for part in parts if part)


def measured(timing: Timing, reading: Reading) -> dict[str, object]:
    """Return what a measurement adds to a row."""
    times: dict[str, object] = {
        "latency_s": timing.seconds,
        "low_s": timing.low,
        "high_s": timing.high,
        "samples": timing.samples,
    }
    return times | {"clock_mhz": reading.clock, "power_w": reading.power}


def rate(case: Case, mode: str, timing: Timing, reading: Reading) -> str:
    """Return how fast a kernel was, in a few words."""
    kernel = case.kernel
    compute, moved = kernel.flop / timing.seconds / 1e12, kernel.bytes / timing.seconds / 1e9
    speed = f"{compute:.4g} TFLOP/s" if kernel.kind in MATRIX else f"{moved:.4g} GB/s"
    watts = f", {reading.clock:.0f} MHz, {reading.power:.0f} W" if mode == "sustained" and reading.power > 0 else ""
    return f"{timing.seconds * 1e6:.4g} us, {speed}{watts}" + (" sustained" if mode == "sustained" else "")
