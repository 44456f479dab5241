"""Lower bounds of steps and memory in columns: all orders, replicas and overlaps of a split at once, without simulation.

Layers of one tensor-, context- and expert-parallel split, micro-batch and recomputation take the same time on all pipelines. So
their seconds are found once (`layer_times.py`), and a matrix of how many layers of each kind a rank has (`shapes.py`) gives those
of each rank, without the scales of fp8 that a stage adds. Let f and b be the seconds of a rank's lowest stage for one
microbatch, and m the microbatches:

    passes of r  = forward passes before r + m · busy of r, and its last backward pass is followed by those of the ranks before
    step        >= passes + gradients that no backward pass hides + update + parameters that no forward pass hides

Refined bounds follow the order of the schedule (`timeline.py`), and first passes wait for their parameters. A schedule
that splits backward passes waits for those of inputs alone. What shares links, the host and a slow GPU only add to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.collectives.nccl.choose import choose, collective_seconds
from clustersim.collectives.nccl.shape import CommunicatorShape, layout
from clustersim.collectives.plan import NCCL
from clustersim.engine.groups import replica_groups
from clustersim.errors import ClustersimError
from clustersim.hardware.constants import BYTES
from clustersim.model.kernel import Kernel
from clustersim.optimization.layer_times import LayerSteps, LayerTimes
from clustersim.optimization.shapes import LayerKinds, SplitShape, SplitShapes
from clustersim.optimization.timeline import FORWARD, WEIGHTS, UnitSeconds, earliest, units
from clustersim.parallel.job import Job
from clustersim.parallel.layout import Portion
from clustersim.parallel.memory import FRAMEWORK, shard_bytes
from clustersim.parallel.mesh import Mesh
from clustersim.parallel.optimizer import bucket, main_bytes, state_bytes, update, weight_bytes
from clustersim.parallel.stages import Layers
from clustersim.preparation import Preparation
from clustersim.schedules import check as schedules
from clustersim.schedules.pipeline import Pipeline

ROUNDED = 1 - 1e-9
"""Factor on bounds that absorbs rounding, because other sums have other digits."""
CHUNKS = 0.8
"""Smallest memory of the chunks of a rank as a share of equal chunks'."""
BALANCED = {"zbv": (1.0, 0), "v_half": (0.5, 0), "v_min": (1 / 3, 0), "dualpipev": (1.0, 0), "dualpipe": (1.0, 1)}
"""Microbatches that each rank keeps as a share of its ranks, and more ranks (Qi et al. 2024, table 1; DeepSeek-V3, table 2)."""
MANY = 1_000_000_000_000
"""Number of parameters for which an update is forecast: per parameter, no smaller update is faster."""


Hidden = tuple[str, ...]
"""Groups whose collectives a bound leaves out."""


class CandidateRows(NamedTuple):
    """Candidates of one tile as columns."""

    shape: Sequence[SplitShape]
    schedule: Sequence[str]
    batch: Ints
    dp: Ints
    zero: Ints
    reduce: Mask
    """Whether gradients are reduced during backward passes."""
    gather: Mask
    """Whether parameters are gathered during forward passes."""
    away: Mask
    """Whether ranks continue while their messages are sent."""

    def some(self, places: Sequence[int]) -> CandidateRows:
        """Return the rows with the indices `places`."""
        shape, schedule = [self.shape[place] for place in places], [self.schedule[place] for place in places]
        return CandidateRows._make([shape, schedule, *(part[places] for part in self[2:])])


