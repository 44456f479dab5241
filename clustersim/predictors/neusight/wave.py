"""The equation of NeuSight (Lee et al., ASPLOS 2025): tiles run in waves, at a utilization under the roofline.

    attainable  = (issue^-q + (c · watts^b)^-q)^(-1/q)              share of the peak that power and issue slots leave
    roof        = ((compute / attainable)^p + (memory / mu)^p)^(1/p) seconds, compute rounded up to whole waves
    utilization = alpha - beta / waves,  alpha = sigmoid(MLP), beta = alpha · sigmoid(MLP)
    seconds     = roof / utilization

`c`, `b`, `mu` are one number each a class, learned on all GPUs together. Rates enter through `compute`, `memory` and
`watts` only, and every one of these steps is monotone in them (b ≤ 1), so a GPU with a higher peak, more bandwidth, or
both is never slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.predictors.columns import Floats
from clustersim.predictors.mlp import Parameters, forward, initial, sigmoid

P, Q = 3.0, 4.0


def start(members: int, features: int, widths: tuple[int, ...], rng: np.random.Generator,c=0.,b=0.) -> dict[str, Floats]:
    """Return weights to begin with: utilization about 0.85, a mild tail, c·watts^b near the peak."""
    result = initial(members, (features, *widths, 2), rng)
    last = max(name for name in result if name.endswith("bias"))
    result[last] = result[last] + np.array([1.7, -2.0])
    one = np.ones((members, 1))
    return result | {"wave.c": c * one, "wave.b": b * one, "wave.mu": 1.5 * one}


def log_seconds(xp: Any, parameters: Parameters, rows: Parameters) -> Any:
    """Return log(seconds) of each kernel by each member of the ensemble, (member, kernel)."""
    limit = xp.exp(parameters["wave.c"]) * rows["watts"] ** sigmoid(xp, parameters["wave.b"])
    attainable = (rows["issue"] ** -Q + limit**-Q) ** (-1 / Q)
    compute = rows["compute"] / attainable
    memory = rows["memory"] / sigmoid(xp, parameters["wave.mu"])
    largest = xp.maximum(compute, memory)
    roof = largest * ((compute / largest) ** P + (memory / largest) ** P) ** (1 / P)
    return xp.log(roof) - xp.log(utilization(xp, parameters, rows))


def utilization(xp: Any, parameters: Parameters, rows: Parameters) -> Any:
    """Return alpha - beta / waves, (member, kernel)."""
    out = forward(xp, parameters, rows["features"])
    alpha, share = sigmoid(xp, out[..., 0]), sigmoid(xp, out[..., 1])
    return alpha * (1 - share / rows["waves"]) + 1e-4
