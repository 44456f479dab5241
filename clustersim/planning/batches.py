"""Batches that a plan may have where nobody gives one: more GPUs need larger ones, and too large ones learn less from each token.

The batch that learns most from D tokens has 0.58 D^0.571 of them (Li et al. 2025, Step Law, arXiv 2503.04715), whatever the size
of the model: 19.4 million of 15T, where Llama 3 405B had 16 million. Up to there a larger batch may be taken for its price alone.
"""

from __future__ import annotations

from typing import Annotated

from clustersim.config.evidence import Declared
from clustersim.sweeps.evaluate import SweepInputs
from clustersim.sweeps.space import Point

BATCH = "training.global_batch"
LEARNED: Annotated[tuple[float, float], Declared("tokens")] = (0.58, 0.571)
"""Factor and exponent of tokens of a run: tokens of the step that learns most from them (Li et al. 2025, arXiv 2503.04715)."""
LARGER = (1, 1.5, 2, 3, 4, 6, 8)
"""Times the batch of the workload that are tried."""


def most_tokens(tokens: float) -> float:
    """Return the tokens per step that the price of one step allows in a run of `tokens` tokens."""
    factor, exponent = LEARNED
    return float(factor * tokens**exponent)


def batches(case: SweepInputs, kind: Point, tokens: float, gpus: int) -> list[list[Point]]:
    """Return the batches that a run of `tokens` tokens may have on clusters with `gpus` GPUs per node.

    The best of the first list is taken; that of a later one where those before it have no plan: first the workload's and all
    that are no larger than `most_tokens`, then each that is. One that is asked for is the only one.
    """
    training = case.job(kind).training
    if BATCH in kind:
        return [[{**kind, BATCH: training.global_batch}]]
    own = filling(training.global_batch, gpus)
    most = max(own, int(most_tokens(tokens) / training.seq))
    sizes = [int(own * factor) for factor in LARGER]
    points = [{**kind, BATCH: size} for size in sizes]
    within = sum(size <= most for size in sizes)
    return [points[:within], *([point] for point in points[within:])]


def filling(batch: int, gpus: int) -> int:
    """Return the batch near `batch`, at least as large, whose replicas can use all GPUs of nodes of `gpus`.

    Tensor and pipeline degrees are mostly powers of two, so dp has to bring what else divides a node: racks of 72 = 8 · 9 are
    full with batches of 9 · 2^k. 2,048 becomes 2,304.
    """
    odd = gpus // (gpus & -gpus)
    low = 1 << (odd.bit_length() - 1)
    return batch if batch % odd == 0 or batch % low else batch // low * odd
