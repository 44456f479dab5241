"""Learning in torch: an ensemble on measured seconds, in log space, with a fixed number of gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim import gpus
from clustersim.config.gpu import Gpu
from clustersim.predictors.classes import WEIGHT
from clustersim.predictors.columns import Columns, Floats
from clustersim.predictors.mlp import Parameters
from clustersim.predictors.model import LAUNCH
from clustersim.predictors.tables import Samples, gpus_of

Progress = Callable[[str, int, int], None]


def silent(task: str, done: int, total: int) -> None:
    """Report nothing."""


class Plan(NamedTuple):
    """How long to learn; the defaults take about fifteen seconds for an ensemble of four on one core."""

    members: int = 4
    widths: tuple[int, ...] = (64, 64, 64)
    steps: int = 2000
    batch: int = 512
    rate: float = 4e-3
    decay: float = 1e-3


def fit(
    task: str,
    start: Mapping[str, Floats],
    log_seconds: Callable[[Any, Parameters, Mapping[str, Any]], Any],
    inputs: Mapping[str, Floats],
    seconds: Floats,
    seed: int,
    weight: Floats,
    plan: Plan,
    progress: Progress = silent,
) -> dict[str, Floats]:
    """Return `start` after learning that `log_seconds(xp, parameters, rows of inputs)` should be log(`seconds`).

    Minimises the smooth absolute log error (Huber, 0.1) with AdamW, a one-cycle rate and clipped gradients. Every member
    draws its own rows. The result depends on the seed alone.
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
        loss = (error * weights[rows]).mean() * plan.members
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99 or step + 1 == plan.steps:
            progress(task, step + 1, plan.steps)
    return {k: _numpy(v) for k, v in parameters.items()}


def _groups(parameters: Mapping[str, Any], decay: float) -> list[dict[str, Any]]:
    nets = [v for k, v in parameters.items() if k.startswith("mlp.") and k.endswith("weight")]
    rest = [v for k, v in parameters.items() if not (k.startswith("mlp.") and k.endswith("weight"))]
    return [{"params": nets, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def _numpy(tensor: Any) -> NDArray[np.float64]:
    return np.asarray(tensor.detach().numpy(), dtype=np.float64)


class Lesson(NamedTuple):
    """Samples of one class as inputs of a model: arrays with one row a kernel, and `gpu`, which GPU measured it."""

    inputs: dict[str, Floats]
    seconds: Floats
    weight: Floats
    share: Floats
    """How much each GPU of the lesson counts; sums to one."""


def lesson(samples: Samples, describe: Callable[[Columns, Gpu], dict[str, Floats]], patience: float) -> Lesson:
    """Return samples as inputs: what `describe` says of the kernels on each GPU, row by row.

    Kernels shorter than `patience` seconds count less, in proportion: the dispatch of the call hides them.
    """
    inputs: dict[str, Floats] = {}
    groups = gpus_of(samples)
    described = [gpus.load(name) for name in groups]
    for column, (gpu, rows) in enumerate(zip(described, groups.values(), strict=True)):
        found = describe(samples.table.select(rows), gpu) | {"gpu": np.eye(len(groups))[np.full(rows.sum(), column)]}
        for name, value in found.items():
            inputs.setdefault(name, np.zeros((len(samples), *value.shape[1:])))[rows] = value
    share = np.array([WEIGHT.get(gpu.architecture, 1.0) for gpu in described])
    weight = np.clip(samples.seconds / patience, 0.1, 1.0) * (inputs["gpu"] @ share)
    return Lesson(inputs, samples.seconds, weight / weight.mean(), share / share.sum())


def nuisance(members: int, lesson: Lesson, eager: bool) -> dict[str, Floats]:
    """Return what differs between the GPUs of a lesson and is thrown away later: dispatch (log s) and speed (log).

    Calls that are not `eager` were timed in CUDA graphs, where a kernel costs its launch and no dispatch.
    """
    shape = (members, len(lesson.share))
    return {"gpu.speed": np.zeros(shape)} | ({"gpu.dispatch": np.full(shape, np.log(3e-5))} if eager else {})


def lone(xp: Any, parameters: Parameters, rows: Mapping[str, Any], log_seconds: Any, share: Any) -> Any:
    """Return log(seconds) of a call by itself on the GPU that measured it: dispatch + kernel · GPU's own speed.

    Speeds are relative to the weighted mean of the lesson's GPUs, so that the model itself is fitted to a typical GPU.
    """
    speed = parameters["gpu.speed"] - (parameters["gpu.speed"] * share).sum(-1)[:, None]
    own = (rows["gpu"] * speed[:, None, :]).sum(-1)
    dispatch = LAUNCH
    if "gpu.dispatch" in parameters:
        dispatch = (rows["gpu"] * xp.exp(parameters["gpu.dispatch"])[:, None, :]).sum(-1)
    return xp.log(dispatch + xp.exp(log_seconds + own))


def forget(parameters: Mapping[str, Floats], share: Floats) -> dict[str, Floats]:
    """Return parameters without those of single GPUs; `dispatch` (s) becomes their mean."""
    kept = {name: value for name, value in parameters.items() if not name.startswith("gpu.")}
    known = "gpu.dispatch" in parameters
    dispatch = float((np.exp(parameters["gpu.dispatch"]) @ share).mean()) if known else LAUNCH
    return kept | {"dispatch": np.array([dispatch])}
