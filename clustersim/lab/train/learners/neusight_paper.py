"""Training of `neusight-paper`: AdamW on SMAPE for each class, the epoch with the best validation, judged on the split `test`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.errors import DataError, InputError
from clustersim.extras import need
from clustersim.hardware import gpus
from clustersim.lab.data import sources, tables
from clustersim.lab.data.samples import Samples, gpus_of, pick
from clustersim.lab.data.sources import Data
from clustersim.lab.evaluate import figures, ratios
from clustersim.lab.train.ensemble import TrainingProgress, silent
from clustersim.predictors.features import Flags
from clustersim.predictors.kinds.neusight_paper import tiles
from clustersim.predictors.kinds.neusight_paper.board import board
from clustersim.predictors.kinds.neusight_paper.predictor import NAME, PRODUCTS, Paper
from clustersim.predictors.kinds.neusight_paper.terms import Terms, TiledKernel, product, terms, vector
from clustersim.predictors.kinds.neusight_paper.tiles import Tiles, shapes
from clustersim.predictors.kinds.neusight_paper.wave import WIDTHS, utilization
from clustersim.predictors.weights_file import Weights

GROUPS = {
    "fp32/linear": "linear",
    "fp32/bmm": "bmm",
    "fp32/elementwise": "elem",
    "fp32/softmax": "softmax",
    "fp32/layernorm": "ln",
}
"""{class: its groups in tables}"""


class KernelRecords(NamedTuple):
    """Measured kernels of one class and the sides of their tiles (kernel; rows, columns), None for vector kernels."""

    samples: Samples
    sides: Floats | None


def records(data: Data | Path, name: str) -> KernelRecords:
    """Return the training rows of a class, P4's linear layers included, as published. Raises DataError."""
    where = ", ".join(map(str, sources.places(data)))
    frame = (
        tables.read(data, sources.FP32, ("kernel",))
        .filter(vendor="nvidia", split="train", group=GROUPS[name])
        .filter(pl.col("latency_s") > 0)
    )
    if not len(frame):
        raise DataError(f"{where}: no measured kernels of {name}; the split `train` must hold all classes")
    return KernelRecords(tables.fp32_samples(frame), _sides(where, frame) if name in PRODUCTS else None)


def _sides(where: str, frame: pl.DataFrame) -> Floats:
    """Return rows and columns of the tiles in kernel names such as `ampere_sgemm_128x64_tn` (columns × rows)."""
    pattern = r"(?i)(?:sgemm_|tilesize)(\d+)x(\d+)"
    sides = [frame["kernel"].str.extract(pattern, group).cast(pl.Float64) for group in (2, 1)]
    unnamed = frame.filter(sides[0].is_null())
    if len(unnamed):
        raise DataError(f"{where}: kernel {unnamed['kernel'][0]!r} names no tile (`sgemm_128x64`)")
    return np.stack([np.array(side) for side in sides], axis=1)


def described(found: KernelRecords) -> Terms:
    """Return the terms of all kernels, each on the GPU that measured it."""
    cut = product(found.samples.table, found.sides) if found.sides is not None else vector(found.samples.table)
    count = len(found.samples)
    result = Terms(np.empty(count), np.empty(count), np.empty((count, 4)))
    for gpu, rows in _boards(found.samples):
        own = terms(TiledKernel(*(x[rows] for x in cut)), board(gpu, found.sides is not None))
        for whole, part in zip(result, own, strict=True):
            whole[rows] = part
    return result


def profiled(found: KernelRecords) -> Tiles:
    """Return GEMMs as the table in which tiles are looked up."""
    owner, boards = np.empty(len(found.samples)), []
    for index, (gpu, rows) in enumerate(_boards(found.samples)):
        owner[rows] = index
        boards.append(board(gpu, matrix=True))
    sides = found.sides if found.sides is not None else np.empty((0, 2))
    return Tiles(shapes(found.samples.table), sides, owner, np.array(boards))


def _boards(samples: Samples) -> Iterator[tuple[Gpu, Flags]]:
    """Yield each GPU of samples, with the mask of its rows."""
    for name, rows in gpus_of(samples).items():
        yield gpus.load(name), rows


class Recipe(NamedTuple):
    """Learning rate, minibatch and epochs. Four fifths of the rows train, the rest validates."""

    rate: float
    batch: int
    epochs: int = 100


RECIPES = {
    "fp32/linear": Recipe(5e-3, 128),
    "fp32/bmm": Recipe(1e-5, 128),
    "fp32/elementwise": Recipe(5e-4, 64),
    "fp32/softmax": Recipe(1e-6, 16),
    "fp32/layernorm": Recipe(1e-6, 16),
}
"""{class: recipe} of `scripts/asplos/data/predictor/configs` in sitar-lab/NeuSight."""


class TrainedNetwork(NamedTuple):
    """Parameters of a network, the validation error (MAPE) and epoch of its checkpoint, and the number of finite epochs."""

    parameters: dict[str, Floats]
    validation: float
    epoch: int
    epochs: int


