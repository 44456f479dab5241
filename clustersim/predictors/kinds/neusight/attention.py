"""Flash attention: products on the tensor cores overlap exponentials on the special-function units, block by block.

    pair    = ((FLOP of a pair / SM's rate / alpha)^p + (c / SM's exponentials per second)^p)^(1/p)   seconds on one SM
    work    = pairs of the busiest SM · pair + its blocks · start and end of a block
    seconds = (work^3 + (bytes / (mu · bandwidth))^3)^(1/3)

A pair is a query and a key. The busiest SM's share comes from module schedule, p from the library's layout. alpha and mu in
(0, 1), c and the cost of a block are learned. With them a kernel is never faster than max(FLOP / peak, bytes / bandwidth), nor
slower on a GPU with more of either. A network on top of them had larger errors on GPUs outside its training data.

The backward pass (FlashAttention-2, section 3.1.2) runs five products for two, reads each score's statistics, recomputes the
exponential and its derivative, and adds dQ up in fp32 in memory. Tables have no backward passes, so its constants come from
published figures.

Tables measure op `prefill`: attention of an inference server, which writes keys and values to its cache in a kernel before.
Small tensors stay in L2, because it is repeated on the same data, and some 10 us around it do not depend on its size. Both
effects are learned, and left out of forecasts of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns, peak, spread
from clustersim.predictors.kinds.neusight.attainable import attainable_share
from clustersim.predictors.kinds.neusight.schedule import Share, design, reverse, share
from clustersim.predictors.mlp import Parameters, sigmoid

EXPONENTIALS: Annotated[float, Declared("1/clock/SM")] = 16.0
"""Exponentials per clock and SM since Volta (CUDA programming guide, arithmetic instructions)."""
MORE_EXPONENTIALS: Annotated[Mapping[str, float], Declared("1/clock/SM", scope="part")] = {"blackwell-ultra": 32.0}
"""Exponentials per clock and SM on architectures that have more than others: twice as many on B300."""
BACKWARD: Annotated[Mapping[str, float], Declared(chosen_on="A100's chart, B200's in view")] = {
    "products": 2.5 / 0.85,
    "exponentials": 3.0,
    "block": 2.0,
}
"""Backward work over forward. Per pair: five products for two, at 0.85 of their rate, as operands pass through shared memory and
dQ through atomics; an exponential, the derivative of the softmax and two conversions. Per block: its start loads and its end
writes two tensors for one. Chosen on FlashAttention-2's chart for A100, with B200's figures in view."""
WIDTHS = 32
"""Libraries pad heads to a multiple of this width: FlashAttention-2 rounds up to 32 (csrc/flash_attn/flash_api.cpp,
head_size_rounded), and cuDNN runs heads of 72 at 0.75 of the speed of 96 on H100 too (docs/measured/h100)."""
P: Annotated[float, Declared(chosen_on="not recorded; attention of 7 GPUs: 8.7, 8.7, 8.7 %")] = 3.0
"""How sharply the time of work and of memory combine: the exponent of their sum of powers."""
START = {"alpha": 2.0, "exp": -1.5, "block": 0.9, "mu": 1.3, "around": 2.1, "kept": 0.0, "reuse": -0.6}
"""Initial learned constants: logarithms, or values before the sigmoid for alpha and mu."""
CLASSES = ("half/flash_attention", "narrow/flash_attention")
"""Classes of kernels that this module forecasts."""
KEYS = tuple(f"flash.{name}" for name in START)
"""Names of the learned parameters of a class."""
CLOCK = 2e9
"""Clock in Hz at which the learned clock counts of a block are converted to seconds."""
L2_RATE = 32.0
"""Bytes per clock and SM from L2 that the learned rate of cached tensors is relative to."""


def terms(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return the arguments of `log_seconds` for attention kernels of one class, one entry per kernel.

    `product`, `exponential`: seconds per pair on one SM at the peak. `limit`: attainable share of the peak. `overlap`: p.
    `pairs`, `blocks`: work of the busiest SM. `block`: start and end of a block relative to one at 2 GHz. `memory`: seconds of
    bytes at the bandwidth. For prefill kernels: `prefill` (1, else 0), `cache` (seconds of the cache write), `kept` (L2 over
    footprint), `reuse` (memory rate over L2 rate), `around` (as `block`).
    """
    plan = design(gpu.architecture)
    prefill, backward = table.op == "prefill", table.op == "backward"
    shares = zip(share(table, reverse(plan), gpu.sms, prefill), share(table, plan, gpu.sms, prefill), strict=True)
    busiest = Share(*(np.where(backward, backward_work, forward_work) for backward_work, forward_work in shares))
    fill = np.where(backward, BACKWARD["block"] * reverse(plan).fill, plan.fill)
    scale = {name: np.where(backward, factor, 1.0) for name, factor in BACKWARD.items()}
    attainable = spread(table.dtype, lambda dtype: attainable_share(gpu, dtype))
    product = 4 * np.ceil(table.k / WIDTHS) * WIDTHS * scale["products"] / (peak(table, gpu) / gpu.sms)
    exponential = scale["exponentials"] / (MORE_EXPONENTIALS.get(gpu.architecture, EXPONENTIALS) * gpu.clock)
    return {
        "overlap": np.full(len(table), plan.overlap),
        "block": fill * CLOCK / gpu.clock,
        "around": np.full(len(table), CLOCK / gpu.clock),
        "product": product,
        "exponential": exponential,
        "pairs": busiest.pairs,
        "blocks": busiest.blocks,
        "limit": attainable,
        "memory": _bytes(table) / gpu.memory_bandwidth,
        **_prefill(table, gpu, prefill),
    }


