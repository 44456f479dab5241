"""NeuSight as published, for comparison (Lee et al., ASPLOS 2025, arXiv 2407.13853; sitar-lab/NeuSight, MIT).

Its inputs, roofline, tile lookup, loss, rates and epochs are those of the paper's code. docs/predictors.md lists what `neusight`
does differently. Its weights are large and not shipped: `clustersim lab train neusight-paper` creates them.
"""

from __future__ import annotations

from pathlib import Path

from clustersim.predictors.kinds.neusight_paper.predictor import Paper
from clustersim.predictors.kinds.neusight_paper.weights import opened


def load(weights: Path | None = None) -> Paper:
    """Return the predictor with the weights of a file; None: installed ones. Raise DataError if they are missing or damaged."""
    return Paper(opened(weights))
