"""The published equation: seconds = full / utilization, utilization = sigmoid(o2) - sigmoid(o0) / waves.

(o0, o1, o2) = MLP(inputs); o1 is not used. Nothing keeps the utilization above zero or the forecast at the roofline
(`neusight/Model/mlp_wave.py` of sitar-lab/NeuSight).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.predictors.kinds.neusight_paper.terms import Terms
from clustersim.predictors.mlp import Parameters, forward, sigmoid

INPUTS, LAYERS, WIDTH, OUTPUTS = 4, 8, 512, 3
WIDTHS = (INPUTS, *[WIDTH] * (LAYERS - 1), OUTPUTS)
"""Number of values at the input, between the layers and at the output of the network."""


def utilization(xp: Any, outputs: Any, waves: Any) -> Any:
    """Return the share of the roofline that each kernel reaches. outputs: those of the network (kernels, 3)."""
    return sigmoid(xp, outputs[..., 2]) - sigmoid(xp, outputs[..., 0]) / waves


def seconds(parameters: Parameters, terms: Terms) -> Floats:
    """Return the forecast seconds (kernels,), by the first member of `parameters`; 0 where the utilization is not positive, as
    published."""
    share = utilization(np, forward(np, parameters, terms.inputs)[0], terms.waves)
    return np.where(share > 0, terms.full / np.where(share > 0, share, 1.0), 0.0)
