"""How matrix products are learned and forecast: one model for all GPUs, and a speed of its own for each that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustersim import gpus
from clustersim.config.gpu import Gpu
from clustersim.predictors.classes import WEIGHT
from clustersim.predictors.columns import Columns, Floats
from clustersim.predictors.mlp import Parameters, scaling, standardise
from clustersim.predictors.model import LAUNCH
from clustersim.predictors.neusight import gemm
from clustersim.predictors.samples import Samples
from clustersim.predictors.training import Plan, Progress, fit, silent

PLAN = Plan(widths=(64, 64), steps=1500, decay=3e-2)
SPEED = (0.0, 0.1)
"""Prior of the log speed of a GPU and data type, relative to what its datasheet promises."""
DISPATCH = 3e-5
GENERATION = {"blackwell-ultra": "blackwell"}


def forecast(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool = False) -> Floats:
    """Return the seconds of products of one class by the mean of the ensemble (of logarithms), never below zero work.

    `alone`: as a table times them, heated by their own length alone and with the cast of an fp8 input; else in a busy stream
    at boost clocks.
    """
    rows = ready(parameters, table, gpu)
    if not alone:
        rows["heat"] = 0 * rows["heat"]
    found = np.exp(gemm.log_seconds(np, parameters, rows))
    if alone and "gemm.quantize" in parameters:
        found = found + gemm.quantize(np, parameters, rows)
    result: Floats = np.exp(np.log(found).mean(axis=0))
    return result


def ready(parameters: Parameters, table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return the terms with standardised features and the speed of `gpu`, its own where it was measured."""
    rows = gemm.terms(table, gpu)
    rows["features"] = standardise(parameters, rows["features"])
    rows["speed"] = np.zeros((parameters["gemm.level"].shape[0], len(table)))
    for dtype in dict.fromkeys(table.dtype.tolist()):
        rows["speed"][:, table.dtype == dtype] = speed(parameters, gpu, dtype)
    return rows


def speed(parameters: Parameters, gpu: Gpu, dtype: str) -> Floats:
    """Return the log speed of a GPU's matrix units, (member, 1): its own where it was measured, else that of a typical one."""
    own: Floats = parameters.get(f"speed.{gpu.name}.{dtype}", parameters["gemm.level"])
    return own


def learn(name: str, samples: Samples, seed: int, progress: Progress = silent, plan: Plan = PLAN) -> dict[str, Floats]:
    """Return the parameters of one class of products, learned in torch from its samples."""
    kind = gemm.units(str(samples.table.dtype[0]))
    groups = [f"{gpus.load(gpu).name}.{dtype}" for gpu, dtype in zip(samples.gpu, samples.table.dtype, strict=True)]
    names = sorted(set(groups))
    own = np.array([names.index(group) for group in groups])
    inputs = _inputs(samples) | {"gpu": np.eye(len(names))[own]}
    scale = scaling(inputs["features"])
    inputs["features"] = standardise(scale, inputs["features"])
    begin = gemm.start(plan.members, inputs["features"].shape[1], plan.widths, seed, kind)
    begin |= {"gpu.speed": np.zeros((plan.members, len(names)))}
    prior = gemm.prior(kind) | {"gpu.speed": SPEED}
    if kind == "simt":
        begin |= {"gpu.dispatch": np.full((plan.members, len(names)), np.log(DISPATCH))}
    weight, shares = _weights(samples, names, own)
    weight = weight * np.clip(samples.seconds / (2e-5 if kind == "tensor" else 1e-4), 0.1, 1.0)
    task = _task(kind)
    found = fit(name, begin, task, inputs, samples.seconds, seed, weight / weight.mean(), plan, progress, prior)
    return _settled(found, names, shares) | scale


def _inputs(samples: Samples) -> dict[str, Floats]:
    inputs: dict[str, Floats] = {}
    for name in dict.fromkeys(samples.gpu.tolist()):
        rows = samples.gpu == name
        for key, value in gemm.terms(samples.table.select(rows), gpus.load(name)).items():
            inputs.setdefault(key, np.zeros((len(samples), *value.shape[1:]), dtype=np.float32))[rows] = value
    return inputs


def _task(kind: str) -> Any:
    def log_seconds(xp: Any, parameters: Parameters, rows: Mapping[str, Any]) -> Any:
        own = (rows["gpu"] * parameters["gpu.speed"][:, None, :]).sum(-1)
        busy = gemm.log_seconds(xp, parameters, {**rows, "speed": own})
        if kind == "tensor":
            return xp.log(xp.exp(busy) + gemm.quantize(xp, parameters, rows))
        dispatch = (rows["gpu"] * xp.exp(parameters["gpu.dispatch"])[:, None, :]).sum(-1)
        return xp.log(dispatch + xp.exp(busy))

    return log_seconds


def _weights(samples: Samples, names: list[str], own: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the weight of each row, and of each GPU and data type: generations count alike, kin share."""
    boards = [gpus.load(name.rsplit(".", 1)[0]) for name in names]
    family = [f"{GENERATION.get(b.architecture, b.architecture)}.{n.rsplit('.', 1)[1]}" for b, n in zip(boards, names, strict=True)]
    share = np.array([WEIGHT.get(b.architecture, 1.0) / family.count(f) for b, f in zip(boards, family, strict=True)])
    counts = np.bincount(own, minlength=len(names))
    return share[own] / counts[own], share / share.sum()


def _settled(found: Mapping[str, Floats], names: list[str], shares: Floats) -> dict[str, Floats]:
    """Return parameters for forecasts: speeds by the names of their GPUs, and their weighted mean for all others."""
    speeds = found["gpu.speed"]
    result = {name: value for name, value in found.items() if not name.startswith("gpu.")}
    result |= {f"speed.{name}": speeds[:, [column]] for column, name in enumerate(names)}
    result["gemm.level"] = (speeds @ shares)[:, None]
    dispatch = float((np.exp(found["gpu.dispatch"]) @ shares).mean()) if "gpu.dispatch" in found else 0.0
    return result | {"dispatch": np.array([dispatch]), "busy": np.array([LAUNCH if dispatch else 0.0])}