def _bytes(table: Columns) -> Floats:
    """Return the bytes of each kernel that pass through memory. The backward pass clears dQ in fp32, adds to it and reads it
    back."""
    gradient = 12.0 * table.batch * table.heads * table.m * table.k
    result: Floats = table.bytes + np.where(table.op == "backward", gradient, 0.0)
    return result


def _prefill(table: Columns, gpu: Gpu, prefill: Any) -> dict[str, Floats]:
    """Return the arguments `cache`, `kept`, `reuse` and `prefill` of `terms`. prefill: mask of the prefill kernels. They read
    16-bit keys and values and write them to a cache."""
    cache = 2 * table.batch * table.kv_heads * table.n * table.k * (2 + table.size)
    reuse = gpu.memory_bandwidth / (L2_RATE * gpu.clock * gpu.sms)
    return {
        "cache": np.where(prefill, cache / gpu.memory_bandwidth, 0.0),
        "kept": np.where(prefill, gpu.l2 / (table.bytes + cache / 2), 0.0),
        "reuse": np.full(len(table), reuse),
        "prefill": prefill.astype(np.float64),
    }


def start(members: int) -> dict[str, Floats]:
    """Return initial parameters (member, 1): alpha 0.88, c 1.2, blocks of 2.5 us at 2 GHz, mu 0.79, 8 us around a prefill."""
    return {f"flash.{name}": np.full((members, 1), value) for name, value in START.items()}


def log_seconds(xp: Any, parameters: Parameters, rows: Parameters) -> Any:
    """Return log(seconds) of each kernel by each member of the ensemble, (member, kernel), launch excluded.

    xp: numpy or torch. rows: result of `terms`.
    """
    pair = _pair(xp, parameters, rows)
    work = rows["pairs"] * pair + rows["blocks"] * rows["block"] * 1e-6 * xp.exp(parameters["flash.block"])
    share = 1 / (1 + (xp.exp(parameters["flash.kept"]) * rows["kept"]) ** 4)
    kept = (1 - share) * rows["reuse"] * xp.exp(-parameters["flash.reuse"])
    slow = share / sigmoid(xp, parameters["flash.mu"]) + kept
    memory = rows["memory"] * slow
    largest = xp.maximum(work, memory)
    core = largest * ((work / largest) ** P + (memory / largest) ** P) ** (1 / P)
    around = rows["prefill"] * rows["around"] * 1e-6 * xp.exp(parameters["flash.around"])
    return xp.log(core + rows["cache"] * slow + around)


def _pair(xp: Any, parameters: Parameters, rows: Parameters) -> Any:
    """Return the seconds of one pair of query and key on one SM, (member, kernel). Arguments are as in `log_seconds`."""
    product = rows["product"] / rows["limit"] / sigmoid(xp, parameters["flash.alpha"])
    exponential = rows["exponential"] * (1 + xp.exp(parameters["flash.exp"]))
    p = rows["overlap"] + 0 * product  # full shape: numpy's power of one row differs in the last digit
    return (product**p + (exponential + 0 * product) ** p) ** (1 / p)
