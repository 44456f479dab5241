"""The equation of NeuSight (Lee et al., ASPLOS 2025): tiles run in waves, at a utilization under the roofline.

    roof        = ((compute / limit)^p + (memory / mu)^p)^(1/p)   seconds; compute is rounded up to whole waves
    utilization = alpha - beta / waves,  alpha = sigmoid(MLP), beta = alpha · sigmoid(MLP)
    seconds     = roof / utilization

`limit` is the attainable share of the peak (module limit), `mu` one number a class, shared by all GPUs. Rates enter
through `compute / limit` and `memory` only, and each step is monotone in them, so a GPU with a higher peak, more
bandwidth, or both is never slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.predictors.columns import Floats
from clustersim.predictors.mlp import Parameters, forward, initial, sigmoid

P = 3.0


def start(members: int, features: int, widths: tuple[int, ...], seed: int) -> dict[str, Floats]:
    """Return weights to begin with: utilization about 0.85 and a mild tail."""
    result = initial(members, (features, *widths, 2), np.random.default_rng(seed))
    last = f"mlp.{len(widths)}.bias"
    one = np.ones((members, 1))
    return result | {last: result[last] + np.array([1.7, -2.0]), "wave.mu": 1.5 * one}


def log_seconds(xp: Any, parameters: Parameters, rows: Parameters) -> Any:
    """Return log(seconds) of each kernel by each member of the ensemble, (member, kernel)."""
    compute = rows["compute"] / rows["limit"]
    memory = rows["memory"] / sigmoid(xp, parameters["wave.mu"])
    largest = xp.maximum(compute, memory)
    roof = largest * ((compute / largest) ** P + (memory / largest) ** P) ** (1 / P)
    return xp.log(roof) - xp.log(utilization(xp, parameters, rows))


def utilization(xp: Any, parameters: Parameters, rows: Parameters) -> Any:
    """Return alpha - beta / waves, (member, kernel)."""
    out = forward(xp, parameters, rows["features"])
    alpha, share = sigmoid(xp, out[..., 0]), sigmoid(xp, out[..., 1])
    return alpha * (1 - share / rows["waves"]) + 1e-4
