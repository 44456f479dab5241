"""Attention without a fused kernel: two products around a softmax, for comparison with the fused one."""

from __future__ import annotations

from typing import Any

from clustersim.lab.measure.case import Trial
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.timing import Clock


def run(trial: Trial, device: Device, clock: Clock) -> dict[str, Any]:
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
