"""Linear regression on FLOP and bytes (Li et al., "Path Forward Beyond Simulators", MICRO 2023).

    seconds = dispatch + x · FLOP / peak + y · bytes / bandwidth,  x, y >= 0

one pair a class, by least squares of the relative error over all GPUs: the achieved rates are shares of the datasheet's,
and carry over to an unseen GPU by its peak and bandwidth.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np

from clustersim.config.gpu import Gpu
from clustersim.predictors.columns import Columns, Floats, peak
from clustersim.predictors.curriculum import learn
from clustersim.predictors.learned import Learned, Method, open_weights
from clustersim.predictors.lessons import lesson
from clustersim.predictors.mlp import Parameters
from clustersim.predictors.samples import Samples
from clustersim.predictors.sources import Data
from clustersim.predictors.store import Weights
from clustersim.predictors.training import Progress, silent


def describe(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return the regressors in seconds, (kernel, 2): FLOP / peak, bytes / bandwidth."""
    return {"times": np.stack([table.flop / peak(table, gpu), table.bytes / gpu.memory_bandwidth], axis=1)}


def seconds(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool = False) -> Floats:
    """Return the seconds of kernels of one class, launch excluded."""
    result: Floats = describe(table, gpu)["times"] @ parameters["slope"]
    return result


def learn_class(name: str, samples: Samples, seed: int, progress: Progress = silent) -> dict[str, Floats]:
    """Return the slopes and the dispatch of one class; nothing here depends on the seed."""
    facts = lesson(samples, describe, patience=1e-4)
    design = np.column_stack([facts.inputs["times"], np.ones(len(samples))]) / facts.seconds[:, None]
    solution = nonnegative(design * np.sqrt(facts.weight)[:, None], np.sqrt(facts.weight))
    progress(name, 1, 1)
    return {"slope": solution[:2], "dispatch": solution[2:]}


def nonnegative(design: Floats, target: Floats) -> Floats:
    """Return x >= 0 of least |design·x - target|², for few columns: the best of all sets of non-zero columns."""
    count = design.shape[1]
    best, least = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            part = np.linalg.lstsq(design[:, chosen], target, rcond=None)[0]
            error = float(((design[:, chosen] @ part - target) ** 2).sum())
            if (part >= 0).all() and error < least:
                best, least = np.zeros(count), error
                best[list(chosen)] = part
    return best


METHOD = Method("linear", seconds, learn_class, ("slope",))


def load(weights: Path | None = None) -> Learned:
    """Return the predictor with the shipped weights, or those of a file. Raises DataError."""
    return open_weights(METHOD, weights)


def train(data: Data | Path, seed: int = 0, progress: Progress = silent, scratch: Path | None = None) -> Weights:
    """Return weights learned from measured kernels; `scratch` makes it resumable. Raises DataError for what is missing."""
    return learn(METHOD, data, seed, progress, scratch)
