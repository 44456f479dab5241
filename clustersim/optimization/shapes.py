"""Layers of each pipeline rank as count matrices, rank by kind of layer, for all pipelines of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.model.operator import Layer
from clustersim.parallel.job import Job
from clustersim.parallel.layout import portions
from clustersim.parallel.stages import Layers, Stage
from clustersim.schedules import check as schedules


class SplitShape(NamedTuple):
    """Shape of a pipeline."""

    pp: int
    vpp: int
    order: str
    """Name of a schedule with the same stages on each rank."""
    copies: int
    """Number of copies of the model."""


class LayerKinds(NamedTuple):
    """Distinct layers of a model, and their positions."""

    layers: tuple[Layer, ...]
    blocks: tuple[int, ...]
    """Kind of each block, in order, including a decoder's entry before its first block."""
    entry: int
    """Index of the first block of a decoder, -1 without an encoder."""
    ends: tuple[tuple[int, ...], tuple[int, ...]]
    """Kinds of the layers before the blocks, and of those with the loss."""

    @classmethod
    def of_model(cls, layers: Layers, stage: Stage) -> LayerKinds:
        """Return the kinds of a model's layers. stage: all layers as one stage."""
        row = [layer for layer, count in stage.layers for _ in range(count)]
        kinds: dict[int, int] = {}
        distinct: list[Layer] = []
        for layer in row:
            if id(layer) not in kinds:
                kinds[id(layer)] = len(distinct)
                distinct.append(layer)
        at = [kinds[id(layer)] for layer in row]
        blocks = len(layers.blocks) + bool(layers.encoder)
        entry = layers.encoder or -1
        return cls(tuple(distinct), tuple(at[1 : 1 + blocks]), entry, ((at[0],), tuple(at[1 + blocks :])))

    @property
    def key(self) -> tuple[object, ...]:
        """Positions of the kinds, on which shapes depend."""
        return self.blocks, self.entry, self.ends


class Pack(NamedTuple):
    """Distinct pipelines in padded arrays: shapes, ranks, kinds of layers."""

    busy: Floats
    """Number of layers of each rank."""
    low: Floats
    """Number of layers of the rank's lowest stage."""
    least: Floats
    """Number of layers that each stage of the rank has at least, without the last stage's loss in a folded pipeline."""
    top: Floats
    """Last layer of the rank's lowest stage."""
    sent: Floats
    """Number of the rank's stages that send activations, and gradients (shapes, ranks, 2)."""
    low_sent: Floats
    """Number of sends of its lowest stage, likewise."""
    length: Ints
    ranks: Mask
    """Whether a position is a rank (shapes, ranks)."""
    copies: Ints


class StageLayers(NamedTuple):
    """Layers of each global stage, and what it sends."""

    layers: Floats
    """Number of layers of each kind (stages, kinds)."""
    top: Floats
    """Last layer of the stage."""
    sends: Floats
    """Whether the stage sends activations and gradients (stages, 2)."""


