"""Batches that a plan may have by default: more GPUs need larger ones, but too large ones learn less per token.

The batch that learns most from D tokens has 0.58 D^0.571 of them (Li et al. 2025, Step Law, arXiv 2503.04715), whatever the size
of the model: 19.4 million for 15T tokens, where Llama 3 405B had 16 million. Up to there, larger ones may be chosen for cost.
"""

from __future__ import annotations

from typing import Annotated

from clustersim.config.evidence import Declared
from clustersim.sweeps.evaluate import SweepInputs
from clustersim.sweeps.space import Point

BATCH = "training.global_batch"
LEARNED: Annotated[tuple[float, float], Declared("tokens")] = (0.58, 0.571)
"""(factor, exponent) of a run's tokens: tokens per step that learn most from them (Li et al. 2025, arXiv 2503.04715)."""
LARGER = (1, 1.5, 2, 3, 4, 6, 8)
"""Multiples of the workload's batch that are tried."""


def most_tokens(tokens: float) -> float:
    """Return the largest number of tokens per step that may be chosen for cost alone in a run of `tokens` tokens."""
    factor, exponent = LEARNED
    return float(factor * tokens**exponent)


def batches(case: SweepInputs, kind: Point, tokens: float, gpus: int) -> list[list[Point]]:
    """Return lists of batches that a run of `tokens` tokens may have on clusters with `gpus` GPUs per node.

    The best batch of the first list with a plan is used. The first list has the workload's batch and all up to `most_tokens`;
    then each larger one is a list. A batch set by the user is the only one.
    """
    training = case.job(kind).training
    if BATCH in kind:
        return [[{**kind, BATCH: training.global_batch}]]
    smallest = filling(training.global_batch, gpus)
    most = max(smallest, int(most_tokens(tokens) / training.seq))
    sizes = [int(smallest * factor) for factor in LARGER]
    points = [{**kind, BATCH: size} for size in sizes]
    within = sum(size <= most for size in sizes)
    return [points[:within], *([point] for point in points[within:])]


def filling(batch: int, gpus: int) -> int:
    """Return the smallest batch from `batch` on whose replicas can use all GPUs of nodes of `gpus` GPUs.

    Tensor and pipeline degrees are mostly powers of two, so dp must supply the other factors of a node: racks of 72 = 8 · 9 are
    full with batches of 9 · 2^k. 2,048 becomes 2,304.
    """
    odd = gpus // (gpus & -gpus)
    low = 1 << (odd.bit_length() - 1)
    return batch if batch % odd == 0 or batch % low else batch // low * odd