@dataclass(frozen=True, slots=True, eq=False)
class EstimatedTile:
    """Layers of one tensor-, context- and expert-parallel split, micro-batch, recomputation and overlap inside passes."""

    job: Job
    kinds: LayerKinds
    steps: tuple[LayerSteps, ...]
    """Steps and saved bytes of each kind of layer."""
    saved: Floats
    """Bytes that each kind of layer saves per microbatch (kinds,)."""
    temporary: Floats
    """Bytes of temporary buffers of each kind while its backward pass runs."""
    parameters: Floats
    """Number of parameters of each kind of layer: on all replicas, and in experts (kinds, 2)."""
    frozen: Floats
    """Number of frozen weights in the same shape, counted in weights of the activations' type."""
    message: float
    """Bytes that a stage sends to the next."""
    times: dict[Hidden, Floats] = field(default_factory=dict)
    """Fields of `PassSeconds` of each kind of layer (kinds, 10), by the groups that are left out."""

    @property
    def kernels(self) -> Iterable[Kernel]:
        """Kernels of both passes."""
        return (kernel for layer in self.steps for kernel in layer.kernels)


class Estimator:
    """Lower bounds of jobs on one cluster, or on clusters of equal nodes."""

    def __init__(self, preparation: Preparation) -> None:
        self.preparation, self.cluster = preparation, preparation.cluster
        self.layers = LayerTimes(preparation)
        self.shapes = SplitShapes()
        self._shapes: dict[tuple[Mesh, int], CommunicatorShape] = {}
        self._rates: dict[tuple[Mesh, int, str, int], float] = {}
        self._updates: dict[tuple[object, ...], tuple[float, float]] = {}

    def tile(self, job: Job) -> EstimatedTile:
        """Return the layers of a job, independently of its pipeline and replicas."""
        base = job.changed({"parallelism.pp": 1, "parallelism.vpp": 1, "parallelism.dp": 1, "training.global_batch": 1})
        base = base.changed({"parallelism.schedule": "1f1b", "parallelism.layout": None})
        base = base.changed({"parallelism.first_layers": None, "parallelism.last_layers": None})
        placed = _marked_alike(base)
        layers = Layers(placed.shard_at(0))
        stack = Portion(True, len(layers.blocks), base.model.mtp_layers, True)
        stage = layers.stage(stack, layers.with_decoder_entry(stack, layers.blocks, 0), 0.0, 0.0, False)
        kinds = LayerKinds.of_model(layers, stage)
        steps = tuple(self.layers.steps(stage, layer) for layer in kinds.layers)
        parameters, frozen = np.array(
            [[held(layer) for layer in kinds.layers] for held in (stage.layer_parameters, stage.layer_frozen)], float
        )
        saved = np.array([layer.saved for layer in kinds.layers]) * (1 - job.training.offload.activations)
        if placed is not base:  # some blocks of a stage are recomputed, and any may be one of them
            whole_job = Layers(base.shard_at(0))
            marked = whole_job.stage(stack, whole_job.with_decoder_entry(stack, whole_job.blocks, 0), 0.0, 0.0, False)
            saved = saved * min(1.0, marked.saved_bytes / max(stage.saved_bytes, 1.0))
        temporary = np.array([layer.temporary[1] + layer.recomputed for layer in kinds.layers])
        return EstimatedTile(
            job, kinds, steps, saved, temporary, parameters, frozen, layers.hidden_bytes / job.message_parts
        )

    def learn(self, tiles: Sequence[EstimatedTile]) -> None:
        """Forecast the kernels of tiles in one call per predictor. Errors are left to the bound of the tile."""
        groups: dict[tuple[object, ...], tuple[Job, dict[Kernel, None]]] = {}
        for tile in tiles:
            job = tile.job
            _, kernels = groups.setdefault((job.spec.predictor, job.spec.clocks, job.training.attention), (job, {}))
            kernels.update(dict.fromkeys(tile.kernels))
        for job, kernels in groups.values():
            with suppress(ClustersimError):
                self.preparation.seconds(job, tuple(kernels))

    def memory(self, tile: EstimatedTile, rows: CandidateRows, times: float = 1.0) -> Floats:
        """Return a lower bound of peak bytes per candidate, also valid for any recomputation, at `times` the micro-batch."""
        if times > 1:
            inputs = [min(layer.input_bytes or layer.saved, layer.saved) for layer in tile.kinds.layers]
            tile = replace(tile, saved=np.array(inputs) * times, temporary=tile.temporary * 0)
        return _Columns(self, tile, rows, np.zeros((len(tile.steps), 10))).memory()

    def any_order(self, tile: EstimatedTile, rows: CandidateRows, hidden: Hidden) -> tuple[Floats, Floats]:
        """Return lower bounds of seconds and peak bytes that hold for any schedule, chunks, traffic and zero (each: rows).

        rows: pipelines in any one order; only their zero 3 keeps its value. hidden, and the error, are as in `seconds`.
        """
        rows = rows._replace(zero=np.where(rows.zero < 3, 2, rows.zero))
        return _Columns(self, tile, rows, self._times(tile, hidden)).any_order()

    def seconds(self, tile: EstimatedTile, rows: CandidateRows, hidden: Hidden = (), in_order: bool = False) -> Floats:
        """Return lower bounds of the steps of a tile's candidates (rows,). Raises ConfigError if kernels cannot be forecast.

        hidden: groups whose collectives are left out, as some overlap may hide them. in_order: whether passes follow the order of
        their schedule, which takes longer and is closer to the step. Rows that differ in memory alone are bounded once.
        """
        zero = np.where(rows.zero == 2, 1, rows.zero)
        parts = (part.tolist() for part in rows._replace(zero=zero)[2:])
        keys = list(zip(rows.shape, rows.schedule, *parts, strict=True))
        first = {key: row for row, key in reversed(list(enumerate(keys)))}
        number = {row: place for place, row in enumerate(first.values())}
        bounds = _Columns(self, tile, rows.some(list(number)), self._times(tile, hidden)).seconds(in_order)
        return bounds[[number[first[key]] for key in keys]]

    def _times(self, tile: EstimatedTile, hidden: Hidden = ()) -> Floats:
        """Return the fields of `PassSeconds` of each kind of layer (kinds, 10). hidden: as in `seconds`."""
        if hidden not in tile.times:
            tile.times[hidden] = np.array([self.layers.seconds(tile.job, steps, hidden) for steps in tile.steps])
        return tile.times[hidden]

    def token(self, tile: EstimatedTile, hidden: Hidden = ()) -> float:
        """Return the least seconds per sequence of the passes of all layers. hidden, and the error, are as in `seconds`."""
        counts = np.bincount(tile.kinds.blocks, minlength=len(tile.steps))
        forward, backward, _, _, out, back, *_ = self._times(tile, hidden).T
        return float(counts @ np.maximum(forward + backward, out + back)) / tile.job.training.micro_batch

    def message(self, size: float, far: bool) -> float:
        """Return the least seconds of a message of `size` bytes, between nodes if `far`; more ranks have no more channels."""
        pair = CommunicatorShape(2, 2, 1, 1) if far else CommunicatorShape(1, 2, 2, 0)
        launch = self.cluster.node.nccl.launch
        return min(
            collective_seconds(choose("send", size, pair, kind.facts), size, launch) for kind in self.cluster.kinds
        )

    def rate(self, mesh: Mesh, pipeline: Pipeline, op: str, power: int) -> float:
        """Return the least seconds per byte of a collective of 2^power bytes among ranks with the same parameters."""
        if (key := (mesh, pipeline.copies, op, power)) not in self._rates:
            if key[:2] not in self._shapes:
                self._shapes[key[:2]] = layout(self.cluster, np.sort(replica_groups(mesh, pipeline)[0]))[0]
            choice = choose(op, size := 2.0**power, self._shapes[key[:2]], self.cluster.node)
            self._rates[key] = collective_seconds(choice, size, self.cluster.node.nccl.launch) / size
        return self._rates[key]

    def update(self, job: Job, zero: int, dp: int) -> tuple[float, float]:
        """Return the seconds per parameter of a huge update at `zero` and `dp`: of parameters on all replicas, of experts'."""
        split = job.parallelism
        settings = job.spec.predictor, job.spec.clocks, job.training, split.fsdp, split.optimizer_instances
        key = (*settings, zero, dp, split.tp, split.cp, split.ep, split.etp)
        if key not in self._updates:
            changed = job.changed({"parallelism.zero": zero, "parallelism.dp": dp})
            values = []
            for kernels in (update(changed, MANY), update(changed, MANY, MANY)):
                seconds = self.preparation.seconds(job, kernels)
                values.append(math.fsum(seconds[kernel] for kernel in kernels) / MANY)
            self._updates[key] = values[0], values[1]
        return self._updates[key]


