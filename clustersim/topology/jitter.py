"""How long GPUs compute from step to step: factors drawn from a stated distribution, and a share of stragglers."""

from __future__ import annotations

import math

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.topology import Jitter


def factors(jitter: Jitter, gpus: int, draw: int) -> Floats:
    """Return how many times its usual time each GPU computes in one step (gpus,).

    The mean is 1 but for stragglers, each GPU being one with the stated probability, whatever the others are. A draw is the same
    however many are asked for. Lognormal: sigma^2 = ln(1 + cv^2), mu = -sigma^2 / 2. Gamma: shape 1 / cv^2, scale cv^2; with
    cv 1 it is the exponential distribution.
    """
    source = np.random.default_rng([jitter.seed, draw])
    found = np.ones(gpus)
    if jitter.cv:
        found = _drawn(jitter, source, gpus)
    if jitter.stragglers is not None:
        slow = source.random(gpus) < jitter.stragglers.share
        found = np.where(slow, found * jitter.stragglers.slowdown, found)
    return np.maximum(found, LEAST)


LEAST = 1e-6
"""No GPU computes a million times as fast."""


def _drawn(jitter: Jitter, source: np.random.Generator, gpus: int) -> Floats:
    square = jitter.cv**2
    if jitter.distribution == "gamma":
        return source.gamma(1 / square, square, gpus)
    sigma = math.sqrt(math.log1p(square))
    return source.lognormal(-(sigma**2) / 2, sigma, gpus)


def still(jitter: Jitter | None) -> bool:
    """Return whether all steps are alike."""
    return jitter is None or not (jitter.cv or (jitter.stragglers is not None and jitter.stragglers.share))
