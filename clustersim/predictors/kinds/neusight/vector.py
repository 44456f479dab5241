"""Vector kernels: softmax, norms, element-wise kernels and all others that are bound by memory.

    dram    = (bytes + reread · miss) / (bandwidth · share)
    miss    = 1 / (1 + (cache / rows)^sharpness)
    latency = rounds · (cycles + cycles per load · loads) / clock
    issue   = instructions · elements / (lanes · clock)
    seconds = (dram^p + latency^p + issue^p)^(1/p)

`share` is the share of the bandwidth that large element-wise kernels reach, by kind of memory. `reread` is the number of bytes
that later passes over a row read a second time, `rows` the bytes of all rows in progress, `cache` the bytes of caches that keep
them (module blocks). `rounds` is the number of blocks over the number that the GPU runs at a time. Each parameter is shared by
all GPUs; of a GPU only the datasheet is used. No time is below bytes / bandwidth, and no term grows with bandwidth or clock.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns, Flags, spread
from clustersim.predictors.kinds.neusight import blocks, rates
from clustersim.predictors.kinds.neusight.blocks import BlockLayout
from clustersim.predictors.mlp import Parameters, product, sigmoid

CLASSES = ("fp32/elementwise", "fp32/softmax", "fp32/layernorm")
"""Classes of kernels with learned parameters; memory-bound kernels use those of element-wise kernels."""
PARAMETERS = ("share", "sharpness", "cycles", "power")
"""Names of the learned parameters of a class."""
MEMORIES = ("gddr", "pascal", "hbm", "blackwell", "cdna")
"""Kinds of memory, in the order of `share`."""
SHARES: Annotated[
    tuple[float, float, float, float, float], Declared(chosen_on="stas00/ml-engineering; NeuSight", scope="part")
] = (0.76, 0.755, 0.91, 0.75, 0.83)
"""Initial share of the bandwidth by kind of memory. GDDR corrects errors inline, and Pascal cannot keep HBM busy. The last two
are not learned, as no row has them: Blackwell is between SimuMax's 0.67 on B200 and 0.83, the copy on GB200
(stas00/ml-engineering) scaled by sums over copies on A100 and H100; AMD's is from sums on MI100 and MI210 (NeuSight: 0.83,
0.81)."""
GDDR: Annotated[float, Declared("B/s")] = 700e9
"""Bytes/s below which a board has GDDR: A10 with GDDR6 has 600 GB/s, V100 with HBM2 900."""
PASSES: Annotated[dict[str, float], Declared()] = {
    **dict.fromkeys(("softmax", "softmax_backward", "layernorm_backward"), 2.0),
    "layernorm": 1.0,
}
"""Values per element that passes after the first read from memory again. Softmax: the input for sum and output; backward, two
tensors once. Norms: the input once; backward, two tensors once."""


def knows(table: Columns) -> bool:
    """Return whether the kernels of `table`, which are of one class, are vector kernels; False for an empty table."""
    return len(table) > 0 and not bool(table.matrix[0])


def memory(gpu: Gpu) -> str:
    """Return a GPU's kind of memory, one of MEMORIES.

    AMD, Pascal and Blackwell have kinds of their own. On other boards it is `gddr` below `GDDR` and on Turing and Ada, else
    `hbm`.
    """
    if gpu.vendor == "amd":
        return "cdna"
    if gpu.architecture == "pascal" or gpu.architecture.startswith("blackwell"):
        return gpu.architecture.partition("-")[0]
    return "gddr" if gpu.memory_bandwidth < GDDR or gpu.architecture in ("turing", "ada") else "hbm"


def terms(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return the arguments of `log_seconds` for kernels of one kind, one row per kernel.

    `dram`, `reread`: seconds of bytes at the bandwidth. `issue`: seconds of instructions. `room`: log(cache / rows). `waits`:
    seconds per learned cycle, (kernel, wait). `memory`: 1 for the GPU's kind of memory, else 0, (kernel, kind of memory).
    `ceiling`: largest share of the bandwidth.
    """
    kind = str(table.kind[0]) if len(table) else "elementwise"
    layout = _layout(kind, table, gpu)
    reread = _reread_bytes(kind, table)
    kept = np.maximum(blocks.KEPT * gpu.l2, blocks.LOCAL * blocks.local(gpu) if kind == "softmax" else 0.0)
    return {
        "dram": table.bytes / gpu.memory_bandwidth,
        "reread": reread / gpu.memory_bandwidth,
        "issue": rates.issue(table, gpu),
        "room": np.log(kept / layout.rows),
        "waits": _waits(kind, table, layout) / gpu.clock,
        "memory": np.tile(np.array(MEMORIES) == memory(gpu), (len(table), 1)).astype(np.float64),
        "ceiling": rates.ceiling(table),
    }


