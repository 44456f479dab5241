"""How many nodes or GPUs a token visits: it has several experts, and those of one place are one visit.

The router is taken to choose evenly: first which groups of experts a token may visit (DeepSeek-V3, arXiv 2412.19437, section
2.1.2, at most 4 of 8), then its experts among those, none twice.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, fsum
from typing import NamedTuple


class ExpertRouter(NamedTuple):
    """What a router chooses from."""

    experts: int
    """How many there are, in the order of the places that hold them."""
    topk: int
    """Experts that a token visits."""
    groups: int = 1
    """Equal groups of neighbours among the experts …"""
    group_topk: int = 1
    """… of which a token visits this many at most."""


def visited(router: ExpertRouter, places: int) -> float:
    """Return how many of `places`, among which the experts are cut evenly, a token visits in the mean."""
    return _visited(places, *router)


@lru_cache(maxsize=1024)
def _visited(places: int, experts: int, topk: int, groups: int, group_topk: int) -> float:
    router, each = ExpertRouter(experts, topk, groups, group_topk), experts / places
    return fsum(_hit(router, round(place * each), round((place + 1) * each)) for place in range(places))


def _hit(router: ExpertRouter, first: int, last: int) -> float:
    """Return the probability that one of a token's experts is from `first` up to `last`, which is left out.

    By how many of the experts there are in the groups that were chosen: a group is wholly in there, or in part, or not at all.
    """
    size = router.experts // router.groups
    inside = [max(0, min(last, (group + 1) * size) - max(first, group * size)) for group in range(router.groups)]
    chosen = {(0, 0): 1}  # cases by (groups chosen, experts in them)
    for own in inside:
        for (groups, experts), count in list(chosen.items()):
            key = groups + 1, experts + own
            chosen[key] = chosen.get(key, 0) + count
    candidates = router.group_topk * size
    missed = sum(
        count * comb(candidates - experts, router.topk)
        for (groups, experts), count in chosen.items()
        if groups == router.group_topk
    )
    return 1 - missed / (comb(router.groups, router.group_topk) * comb(candidates, router.topk))