class _PassBounds(NamedTuple):
    """Least seconds of the passes of candidates (rows, ranks)."""

    ends: Floats
    """Seconds until a rank has ended its passes."""
    last: Floats
    """Seconds until its last backward pass ends."""
    forward: Floats
    """Seconds of a forward pass of its lowest stage."""
    backward: Floats
    """Seconds of a backward pass of that stage."""


class _Columns:
    """Computation of the bounds of one tile's rows."""

    def __init__(self, estimator: Estimator, tile: EstimatedTile, rows: CandidateRows, times: Floats) -> None:
        self.bounds, self.tile, self.rows = estimator, tile, rows
        self.pack, self.at = estimator.shapes.pack(tile.kinds, tile.job, rows.shape)
        self.times = times
        self.job, split = tile.job, tile.job.parallelism
        self.copies = self.pack.copies[self.at]
        dense = self.copies * rows.dp * split.cp
        self.held = np.stack([dense, dense * split.tp // (split.ep * split.etp)], axis=1)
        """Ranks that hold the same parameters: those of all replicas, and those of experts (rows, 2)."""
        self.params = self.pack.busy @ tile.parameters
        """Parameters of each rank, outside experts and in experts (shapes, ranks, 2)."""
        letters = [_letters(name, shape.vpp) for name, shape in zip(rows.schedule, rows.shape, strict=True)]
        self.split, self.combined = np.array(letters, bool).T
        """Whether a schedule has passes for weight gradients, and whole backward passes (rows,)."""

    def seconds(self, in_order: bool = False) -> Floats:
        """Return the bounds of steps (rows,). in_order: whether passes follow the order of their schedule."""
        rows, pack, reduced = self.rows, self.pack, np.zeros((1, 1))
        passes = self._passes()
        behind, after, before = self._traffic(passes)
        if in_order:
            ordered = np.zeros((3, *passes.ends.shape))
            for row, shape in enumerate(rows.shape):
                ordered[:, row, : shape.pp] = self._timeline(row, before[row])
            late, reduced = before[:, None], ordered[2]
            ends, last = np.maximum(passes.ends + late, ordered[0]), np.maximum(passes.last + late, ordered[1])
            passes, before = passes._replace(ends=ends, last=last), np.zeros(1)
        ready = np.where((rows.reduce & ~self.split)[:, None], passes.last, passes.ends) + behind
        ready = np.maximum(np.maximum(passes.ends, ready), reduced)
        update = self._update()
        if self.job.training.clip_gradients:
            ready = ready.max(axis=1, keepdims=True)
        seconds = np.where(pack.ranks[self.at], ready + update + after, 0.0).max(axis=1) + before
        return np.asarray(seconds * ROUNDED)

    def _passes(self) -> _PassBounds:
        """Return the passes of all rows, each rank's without the order of its schedule."""
        rows, pack, at = self.rows, self.pack, self.at
        busy, low = ((part @ self.times)[at] for part in (pack.busy, pack.low))
        combined, split = self.combined[:, None], self.split[:, None]
        message, waits = self._messages()[:, None], ~rows.away[:, None]
        sent, low_sent = pack.sent[at] * message[..., None], pack.low_sent[at] * message[..., None]

        def backward(seconds: Floats) -> Floats:
            """Return the seconds of a backward pass from fields of `PassSeconds` in the last axis."""
            return np.where(combined, seconds[..., 1], seconds[..., 2] + seconds[..., 3])

        forward, weights = low[..., 0] + low[..., 8], low[..., 2]
        low_back = backward(low) + low[..., 9]
        share = (rows.batch / self.copies)[:, None]
        single, least = np.zeros((1, 1)), (pack.least @ self.times)[at]
        if self.job.parallelism.overlap.ep == "microbatch":
            each = list(zip(rows.schedule, rows.shape, rows.batch.tolist(), strict=True))
            known = {row: units(row[0], row[1].pp, row[2], row[1].vpp, True)[0].single for row in set(each)}
            single = np.array([np.pad(known[row], (0, busy.shape[1] - len(known[row]))) for row in each])
        computed = share * (busy[..., 0] + backward(busy)) + single * least[..., 8:].sum(axis=2)
        exchanged = share * busy[..., 4:6].sum(axis=2) + single * (least[..., 0] + backward(least))
        both = np.maximum(computed + share * waits * sent.sum(axis=2), exchanged)  # messages block computation alone
        fill = np.cumsum(onwards := forward + low_sent[..., 0], axis=1) - onwards
        inputs = low_back - split * weights
        single_pipeline = (self.copies == 1)[:, None]  # of a pair of pipelines, no rank waits for all others
        ends, away = np.where(single_pipeline, fill, 0.0) + both, low_sent[..., 1] * waits
        followed = _followed(ends - share * split * busy[..., 2] - away, inputs, low_sent[..., 1])
        last = np.where(single_pipeline, followed, ends)
        ends = np.where(single_pipeline, np.maximum(ends, last + away + split * weights), ends)
        return _PassBounds(ends, last, forward, low_back)

    def _timeline(self, row: int, before: float) -> tuple[Floats, Floats, Floats]:
        """Return when each rank of a row has ended its passes, its last gradients of inputs, and its reductions (each: ranks).

        before: seconds by which the first pass waits for its parameters.
        """
        rows, job, shape, name = self.rows, self.job, self.rows.shape[row], self.rows.schedule[row]
        on = schedules.pipeline(name, shape.pp, shape.vpp)
        overlapped = job.parallelism.overlap.ep == "microbatch"
        order, periods = units(name, shape.pp, int(rows.batch[row]), shape.vpp, overlapped)
        stages = self.bounds.shapes.stages(self.tile.kinds, job, shape)
        held, waits = stages.layers @ self.tile.parameters, not rows.away[row]
        forward, backward, weights, inputs, out, back, _, _, more, more_back = (stages.layers @ self.times).T
        none = np.zeros_like(forward)
        apart_seconds = np.stack([forward + more, backward + more_back, inputs + more_back, weights, none])
        reduce, gather = (rate[row] for rate in self._held_rates)
        gates, gathered = none.copy(), held * gather * weight_bytes(job) * (rows.gather[row] and rows.zero[row] > 0)
        for own in map(list, order.gathered):
            gates[own] = np.cumsum(gathered[own], axis=0).max(axis=1) - apart_seconds[FORWARD, own]
        gates += (stages.top @ self.times)[:, 6]
        gates[0] = max(gates[0], before)
        letter, stage = order.kinds[..., 0].T, order.kinds[..., 1].T
        pair, (first, second), (own, other) = letter[1] == FORWARD, apart_seconds[letter, stage], stage
        onwards, backwards = stages.sends.T * self._messages()[row]
        sent = np.stack([onwards, backwards, backwards, none, none])[letter, stage]
        apart = waits * sent[0] * (not on.paired)
        whole = np.maximum(backward[own] + forward[other] + apart, back[own] + out[other])
        late = on.paired | (back[own] <= out[other])
        held_up = waits * (sent[1] + sent[0] * (~pair | on.paired))
        seconds = UnitSeconds(first, second, np.maximum.reduce([whole, first, second]), sent, held_up, pair, late)
        begin, end, free = earliest(order, seconds, gates, on.paired, periods)
        reduced = np.zeros((shape.pp, 2))
        for own in np.argsort(order.closing).tolist() if rows.reduce[row] else ():
            unit, rank = order.closing[own], on.rank(own)
            ready = (end if letter[0, order.columns[1, unit]] == WEIGHTS else begin)[unit]
            reduced[rank] = np.maximum(reduced[rank], ready) + held[own] * reduce * BYTES[job.training.gradients]
        return free, end[order.returning], reduced.max(axis=1)

    def _messages(self) -> Floats:
        """Return the seconds of a message between stages (rows,). Stages smaller than a node use the faster of both networks."""
        split, size = self.job.parallelism, self.tile.message
        near = self.bounds.message(size, False)
        far = self.bounds.message(size, True) if self.bounds.cluster.nodes > 1 else near
        width = int(self.bounds.cluster.numbering.widths[-1])
        return np.where(split.tp * split.cp * self.rows.dp >= width, far, min(near, far))

    def _traffic(self, passes: _PassBounds) -> tuple[Floats, Floats, Floats]:
        """Return seconds of data-parallel traffic: after passes and after updates (both: rows, ranks), before passes (rows,)."""
        rows, pack, at, job = self.rows, self.pack, self.at, self.job
        low, least = pack.low @ self.tile.parameters, pack.least @ self.tile.parameters
        wide, narrow = BYTES[job.training.gradients], weight_bytes(job)

        def slower(part: Floats, rate: Floats) -> Floats:  # experts and all else have separate streams
            """Return the longer time of two streams, of experts and of all else. rate: seconds per parameter in `part`."""
            return np.maximum(part[at, :, 0] * rate[:, :1], part[at, :, 1] * rate[:, 1:])

        table, kind = np.zeros_like(self.tile.parameters), self.tile.kinds.ends[0][0]
        table[kind] = self.tile.parameters[kind]
        table = pack.low @ table  # read first, and the last to have its gradient
        reduce, gather = self._held_rates
        reduce_one, gather_one = self._rates(table)
        in_full = self._over(self.params, reduce) * wide
        # of a stage's last layer, whose parameters are read last and ready first
        ends = (pack.top @ self.times[:, 6:8])[at]
        first = slower(low, reduce) * wide - passes.backward + ends[..., 1]
        first = np.maximum(first, slower(table, reduce_one) * wide)
        behind = np.where(
            rows.reduce[:, None], np.where(self.split[:, None], slower(least, reduce) * wide / 2, first), in_full
        )
        sharded = (rows.zero > 0)[:, None]
        after = np.where(sharded & ~rows.gather[:, None], self._over(self.params, gather) * narrow, 0.0)
        late = slower(low, gather) * narrow - passes.forward + ends[..., 0]
        late = np.maximum(late, slower(table, gather_one) * narrow)[:, 0]
        before = np.where((rows.zero > 0) & rows.gather & (self.copies == 1), late, 0.0)
        return np.maximum(behind, 0.0), after, np.maximum(before, 0.0)

    @cached_property
    def _held_rates(self) -> tuple[Floats, Floats]:
        """Rates of the parameters of whole ranks, as `_rates`."""
        return self._rates(self.params)

    def _rates(self, params: Floats) -> tuple[Floats, Floats]:
        """Return the seconds per byte of gradients and of parameters: on all replicas, and of experts (each: rows, 2).

        params: parameters of the largest collective of a shape, by rank and family (shapes, ranks, 2). 0 without a formula.
        """
        split, rows, training = self.job.parallelism, self.rows, self.job.training
        rates = np.zeros((2, len(self.at), 2))
        ours = split.algorithms.dp == NCCL and split.zero != 3 and split.optimizer_instances == 1
        if not ours or self.bounds.cluster.pools:
            return rates[0], rates[1]
        known: dict[tuple[object, ...], Floats] = {}
        largest = np.maximum(params.sum(axis=2).max(axis=1), 1.0)[self.at][:, None]
        buckets = [bucket(self.job, copies) for copies in self.held[:, 0].tolist()]
        buckets = np.array(buckets) + self.tile.parameters.max()  # a bucket ends in the layer that fills it
        at_once = np.stack([~rows.reduce | self.split, ~rows.gather], axis=1)
        largest = np.where(at_once, largest, np.minimum(largest, buckets[:, None]))
        powers = np.ceil(np.log2(largest * (BYTES[training.gradients], weight_bytes(self.job)))).astype(int).tolist()
        each = zip(rows.shape, rows.dp.tolist(), rows.zero.tolist(), powers, strict=True)
        for row, (shape, dp, zero, sizes) in enumerate(each):
            key = shape.pp, shape.copies, dp, zero > 0, *sizes
            if key not in known:
                pipeline = schedules.pipeline(shape.order, shape.pp, shape.vpp)
                dense = Mesh(split.tp, shape.pp, dp, split.cp)
                copies = dp * split.cp * split.tp // (split.ep * split.etp)
                meshes = dense, Mesh(split.etp, shape.pp, copies, ep=split.ep) if split.spread else dense
                ops = ("reduce_scatter" if zero else "all_reduce", "all_gather")
                known[key] = np.array(
                    [
                        [
                            self.bounds.rate(mesh, pipeline, op, size) if shape.copies * mesh.dp * mesh.cp > 1 else 0.0
                            for mesh in meshes
                        ]
                        for op, size in zip(ops, sizes, strict=True)
                    ]
                )
            rates[:, row] = known[key]
        return rates[0], rates[1]

    @property
    def _shards(self) -> Floats:
        """Number of ranks that share one copy of the optimizer's state (rows, 2)."""
        split = self.job.parallelism
        shards = np.where((self.rows.zero > 0)[:, None], self.held // split.optimizer_instances, 1)
        limit = split.fsdp.shard if split.zero == 3 else None
        return np.maximum(np.minimum(shards, limit) if limit else shards, 1).astype(float)

    def _over(self, part: Floats, rate: Floats) -> Floats:
        """Return the sum over both families of `part` (shapes, ranks, 2), at the rate of each row (rows, 2): (rows, ranks)."""
        return part[self.at, :, 0] * rate[:, :1] + part[self.at, :, 1] * rate[:, 1:]

    def _update(self) -> Floats:
        """Return the seconds of each rank's optimizer update (rows, ranks); 0 for `muon`, which has no bound, and `none`."""
        if self.job.training.optimizer in ("none", "muon"):
            return np.zeros((len(self.at), 1))
        pairs = list(zip(self.rows.zero.tolist(), (self.rows.dp * self.copies).tolist(), strict=True))
        known = {pair: self.bounds.update(self.job, *pair) for pair in set(pairs)}
        return self._over(self.params, np.array([known[pair] for pair in pairs]))

    def any_order(self) -> tuple[Floats, Floats]:
        """Return the seconds and bytes that any order needs: those of the mean rank (each: rows).

        A step takes at least the mean work of its ranks, and the passes of one microbatch through all stages, whose gradients of
        weights may come later. No pipeline fills or drains, and ranks keep as few microbatches as in the frugalest schedule.
        """
        ranks, blocks = self.pack.length[self.at], np.bincount(self.tile.kinds.blocks, minlength=len(self.tile.steps))
        both = (self.pack.busy @ self.times).sum(axis=1)[self.at] / self.copies[:, None]  # of a pair of pipelines
        forward, backward, weights, inputs, out, back, *_ = both.T
        computed = forward + np.minimum(backward, weights + inputs)
        work = self.rows.batch / ranks * np.maximum(computed, out + back)
        fewest = min(share for share, _ in BALANCED.values())
        more = np.maximum(CHUNKS * np.minimum(self.rows.batch / 2, ranks * fewest) - 1, 0.0)  # after the first
        kept = (self.pack.busy @ self.tile.saved)[self.at].sum(axis=1) / self.copies + more * (blocks @ self.tile.saved)
        memory = (self._state().sum(axis=1) + kept) / ranks + FRAMEWORK
        return np.maximum(work, computed - weights) * ROUNDED, memory

    def memory(self) -> Floats:
        """Return a lower bound of the peak bytes of the rank that needs most (rows,)."""
        flight, single = self._in_flight()
        pack, saved = self.pack, self.tile.saved
        busy, least, top = pack.busy @ saved, pack.least @ saved, pack.top @ self.tile.temporary
        chunks = self.copies * np.array([shape.vpp for shape in self.rows.shape])
        several = np.maximum(busy[self.at], least[self.at] * chunks[:, None] * flight)
        several = several / self.copies[:, None]  # the copies of a pair need not keep one at a time
        kept = np.where(single, busy[self.at] * flight + top[self.at], several)
        return np.asarray((self._state() + kept).max(axis=1) + FRAMEWORK)

    def _state(self) -> Floats:
        """Return the bytes of weights, gradients and optimizer states of each rank (rows, ranks)."""
        job, per_shard = self.job, 1.0 / self._shards
        share, all_of = self._over(self.params, per_shard), self.params.sum(axis=2)[self.at]
        width, main, offload = BYTES[job.training.gradients], main_bytes(job), job.training.offload
        stays = 1 - offload.optimizer_states
        zero = self.rows.zero[:, None]
        sharded = (zero == 3) & (self.held.max(axis=1) > 1)[:, None]
        frozen = weight_bytes(job) * (self.pack.busy @ self.tile.frozen)
        weights = np.where(sharded, shard_bytes(job) * share, weight_bytes(job) * all_of)
        frozen_shard = 0.0 if offload.parameters else self._over(frozen, per_shard)
        weights += np.where(sharded, frozen_shard, frozen.sum(axis=2)[self.at])
        gradients = np.where(sharded, stays * main * share, np.where(zero == 2, stays * width * share, width * all_of))
        return np.asarray(weights + gradients + stays * state_bytes(job) * share)

    def _in_flight(self) -> tuple[Floats, Mask]:
        """Return the fewest microbatches of each rank at its peak, and whether its one stage has them (both: rows, ranks)."""
        length = self.pack.length[self.at][:, None]
        batch, left = self.rows.batch[:, None], np.clip(length - np.arange(self.pack.busy.shape[1]), 1, None)
        chunks, names = (
            np.array(values)[:, None] for values in ([shape.vpp for shape in self.rows.shape], self.rows.schedule)
        )
        plain = np.isin(names, ("1f1b", "zero_bubble", "zb_h2")) & (chunks == 1)
        several = CHUNKS * np.minimum(batch * chunks, 2 * (left - 1) + (chunks - 1) * length + 1) / chunks
        kinds = plain, np.isin(names, ("interleaved", "zero_bubble")) & (chunks > 1), names == "gpipe"
        flight = np.select(kinds, [np.minimum(batch, left), several, batch], 1.0)
        for name, (share, more) in BALANCED.items():  # of fewer than two a rank some are done before others come
            most = CHUNKS * np.minimum(batch / 2, (length + more) * share)
            flight = np.where(names == name, most, flight)
        return np.maximum(flight, 1.0), plain


def _followed(last: Floats, backward: Floats, message: Floats) -> Floats:
    """Return the earliest end (rows, ranks) of each rank's last backward pass: after its own work, or that of ranks after it."""
    step = backward[:, :-1] + message[:, 1:]
    between = np.concatenate([np.zeros((len(last), 1)), np.cumsum(step, axis=1)], axis=1)
    return np.asarray(np.maximum.accumulate((last + between)[:, ::-1], axis=1)[:, ::-1] - between)


def _marked_alike(job: Job) -> Job:
    """Return the job itself, or if its stages recompute only some of their blocks, the job without recomputation."""
    how = job.training
    some = how.recompute_every or how.recompute_layers
    if how.recompute == "none" or not some:
        return job
    none = dict.fromkeys(("training.recompute_layers", "training.recompute_every"))
    return job.changed({"training.recompute": "none", **none})


@lru_cache(maxsize=256)
def _letters(schedule: str, chunks: int) -> tuple[bool, bool]:
    """Return whether a schedule has separate weight-gradient passes, and whether some backward passes compute both gradients."""
    letters = {action.letter for row in schedules.load(schedule, 2, 4, chunks) for action in row}
    return bool(letters & {"I", "W"}), "B" in letters
