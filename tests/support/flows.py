"""Flows from their loads."""

import numpy as np

from clustersim.engine.flows import Flow


def flow(family: str, latency: float, size: float, bound: float, *loads: tuple[int, float]) -> Flow:
    """Return a flow from its loads as (link, weight)."""
    links, weights = [link for link, _ in loads], [weight for _, weight in loads]
    return Flow(family, latency, size, bound, np.array(links, np.int64), np.array(weights, float))
