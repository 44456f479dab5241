"""Number of nodes or GPUs that a token visits: several of its experts at one place are one visit.

The router is assumed to choose uniformly: first the groups of experts that a token may visit (DeepSeek-V3, arXiv 2412.19437,
section 2.1.2, at most 4 of 8), then distinct experts among those.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, fsum
from typing import NamedTuple


class ExpertRouter(NamedTuple):
    """Parameters of a router's choice of experts for a token."""

    experts: int
    """Number of experts, ordered by the place that holds them."""
    topk: int
    """Number of experts that a token visits."""
    groups: int = 1
    """Number of equal groups of adjacent experts …"""
    group_topk: int = 1
    """… and the largest number of them that a token visits."""


@lru_cache(maxsize=1024)
def visited(router: ExpertRouter, places: int) -> float:
    """Return the mean number of places (nodes or GPUs) with at least one of a token's experts. places: number of places, over
    which the experts are divided evenly in order."""
    experts_per_place = router.experts / places
    return fsum(
        _hit(router, round(place * experts_per_place), round((place + 1) * experts_per_place))
        for place in range(places)
    )


def _hit(router: ExpertRouter, first: int, last: int) -> float:
    """Return the probability that any of a token's experts has an index in range(first, last).

    Sums over the cases of the chosen groups: each group is inside the range, partly inside, or outside.
    """
    size = router.experts // router.groups
    inside = [max(0, min(last, (group + 1) * size) - max(first, group * size)) for group in range(router.groups)]
    chosen = {(0, 0): 1}  # number of choices by (groups chosen, experts of the range in them)
    for in_group in inside:
        for (groups, experts), count in list(chosen.items()):
            key = groups + 1, experts + in_group
            chosen[key] = chosen.get(key, 0) + count
    candidates = router.group_topk * size
    missed = sum(
        count * comb(candidates - experts, router.topk)
        for (groups, experts), count in chosen.items()
        if groups == router.group_topk
    )
    return 1 - missed / (comb(router.groups, router.group_topk) * comb(candidates, router.topk))