def learn(
    name: str, recipe: Recipe, terms: Terms, seconds: Floats, seed: int, progress: TrainingProgress = silent
) -> TrainedNetwork:
    """Return the network of the epoch with the least validation error. A diverged training ends early.

    Raises DataError if no epoch is finite.
    """
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # moments of dead units fade into denormals, which makes a step three times slower
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            order = torch.randperm(len(seconds))
            most = int(0.8 * len(seconds))
            rows = _Rows(*(torch.tensor(x, dtype=torch.float32) for x in (*terms, seconds)))
            return _epochs(name, recipe, rows.pick(order[:most]), rows.pick(order[most:]), progress)
    finally:
        torch.set_flush_denormal(False)


class _Rows(NamedTuple):
    """Rows as tensors: seconds at full utilization, waves, inputs of the network, measured seconds."""

    full: Any
    waves: Any
    inputs: Any
    seconds: Any

    def pick(self, rows: Any) -> _Rows:
        """Return some of the rows."""
        return _Rows(*(x[rows] for x in self))

    def guess(self, network: Any) -> Any:
        """Return the forecast seconds (row,) of a network."""
        import torch

        return self.full / utilization(torch, network(self.inputs), self.waves)


def _epochs(name: str, recipe: Recipe, train: _Rows, validation: _Rows, progress: TrainingProgress) -> TrainedNetwork:
    """Return the best network of a training, by its error (MAPE) on the validation rows. Raises DataError."""
    import torch

    network = _network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.rate, fused=True)
    best = TrainedNetwork({}, float("inf"), 0, 0)
    for epoch in range(1, recipe.epochs + 1):
        for places in torch.split(torch.randperm(len(train.seconds)), recipe.batch):
            rows = train.pick(places)
            guess = rows.guess(network)
            loss = ((rows.seconds - guess) / (rows.seconds + guess)).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            guess = validation.guess(network).clip(0)
            error = float(((guess - validation.seconds) / validation.seconds).abs().mean())
        best = best._replace(epochs=epoch)
        if error < best.validation:
            best = TrainedNetwork(_parameters(network), error, epoch, epoch)
        progress(name, epoch, recipe.epochs)
        if np.isnan(error):
            break
    if not best.parameters:
        raise DataError(f"{name}: the training diverged in its first epoch; train again with another --seed")
    return best


def _network() -> Any:
    """Return a network with random weights, of linear layers with ReLU between them."""
    from torch import nn

    layers = [layer for before, after in pairwise(WIDTHS) for layer in (nn.Linear(before, after), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _parameters(network: Any) -> dict[str, Floats]:
    """Return the weights and biases of a network, as an ensemble of one member."""
    result: dict[str, Floats] = {}
    for index, layer in enumerate(network[::2]):
        weight, bias = (value.detach().numpy().astype(np.float64) for value in (layer.weight, layer.bias))
        result |= {f"mlp.{index}.weight": weight.T[None], f"mlp.{index}.bias": bias[None, None]}
    return result


def train(
    data: Data | Path, seed: int = 0, progress: TrainingProgress = silent, scratch: Path | None = None
) -> Weights:
    """Return weights of all classes, with their errors on the split `test` in the metadata. `scratch` is not used.

    Raises DataError for missing tables, and InputError for GPUs to leave out, which the published split defines.
    """
    need("torch", "training neusight-paper")
    if sources.left_out(data):
        raise InputError(
            f"{NAME} learns from the published split, which leaves H100, L4 and A100-80GB out; drop --leave-out"
        )
    found = {name: records(data, name) for name in GROUPS}
    outcome = {
        name: learn(name, RECIPES[name], described(rows), rows.samples.seconds, seed, progress)
        for name, rows in found.items()
    }
    classes: dict[str, dict[str, Floats]] = {
        name: result.parameters | (tiles.pack(profiled(found[name])) if name in PRODUCTS else {})
        for name, result in outcome.items()
    }
    seen = {name: sorted(gpus.load(gpu).name for gpu in gpus_of(rows.samples)) for name, rows in found.items()}
    meta: dict[str, Any] = {
        "predictor": NAME,
        "seed": seed,
        "split": "fp32: train, judged on test",
        "data": sources.digests(data),
        "learned": {name: {"gpus": seen[name], "rows": len(rows.samples)} for name, rows in found.items()},
        "validation": {
            name: {"mean": round(result.validation, 5), "epoch": result.epoch, "epochs": result.epochs}
            for name, result in outcome.items()
        },
    }
    paper, test = Paper(Weights(classes, meta)), tables.fp32(data, "test")
    return Weights(classes, meta | {"errors": {name: _errors(paper, name, test, seen[name]) for name in GROUPS}})


def _errors(paper: Paper, name: str, test: Samples, seen: list[str]) -> dict[str, Any]:
    """Return the errors of a class on the test samples by GPU. seen: GPUs of the training rows."""
    found = ratios(paper, name, pick(test, name))
    return {
        gpu.name: figures(ratio, part.table) | {"count": len(part), "unseen": gpu.name not in seen}
        for gpu, ratio, part in found
    }
