"""The assignment of flash attention's blocks to SMs, and the work of the busiest SM.

A head is cut into n blocks of `rows` queries. Without a mask all blocks see all keys. With a causal mask block i sees the keys
up to its own last query, so that blocks differ up to n-fold, and neither their number nor their sum alone gives the time.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.predictors.features import Columns, Flags

WAVES = 12
"""Number of waves that are computed one by one. Beyond that, one block is small compared with the sum, and the sum decides."""
SPLIT: Annotated[float, Declared(chosen_on="not recorded; attention of 7 GPUs: 8.7, 8.7, 8.7 %")] = 0.6
"""Length of a single block over its full length, where the library may split its keys over several SMs, as inference does."""


class Design(NamedTuple):
    """Layout of a library's attention kernels on one architecture: blocks of queries, steps of keys, and overlap."""

    rows: float
    """Number of queries per block for head dimensions above `narrow`."""
    wide: float
    """Number of queries per block for head dimensions up to `narrow`."""
    narrow: float
    """Largest head dimension with blocks of `wide` queries."""
    columns: float
    """Number of keys per step."""
    overlap: float
    """Exponent p of seconds = (products^p + exponentials^p)^(1/p); 1 for no overlap."""
    tail: float
    """Wait of SMs at the end of a causal kernel, in units of the longest block."""
    fill: float
    """Share of a block's start and end that a second block on the same SM does not hide."""


FA2: Annotated[
    Design, Declared(chosen_on="not recorded; attention of A100, L40S: 15.2, 11.7, 13.3 %", scope="part")
] = Design(128, 128, 64, 64, 1.13, 1.0, 0.25)
"""FlashAttention-2: two blocks per SM, assigned in order, so that the longest blocks of a causal head come last."""
FA3: Annotated[Design, Declared(chosen_on="not recorded; attention of H100, H200: 16.8, 7.2, 9.3 %", scope="part")] = (
    Design(128, 192, 64, 128, 1.4, 0.08, 1.0)
)
"""FlashAttention-3: one block per SM; two groups of warps alternate, with products of one during exponentials of the other;
longest blocks first (Shah et al., section 3; hopper/tile_size.h in Dao-AILab/flash-attention)."""
FA4: Annotated[
    Design, Declared(chosen_on="not recorded; attention of B200, B300, GB200: 21.4, 9, 12.2 %", scope="part")
] = Design(128, 256, 128, 128, 2.0, 0.3, 1.0)
"""FlashAttention-4 on Blackwell: asynchronous products into tensor memory, softmax in separate warps, two query blocks in
flight."""


def design(architecture: str) -> Design:
    """Return the layout of attention on an architecture; FlashAttention-2's for unknown ones."""
    return FA3 if architecture == "hopper" else FA4 if architecture.startswith("blackwell") else FA2


def reverse(plan: Design) -> Design:
    """Return `plan` for the backward pass: blocks of 128 keys, one per SM, the longest blocks of a causal head first."""
    return plan._replace(wide=128, rows=128, tail=0.0, fill=1.0)


class Share(NamedTuple):
    """Work of the busiest SM, with one entry per kernel."""

    pairs: Floats
    """Number of pairs of a query and a key."""
    blocks: Floats
    """Number of blocks of queries."""


def share(table: Columns, plan: Design, sms: int, split: Flags) -> Share:
    """Return the work of the busiest of `sms` SMs for each attention kernel.

    It is the largest of the mean over SMs and the lower bounds of list scheduling, (k + 1) · p(k·sms + 1) with p(i) the i-th
    longest block (k + 1 of the k·sms + 1 longest share an SM; Graham 1969). Causal kernels add the tail, up to the work without a
    mask. split: mask of the kernels that may split the keys of a lone block over SMs.
    """
    full = _uniform_share(table, plan, sms, split, np.zeros(len(table), dtype=bool))
    causal = _uniform_share(table, plan, sms, split, table.causal)
    return Share(np.minimum(full.pairs, causal.pairs), np.minimum(full.blocks, causal.blocks))


def _uniform_share(table: Columns, plan: Design, sms: int, split: Flags, causal: Flags) -> Share:
    """Return the result of `share` if exactly the kernels in the mask `causal` have causal heads."""
    rows = np.where(table.k <= plan.narrow, plan.wide, plan.rows)
    heads, count = table.batch * table.heads, np.ceil(table.m / rows)
    all_columns = np.ceil(table.n / plan.columns) * plan.columns
    pairs, blocks = heads * _head_pairs(table, rows, count, plan, causal) / sms, heads * count / sms
    for wave in range(WAVES):
        index = count - np.floor(wave * sms / heads)
        columns = np.where(causal, _visible_keys(table, rows, index, plan), all_columns)
        longest = np.where(split, SPLIT, 1.0) * (wave + 1) * rows * columns * (index >= 1)
        pairs, blocks = np.maximum(pairs, longest), np.maximum(blocks, (wave + 1.0) * (index >= 1))
    return Share(pairs + np.where(causal, plan.tail * rows * all_columns, 0.0), blocks)


def _visible_keys(table: Columns, rows: Floats, index: Floats, plan: Design) -> Floats:
    """Return the number of keys that block `index` (from 1) of a causal head sees, rounded up to whole steps (kernels,).

    rows: queries per block.
    """
    keys = np.clip(np.maximum(table.n - table.m, 0) + index * rows, 1, table.n)
    result: Floats = np.ceil(keys / plan.columns) * plan.columns
    return result


def _head_pairs(table: Columns, rows: Floats, count: Floats, plan: Design, causal: Flags) -> Floats:
    """Return the number of pairs of a query and a key in one head (kernels,).

    rows: queries per block. count: number of blocks. In a causal head each block sees `rows` more keys than the previous one, in
    whole steps.
    """
    all_columns = np.ceil(table.n / plan.columns) * plan.columns
    rounding = (plan.columns - np.gcd(rows.astype(int), int(plan.columns))) / 2
    without_last = (count - 1) * (np.maximum(table.n - table.m, 0) + rounding + rows * count / 2)
    keys = np.where(causal, np.minimum(without_last + all_columns, all_columns * count), all_columns * count)
    result: Floats = rows * keys
    return result
