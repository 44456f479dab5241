"""Training in torch: an ensemble on measured seconds, in log space, with a fixed number of gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.predictors.mlp import Parameters

PULL = 1e-4
"""Weight of a prior: one deviation costs as much as a log error of 1.4 % on every kernel."""
TrainingProgress = Callable[[str, int, int], None]


def silent(task: str, done: int, total: int) -> None:
    """Ignore progress."""


class TrainingBudget(NamedTuple):
    """Length of a training. The defaults take about fifteen seconds for an ensemble of four on one core."""

    members: int = 4
    widths: tuple[int, ...] = (64, 64, 64)
    steps: int = 2000
    batch: int = 512
    rate: float = 4e-3
    decay: float = 1e-3


def initial(members: int, widths: Sequence[int], rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """Return He-initialised weights of `members` networks. `widths` includes input and output."""
    result = {}
    for layer, (before, after) in enumerate(pairwise(widths)):
        last = layer == len(widths) - 2
        scale = np.sqrt((0.01 if last else 2.0) / before)
        result[f"mlp.{layer}.weight"] = rng.normal(0, scale, (members, before, after))
        result[f"mlp.{layer}.bias"] = np.zeros((members, 1, after))
    return result


def scaling(features: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return the parameters that standardise features: mean, deviation, and the range beyond which they are clipped.

    Clipping keeps a network from extrapolating to shapes outside its training data.
    """
    low, high = np.quantile(features, [0.001, 0.999], axis=0)
    inside = features.clip(low, high)
    return {"low": low, "high": high, "mean": inside.mean(axis=0), "std": inside.std(axis=0) + 1e-6}


def minimize(
    task: str,
    start: Mapping[str, Floats],
    log_seconds: Callable[[Any, Parameters, Mapping[str, Any]], Any],
    inputs: Mapping[str, Floats],
    seconds: Floats,
    seed: int,
    weight: Floats,
    plan: TrainingBudget,
    progress: TrainingProgress = silent,
    prior: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, Floats]:
    """Return `start` after training `log_seconds(xp, parameters, rows of inputs)` to match log(`seconds`).

    `prior` is {parameter: (mean, deviation)} of a normal distribution.

    Minimises the Huber loss (0.1) of the log error with AdamW, a one-cycle rate and clipped gradients. Every member draws its
    own rows. The result depends only on the seed.
    """
    import torch

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    parameters = {k: torch.tensor(v, dtype=torch.float32, requires_grad=True) for k, v in start.items()}
    data = {k: torch.tensor(v, dtype=torch.float32) for k, v in inputs.items()}
    target = torch.tensor(np.log(seconds), dtype=torch.float32)
    weights = torch.tensor(weight, dtype=torch.float32)
    optimizer = torch.optim.AdamW(_groups(parameters, plan.decay), lr=plan.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=plan.rate, total_steps=plan.steps + 1)
    for step in range(plan.steps):
        rows = torch.randint(len(target), (plan.members, plan.batch), generator=generator)
        guess = log_seconds(torch, parameters, {k: v[rows] for k, v in data.items()})
        error = torch.nn.functional.huber_loss(guess, target[rows], reduction="none", delta=0.1)
        # the mean squared distance of parameters from their priors, in deviations
        strain: Any = sum(
            (((parameters[k] - mean) / spread) ** 2).mean() for k, (mean, spread) in (prior or {}).items()
        )
        loss = (error * weights[rows]).mean() * plan.members + PULL * strain
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99 or step + 1 == plan.steps:
            progress(task, step + 1, plan.steps)
    return {k: np.asarray(v.detach().numpy(), dtype=np.float64) for k, v in parameters.items()}


def _groups(parameters: Mapping[str, Any], decay: float) -> list[dict[str, Any]]:
    """Return the optimizer's groups: weights of networks, which decay, and all other parameters."""
    names = [name for name in parameters if name.startswith("mlp.") and name.endswith("weight")]
    nets, rest = [parameters[name] for name in names], [v for k, v in parameters.items() if k not in names]
    return [{"params": nets, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
