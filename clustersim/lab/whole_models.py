"""Whole models compared with NeuSight's measurements: `neusight/end_to_end.csv` of a data folder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from clustersim.convert import hugging_face
from clustersim.errors import DataError
from clustersim.hardware import gpus
from clustersim.lab.data.sources import csv
from clustersim.predictors.base import Predictor
from clustersim.single_gpu import loading
from clustersim.single_gpu.model import Graph
from clustersim.single_gpu.total import fuse, total

TABLE = "neusight/end_to_end.csv"
CONFIGS = "neusight/model_configs"
_COLUMNS = ("model", "gpu", "mode", "option", "seqlen", "batch", "measured_ms", "neusight_ms")
EXPERTS = "experts"
_BERT = {"inf": "BertForSequenceClassification", "train": "BertForPreTraining"}
"""The BERT variant measured in each mode, from the last operators of its trace."""


class ModelRun(NamedTuple):
    """A measured run: seconds `measured`, of our forecast, of NeuSight's (None if not published). `trusted`: see `_trusted`."""

    model: str
    gpu: str
    mode: str
    option: str
    seq: int
    batch: int
    measured: float
    ours: float
    theirs: float | None
    trusted: bool

    @property
    def group(self) -> str:
        """Option whose mean the run counts for; EXPERTS for mixtures of experts, whose work depends on values."""
        return EXPERTS if self.model.startswith("switch") else self.option

    @property
    def error(self) -> float:
        """Signed relative error of our forecast: 0.1 if it is 10 % too long."""
        return self.ours / self.measured - 1

    @property
    def their_error(self) -> float | None:
        """Signed relative error of NeuSight's forecast, None if it is not published."""
        return None if self.theirs is None else self.theirs / self.measured - 1


class Mean(NamedTuple):
    """Mean absolute relative errors over `runs` runs of one GPU, mode and option; NeuSight's if published."""

    gpu: str
    mode: str
    option: str
    trusted: bool
    runs: int
    ours: float
    theirs: float | None


def runs(data: Path, predictor: Predictor) -> Iterator[ModelRun]:
    """Yield the measured single-GPU runs of the table with forecasts, if the model's configuration is there. Raises DataError."""
    path = data / TABLE
    if not path.is_file():
        raise DataError(f"{path}: no such table; the folder of measurements should hold {TABLE} and {CONFIGS}")
    single = pl.col("measured_ms").is_not_null() & pl.col("option").fill_null("").is_in(["", "fusion"])
    built = cache(_graph)  # many rows are of one graph
    for row in csv(path, _COLUMNS).filter(single).iter_rows(named=True):
        path = data / CONFIGS / f"{row['model']}.json"
        if path.is_file():
            graph = built(path, row["mode"], row["batch"], row["seqlen"], row["option"] == "fusion")
            yield _run(row, graph, predictor)


def _graph(path: Path, mode: str, batch: int, seq: int, fused: bool) -> Graph:
    """Return the operators of a model's forward pass, or with mode `train` of its step."""
    config = hugging_face.read(path)
    if config.kind == "bert":
        config = hugging_face.Config(config.path, {**config.keys, "architectures": [_BERT[mode]]})
    graph = loading.build(config, batch, seq, "fp32", mode == "train")
    return fuse(graph) if fused else graph


def _run(row: dict[str, Any], graph: Graph, predictor: Predictor) -> ModelRun:
    """Return a row of the table with its forecast."""
    gpu = gpus.load(row["gpu"])
    fused = row["option"] == "fusion"
    seconds = total(graph, predictor, gpu, eager=not fused).seconds
    theirs = None if row["neusight_ms"] is None else row["neusight_ms"] * 1e-3
    names = (row["model"], gpu.name, row["mode"], row["option"] or "", row["seqlen"], row["batch"])
    return ModelRun(*names, row["measured_ms"] * 1e-3, seconds, theirs, _trusted(gpu.name, row))


def _trusted(gpu: str, row: dict[str, Any]) -> bool:
    """Return whether a measured total is plausible. Some disagree with the sum of their own operators by 25 % or more.

    These are forward passes in training on A100-80GB (operators 27 to 38 % below the total) and P4 (its clock fell between
    runs), and on MI210 and MI250 gpt2_large at batch 4 and gpt3_xl in training (totals 1.7 to 2.7 times their operators).
    """
    if gpu in ("mi210", "mi250") and row["mode"] == "train":
        return not (row["model"] == "gpt3_xl" or (row["model"] == "gpt2_large" and row["batch"] == 4))
    return gpu != "p4" and not (gpu == "a100-pcie-80gb" and row["mode"] == "train")


def means(found: list[ModelRun]) -> list[Mean]:
    """Return the mean errors by GPU, mode and `group`. Implausible totals are separate, and last."""
    keys = dict.fromkeys((one.trusted, one.gpu, one.mode, one.group) for one in found)
    order = sorted(keys, key=lambda key: (not key[0], key[3], key[1], key[2]))
    return [_mean(key, [one for one in found if (one.trusted, one.gpu, one.mode, one.group) == key]) for key in order]


def _mean(key: tuple[bool, str, str, str], part: list[ModelRun]) -> Mean:
    """Return the mean errors of the runs `part`, at least one. key: (trusted, GPU, mode, group)."""
    theirs = [abs(one.their_error) for one in part if one.their_error is not None]
    ours = math.fsum(abs(one.error) for one in part) / len(part)
    trusted, gpu, mode, option = key
    return Mean(gpu, mode, option, trusted, len(part), ours, math.fsum(theirs) / len(theirs) if theirs else None)