def _layout(kind: str, table: Columns, gpu: Gpu) -> BlockLayout:
    """Return the layout of kernels of one kind; kinds other than softmax and norms have 0 rounds."""
    if kind == "softmax":
        return blocks.softmax(table, gpu)
    if kind == "layernorm":
        return blocks.norm(table, gpu)
    none = np.zeros(len(table))
    return BlockLayout(none, none, none + 1.0)


def _reread_bytes(kind: str, table: Columns) -> Floats:
    """Return the bytes that each kernel of one kind reads a second time because its rows do not stay in registers (kernels,)."""
    values = table.m * table.n * table.size
    kept = (kind == "layernorm") & (table.size <= 2) & (rates.ceiling(table) < 1)  # rows stay in registers
    backward = spread(table.op, lambda op: op.endswith("backward")) > 0
    passes = np.where(backward, PASSES.get(f"{kind}_backward", 0.0), PASSES.get(kind, 0.0))
    result: Floats = passes * values * (blocks.long(table) & ~_fused(table) if kind == "softmax" else ~kept)
    return result


def _fused(table: Columns) -> Flags:
    """Return a mask of Megatron's softmax kernels, whose rows stay in registers at any length."""
    return spread(table.op, lambda op: float(op.startswith("fused"))) > 0


def _waits(kind: str, table: Columns, layout: BlockLayout) -> Floats:
    """Return the number of waits of each sort for each kernel of one kind, (kernel, wait).

    Norms have one sort, rounds · loads. Softmax has rounds and rounds · loads, for long and for short rows. Other kinds have
    none.
    """
    rounds, steps = layout.rounds * ~_fused(table), layout.steps
    if kind == "layernorm":
        return np.stack([rounds * steps], axis=1)
    if kind == "softmax":
        long, short = rounds * blocks.long(table), rounds * ~blocks.long(table)
        return np.stack([long, long * steps, short, short * steps], axis=1)
    return np.zeros((len(table), 0))


def log_seconds(parameters: Parameters, rows: Parameters) -> Any:
    """Return log(seconds) of each kernel by each set of parameters, (set, kernel), launch excluded. rows: result of `terms`."""
    share = np.minimum(product(np, sigmoid(np, parameters["share"]), rows["memory"].T), rows["ceiling"])
    miss = sigmoid(np, -rows["room"] * np.exp(parameters["sharpness"]))
    dram = (rows["dram"] + rows["reread"] * miss) / share
    wait = product(np, np.exp(parameters["cycles"]), rows["waits"].T)
    p = 1 + np.exp(parameters["power"])
    other = (wait / dram) ** p + (rows["issue"] / dram) ** p
    return np.log(dram) + np.log1p(other) / p


def predict(parameters: Parameters, table: Columns, gpu: Gpu) -> Floats:
    """Return the seconds of kernels of vector kinds without launch (kernels,), by the first set of parameters."""
    result, first = np.empty(len(table)), {name: value[:1] for name, value in parameters.items()}
    for kind in dict.fromkeys(table.kind.tolist()):
        chosen = table.kind == kind
        result[chosen] = np.exp(log_seconds(first, terms(table.select(chosen), gpu))[0])
    return result
