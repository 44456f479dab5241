"""NeuSight as published, for comparison (Lee et al., ASPLOS 2025, arXiv 2407.13853; sitar-lab/NeuSight, MIT).

Its inputs, roofline, tile lookup, loss, rates and epochs are those of the paper's code; what `neusight` does otherwise is in
docs/predictors.md. Its weights are large and do not ship: `clustersim predictor train neusight-paper` makes them.
"""

from __future__ import annotations

from pathlib import Path

from clustersim.extras import need_torch
from clustersim.predictors.neusight_paper.predictor import Paper
from clustersim.predictors.neusight_paper.weights import learned, opened
from clustersim.predictors.sources import Data
from clustersim.predictors.store import Weights
from clustersim.predictors.training import Progress, silent


def load(weights: Path | None = None) -> Paper:
    """Return the predictor with the weights of a file, or with those installed. Raises DataError without any."""
    return Paper(opened(weights))


def train(data: Data | Path, seed: int = 0, progress: Progress = silent, scratch: Path | None = None) -> Weights:
    """Return weights learned by the published recipe from the FP32 table; `scratch` is not used. Raises DataError."""
    need_torch("training neusight-paper")
    return learned(data, seed, progress)