class SplitShapes:
    """Matrices of pipelines, each created once."""

    def __init__(self) -> None:
        self._matrices_of: dict[tuple[object, ...], tuple[Floats, ...]] = {}
        self._packs: dict[tuple[object, ...], Pack] = {}
        self._stages: dict[tuple[object, ...], StageLayers] = {}

    def stages(self, kinds: LayerKinds, job: Job, shape: SplitShape) -> StageLayers:
        """Return the layers of the stages of a pipeline."""
        if (key := (_key(kinds, job), shape)) not in self._stages:
            self._stages[key] = _stage_layers(kinds, job, shape)
        return self._stages[key]

    def pack(self, kinds: LayerKinds, job: Job, shapes: Sequence[SplitShape]) -> tuple[Pack, Ints]:
        """Return the distinct pipelines of rows with these `shapes`, and the index of each row's pipeline (rows,)."""
        places: dict[SplitShape, int] = {}
        at = np.array([places.setdefault(shape, len(places)) for shape in shapes])
        key = _key(kinds, job)
        if (pack_key := (key, tuple(places))) not in self._packs:
            self._packs[pack_key] = self._packed(kinds, job, list(places), key)
        return self._packs[pack_key], at

    def _packed(self, kinds: LayerKinds, job: Job, shapes: Sequence[SplitShape], key: tuple[object, ...]) -> Pack:
        """Return the pipelines of `shapes`, all distinct, padded to the longest. key: `_key` of the layers."""
        longest = max(shape.pp for shape in shapes)
        columns: list[list[Floats]] = [[] for _ in range(6)]
        for shape in shapes:
            if (shape_key := (key, shape)) not in self._matrices_of:
                self._matrices_of[shape_key] = _matrices(self.stages(kinds, job, shape), shape)
            for column, matrix in zip(columns, self._matrices_of[shape_key], strict=True):
                column.append(np.pad(matrix, ((0, longest - shape.pp), (0, 0))))
        length = np.array([shape.pp for shape in shapes])
        copies = np.array([shape.copies for shape in shapes])
        ranks = np.arange(longest)[None] < length[:, None]
        busy, low, least, top, sent, low_sent = (np.array(column) for column in columns)
        return Pack(busy, low, least, top, sent, low_sent, length, ranks, copies)


def _key(kinds: LayerKinds, job: Job) -> tuple[object, ...]:
    """Return all that the layers of stages depend on, apart from the pipeline."""
    split = job.parallelism
    cut = split.partition, split.account_for_embedding, split.account_for_loss
    return (kinds.key, *cut, split.first_layers, split.last_layers, split.layout)


def _stage_layers(kinds: LayerKinds, job: Job, shape: SplitShape) -> StageLayers:
    """Return the layers of all stages of a pipeline, those of the first copy first."""
    changes = {"parallelism.pp": shape.pp, "parallelism.vpp": shape.vpp, "parallelism.schedule": shape.order}
    cut = portions(job.changed(changes).parallelism, job.model)
    count = len(kinds.layers)
    before, loss = kinds.ends
    stages, tops = np.zeros((len(cut), count)), np.zeros((len(cut), count))
    first = 0
    for stage, portion in enumerate(cut):
        end = first + portion.blocks
        blocks = kinds.blocks[first + (0 <= kinds.entry < first) : end + (0 <= kinds.entry < end)]
        kinds_of_stage = [*(before if portion.embedding else ()), *blocks, *(loss if portion.loss else ())]
        tops[stage, kinds_of_stage[-1]] = 1.0
        stages[stage] = np.bincount(kinds_of_stage, minlength=count)
        first = end
    sends = np.ones((len(cut), 2)) if shape.pp > 1 else np.zeros((len(cut), 2))
    sends[-1, 0] = sends[0, 1] = 0.0
    if schedules.pipeline(shape.order, shape.pp, shape.vpp).folded and len(cut) > shape.pp:
        sends[shape.pp - 1, 0] = sends[shape.pp, 1] = 0.0  # the last rank hands on to itself
    return StageLayers(*(np.tile(part, (shape.copies, 1)) for part in (stages, tops, sends)))


def _matrices(stages: StageLayers, shape: SplitShape) -> tuple[Floats, ...]:
    """Return the columns of `Pack` for one pipeline, up to `low_sent`."""
    pipeline = schedules.pipeline(shape.order, shape.pp, shape.vpp)
    rank_stages = [list(pipeline.rank_stages(rank)) for rank in range(shape.pp)]
    lowest = [numbers[0] for numbers in rank_stages]
    least = np.array([stages.layers[numbers].min(axis=0) for numbers in rank_stages])
    busy = np.array([stages.layers[numbers].sum(axis=0) for numbers in rank_stages])
    sent = np.array([stages.sends[numbers].sum(axis=0) for numbers in rank_stages])
    return busy, stages.layers[lowest], least, stages.top[lowest], sent, stages.sends[lowest]
