"""A lower bound of a step's time without playing it: what must happen one after the other, on an idle network.

Let f and b be the seconds of a stage's forward and backward pass, kernels and what these cannot hide of tensor- and
context-parallel communication (`passes.py`), and m the microbatches. All that runs on a rank runs in turn, so a rank is busy for
m times the sum of f + b of its stages. Its first pass waits for one forward pass of every stage before it, and for the parameters
that are gathered meanwhile (`exposed.py`). Its last backward pass is one of its lowest stage, as every other backward pass of
that microbatch comes before it, and the stages before that follow with one each. All gradients are reduced before their norm is
taken, every norm comes before any update, and an update before its parameters are gathered:

    passes of r  = f before r + m · busy of r
    gradients    = max over ranks q <= r of (passes of r + b between r and q + reduction of q)
    step        >= gradients + norm + max over ranks of (update + gather)

A message takes what NCCL needs in a communicator of its two ranks, and a rank waits until it is away (unless `overlap.p2p`).
Where a schedule splits backward passes, those of inputs alone follow each other like that: each waits for no weight gradients,
its rank's own of that microbatch come after it. A pipeline of pairs is played (`paired.py`). What shares links and the host only
add to it. So does a slow GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.collectives.nccl.choose import choose, collective_seconds
from clustersim.collectives.nccl.shape import Shape
from clustersim.errors import ClustersimError
from clustersim.model.kernel import Kernel
from clustersim.optimization.exposed import DataParallelSeconds, Exposed, exposed
from clustersim.optimization.paired import ActionKey, PairedOrder
from clustersim.optimization.passes import LayerSteps, LeastPasses
from clustersim.parallel.job import Job
from clustersim.parallel.layout import Portion
from clustersim.parallel.memory import at_rest
from clustersim.parallel.optimizer import update
from clustersim.parallel.stages import Layers, Stage, stages
from clustersim.preparation import Preparation
from clustersim.schedules import check as schedules
from clustersim.schedules.pipeline import Pipeline

TRAFFIC = ("grad_reduce", "param_gather", "p2p")
"""Fields of `parallelism.overlap` of which no layer depends."""
WholeModels = dict[tuple[int, str], tuple[Layers, Stage]]
"""The layers of a model, and all of them as one stage, by micro-batch and recompute."""


class MicrobatchSeconds(NamedTuple):
    """Least seconds of one microbatch by pipeline rank (pp,)."""

    forward: Floats
    """Of the forward pass of its lowest stage, and the message after it."""
    backward: Floats
    """Of the backward pass of that stage."""
    message: Floats
    """Of the message after that."""
    weights: Floats
    """Of the weight gradients of that stage, part of `backward`."""
    busy: Floats
    """Of both passes of all its stages, with the messages that are waited for."""
    all_weights: Floats
    """Of the weight gradients of all its stages, part of `busy`."""


class LowerBounds:
    """Lower bounds of jobs on one cluster; layers that are alike, and their kernels, are looked at once."""

    def __init__(self, preparation: Preparation) -> None:
        self.preparation = preparation
        self.data_parallel = DataParallelSeconds(preparation.cluster)
        self.passes = LeastPasses(preparation)
        self.orders: dict[tuple[object, ...], PairedOrder] = {}
        """Of pipelines of pairs."""
        self._layers: dict[tuple[object, ...], WholeModels] = {}
        self._splits: dict[tuple[object, ...], SplitBounds] = {}

    def of(self, job: Job) -> SplitBounds:
        """Return the bounds of a job and of all that differ in what `SplitBounds` share alone."""
        zero = 3 if job.parallelism.zero == 3 else 0
        overlap = job.parallelism.overlap.model_copy(update=dict.fromkeys(TRAFFIC, False))
        same = {"dp": 1, "schedule": job.order_of_stages, "zero": zero, "overlap": overlap}
        split = job.parallelism.model_copy(update=same)
        training = job.training.model_copy(update={"global_batch": 1, "micro_batch": 1, "recompute": "none"})
        key = job.model, training, split, job.spec.predictor, job.spec.clocks
        if key not in self._splits:
            layers = self._layers.setdefault((job.model, training, split.uncut), {})
            self._splits[key] = SplitBounds(self, job.pipeline, layers)
        return self._splits[key]

    def learn(self, asked: Iterable[tuple[SplitBounds, Job]]) -> None:
        """Forecast the passes of jobs, in one call a predictor; what is wrong with one, its own bound says."""
        found: dict[tuple[object, ...], tuple[Job, dict[int, LayerSteps]]] = {}
        for own, job in asked:
            _, layers = found.setdefault((job.spec.predictor, job.spec.clocks, job.training.attention), (job, {}))
            stage = own.whole(job)[1]
            layers.update((id(layer), self.passes.steps(stage, layer)) for layer, _ in stage.layers)
        for job, layers in found.values():
            kernels = dict.fromkeys(kernel for one in layers.values() for kernel in one.kernels)
            with suppress(ClustersimError):
                self.preparation.seconds(job, tuple(kernels))


class SplitBounds:
    """Lower bounds of jobs that differ in global batch, micro-batch, recompute, dp, schedule, zero below 3 and `TRAFFIC`."""

    def __init__(self, bounds: LowerBounds, pipeline: Pipeline, models: WholeModels) -> None:
        self.bounds, self.pipeline, self.pp, self.models = bounds, pipeline, pipeline.ranks, models
        self.own = np.array([pipeline.own(rank) for rank in range(self.pp)]).T
        """The stages of each rank (stages, pp)."""
        self._parts: dict[tuple[object, ...], Sequence[Stage]] = {}
        self._held: list[tuple[int, int]] = []
        self._rest: dict[tuple[int, ...], Floats] = {}
        self._saved: dict[tuple[int, str], Floats] = {}
        self._updates: dict[tuple[int, ...], dict[tuple[int, int], tuple[Kernel, ...]]] = {}
        self._updating: dict[tuple[int, ...], Floats] = {}
        self._pipelines: dict[tuple[object, ...], MicrobatchSeconds] = {}
        self._exposed: dict[tuple[object, ...], Exposed] = {}
        self._paired: dict[tuple[object, ...], list[float]] = {}

    def part(self, job: Job) -> Sequence[Stage]:
        """Return the stages of a job, those of the first position of its ep groups."""
        if (key := _microbatch(job)) not in self._parts:
            self._parts[key] = stages(job, 0, self.whole(job)[0])
        return self._parts[key]

    def whole(self, job: Job) -> tuple[Layers, Stage]:
        """Return the layers of a job, and all of them as one stage; those of other cuts are the same."""
        if (key := _microbatch(job)) not in self.models:
            layers = Layers(job.shard_at(0))
            whole = Portion(True, len(layers.blocks), job.model.mtp_layers, True)
            self.models[key] = layers, layers.stage(whole, layers.entered(whole, layers.blocks, 0), 0.0, 0.0, False)
        return self.models[key]

    def stages(self, job: Job) -> Iterable[Stage]:
        """Return the different stages of a job."""
        return {id(stage): stage for stage in self.part(job)}.values()

    def memory(self, job: Job, most: float = math.inf) -> float:
        """Return bytes that the fullest GPU of a placed job holds at least: one microbatch, and what lies there between steps.

        A larger microbatch keeps no less: where that of a smaller one is more than `most`, it is returned.
        """
        if (copies := _copies(job)) not in self._rest:
            self._rest[copies] = self._at_rest(job, self.part(job))
        size, recompute = key = job.training.micro_batch, job.training.recompute
        if key not in self._saved:
            smaller = (saved for (other, how), saved in self._saved.items() if other < size and how == recompute)
            if (least := max((float((self._rest[copies] + saved).max()) for saved in smaller), default=0.0)) > most:
                return least
            self._saved[key] = self._activations(job, self.part(job))
        return float((self._rest[copies] + self._saved[key]).max())

    def _activations(self, job: Job, part: Sequence[Stage]) -> Floats:
        steps = self.bounds.passes.steps
        saved = {id(s): sum(steps(s, layer).saved * n for layer, n in s.layers) for s in self.stages(job)}
        kept: Floats = np.array([saved[id(stage)] for stage in part])[self.own].sum(axis=0)
        return kept

    def _at_rest(self, job: Job, part: Sequence[Stage]) -> Floats:
        lanes = job.lanes(part)
        different = {tuple(map(id, own)): own for own in lanes}
        rest = {key: at_rest(job, own).total for key, own in different.items()}
        return np.array([rest[tuple(map(id, own))] for own in lanes])

    def held(self, job: Job) -> list[tuple[int, int]]:
        """Return the parameters of each pipeline rank, and those of experts among them."""
        if not self._held:
            lanes = job.lanes(self.part(job))
            self._held = [(sum(s.parameters for s in own), sum(s.experts for s in own)) for own in lanes]
        return self._held

    def updates(self, job: Job) -> dict[tuple[int, int], tuple[Kernel, ...]]:
        """Return the kernels that update so many parameters, and those of experts among them, of each pipeline rank."""
        if (key := _copies(job)) not in self._updates:
            self._updates[key] = {one: update(job, *one) for one in set(self.held(job))}
        return self._updates[key]

    def work(self, job: Job) -> float:
        """Return seconds that the passes of a placed job take at least, with an equal share of them on each pipeline rank."""
        one = self.bounds.passes.seconds(job, self.whole(job)[1])
        return (one.forward + one.backward) * job.microbatches / self.pp * (1 - 1e-9)

    def passes(self, job: Job, microbatches: Sequence[int]) -> Floats:
        """Return seconds that so many microbatches take at least, of a placed job or with more replicas (n,): part of `step`."""
        ends, _ = self._passed(job, np.array(microbatches)[:, None], np.zeros(self.pp))
        least: Floats = ends.max(axis=-1) * (1 - 1e-9)
        return least

    def step(self, job: Job, play: bool = True, exchanged: bool = True) -> float:
        """Return seconds that no step of a placed job is shorter than; play: pipelines of pairs, which takes longer.

        exchanged: data-parallel traffic counts; without, it is no more than with any overlap of that.
        """
        none = np.zeros(self.pp)
        traffic = self.exposed(job) if exchanged else Exposed(none, none, none)
        split = splits(job.parallelism.schedule, job.parallelism.vpp)
        ends, last = self._passed(job, job.microbatches, traffic.before)
        if self.pipeline.paired and play:
            ends = np.maximum(ends, self._played(job, traffic.before))
        over = job.parallelism.overlap.grad_reduce and not split
        behind = (last if over else ends) + traffic.behind
        return self._updated(job, np.maximum(ends, behind), traffic.after) * (1 - 1e-9)  # other sums, other digits

    def _passed(self, job: Job, microbatches: int | Ints, before: Floats) -> tuple[Floats, Floats]:
        """Return when each rank is done with its passes, and when the last of them ends: a message may follow (…, pp)."""
        one, waits = self.seconds(job), not job.parallelism.overlap.p2p
        begun, share = _begun(one.forward, before), microbatches / self.pipeline.copies
        ends = begun + share * one.busy
        if self.pipeline.copies > 1:
            return ends, ends
        split, message = splits(job.parallelism.schedule, job.parallelism.vpp), one.message * waits
        inputs = begun + share * (one.busy - split * one.all_weights)
        last = _followed(inputs - message, one.backward - split * one.weights, one.message)
        return np.maximum(ends, last + message + split * one.weights), last

    def _updated(self, job: Job, ready: Floats, gather: Floats) -> float:
        """Return the seconds until all parameters are updated and gathered, of ranks whose gradients are `ready`."""
        if (key := _copies(job)) not in self._updating:
            self._updating[key] = self._update_seconds(job)
        norm, rest = self._updating[key]
        ready = ready + norm
        if job.training.clip_gradients:
            ready = ready.max()
        return float((ready + rest + gather).max())

    def _update_seconds(self, job: Job) -> Floats:
        """Return the seconds to the norm of a rank's gradients, and those of the rest of its update (2, pp)."""
        made = self.updates(job)
        seconds = self.bounds.preparation.seconds(job, [kernel for own in made.values() for kernel in own])
        found = {}
        for one, own in made.items():
            norm = next((i + 1 for i, kernel in enumerate(own) if kernel.op == "gradient_norm"), 0)
            found[one] = [math.fsum(seconds[kernel] for kernel in part) for part in (own[:norm], own[norm:])]
        seconds_of: Floats = np.array([found[one] for one in self.held(job)]).T
        return seconds_of

    def seconds(self, job: Job) -> MicrobatchSeconds:
        """Return the least seconds of the passes and messages of a placed job."""
        whole = "B" in letters(job.parallelism.schedule, job.parallelism.vpp)
        if (key := (self._far(job), job.parallelism.overlap.p2p, whole, *_microbatch(job))) not in self._pipelines:
            found, sends = self._of_stages(job)
            passes, weights = found[:, :2], found[:, 2]
            if not whole:
                passes[:, 1] = found[:, 2:].sum(axis=1)
            both = (passes if job.parallelism.overlap.p2p else passes + sends).sum(axis=1)
            busy = both[self.own].sum(axis=0)
            lowest, messages = passes[: self.pp], sends[: self.pp]
            fills = self.pipeline.copies == 1  # else microbatches come from both ends
            self._pipelines[key] = MicrobatchSeconds(
                (lowest + messages)[:, 0] * fills,
                lowest[:, 1],
                messages[:, 1],
                weights[: self.pp],
                busy,
                weights[self.own].sum(axis=0),
            )
        return self._pipelines[key]

    def _far(self, job: Job) -> bool:
        """Return whether neighbours are on other nodes: where a stage fills at least one; else they may be beside each other."""
        return job.mesh.size // self.pp >= int(self.bounds.preparation.cluster.numbering.widths[-1])

    def _of_stages(self, job: Job) -> tuple[Floats, Floats]:
        """Return the least seconds of the passes of each stage (stages, 4), and of the messages behind both (stages, 2)."""
        part, known = self.part(job), {id(stage): self.bounds.passes.seconds(job, stage) for stage in self.stages(job)}
        both = [(one.output_bytes, one.input_bytes) for one in part] if self.pp > 1 else []
        sends = np.array(
            [[self._message(size / job.message_parts, self._far(job)) for size in own] for own in both]
            or np.zeros((len(part), 2))
        )
        sends[-1, 0] = sends[0, 1] = 0.0
        if self.pipeline.folded:
            sends[self.pp - 1, 0] = sends[self.pp, 1] = 0.0  # the last rank hands on to itself
        return np.array([known[id(stage)] for stage in part]), sends

    def _message(self, size: float, far: bool) -> float:
        """Return the least seconds of a message: in a communicator of more ranks it has no more channels."""
        cluster = self.bounds.preparation.cluster
        pair = Shape(2, 2, 1, 1) if far else Shape(1, 2, 2, 0)
        return min(
            collective_seconds(choose("send", size, pair, kind.facts), size, cluster.node.nccl.launch)
            for kind in cluster.kinds
        )

    def _played(self, job: Job, before: Floats) -> Floats:
        """Return when each rank of a pipeline of pairs is done with its passes (pp,)."""
        split, m = job.parallelism, job.microbatches
        if (key := (self._far(job), split.overlap.p2p, *_microbatch(job), m, before.tobytes())) not in self._paired:
            period = schedules.period(split.schedule, split.pp, split.vpp) or 1
            further = (m - schedules.settled(split.schedule, split.pp, m, split.vpp)) // period * period
            busy = further / self.pipeline.copies * self.seconds(job).busy
            compute, message = _by_letter(*self._of_stages(job))
            order = self._order(job, m - further, period if further else 0)
            waits = not split.overlap.p2p
            self._paired[key] = order.done(compute, message, before.tolist(), busy.tolist(), waits)
        return np.array(self._paired[key])

    def _order(self, job: Job, microbatches: int, more: int) -> PairedOrder:
        """Return the order of a pipeline of pairs with so many microbatches, cut where more of them come in."""
        orders, key = self.bounds.orders, (job.parallelism.schedule, self.pipeline, microbatches, more)
        if key not in orders:
            short, longer = (self.bounds.preparation.schedule(job, microbatches + n).schedule for n in (0, more))
            orders[key] = PairedOrder(short, longer, self.pipeline)
        return orders[key]

    def exposed(self, job: Job) -> Exposed:
        """Return what data-parallel traffic adds at least to the step of a placed job."""
        overlap = job.parallelism.overlap
        beside = overlap.grad_reduce or overlap.param_gather
        split = splits(job.parallelism.schedule, job.parallelism.vpp)
        when = split, overlap.grad_reduce, overlap.param_gather
        if (key := (*when, *_copies(job), *(_microbatch(job) if beside else ()))) not in self._exposed:
            elapsed = partial(self.bounds.passes.elapsed, job)
            self._exposed[key] = exposed(job, self.part(job), elapsed, self.bounds.data_parallel, split)
        return self._exposed[key]


def _copies(job: Job) -> tuple[int, ...]:
    return job.parallelism.zero, job.copies(False), job.copies(True)


def _microbatch(job: Job) -> tuple[int, str]:
    return job.training.micro_batch, job.training.recompute


def _by_letter(passes: Floats, sends: Floats) -> tuple[dict[ActionKey, float], dict[ActionKey, float]]:
    """Return the least seconds of each letter and stage, and of the messages behind."""
    compute: dict[ActionKey, float] = {}
    message: dict[ActionKey, float] = {}
    both = zip(passes.tolist(), sends.tolist(), strict=True)
    for stage, ((forward, backward, weights, inputs), (onwards, back)) in enumerate(both):
        times = {"F": forward, "B": backward, "I": inputs, "W": weights}
        compute |= {(letter, stage): time for letter, time in times.items()}
        message |= {("F", stage): onwards, ("B", stage): back, ("I", stage): back, ("W", stage): 0.0}
    return compute, message


def _begun(forward: Floats, before: Floats) -> Floats:
    """Return when each rank begins at the earliest: after the forward passes before it, and when its parameters are there."""
    fill = np.cumsum(forward) - forward
    return fill + np.maximum.accumulate(before - fill)


def _followed(last: Floats, backward: Floats, message: Floats) -> Floats:
    """Return when each rank's last backward pass ends at the earliest: after its own work, or those of all ranks behind."""
    between = np.cumsum([0.0, *(backward[:-1] + message[1:])])
    ends: Floats = np.maximum.accumulate((last + between)[..., ::-1], axis=-1)[..., ::-1] - between
    return ends


def splits(schedule: str, chunks: int) -> bool:
    """Return whether a schedule runs the gradients of weights as passes of their own."""
    return not letters(schedule, chunks).isdisjoint("IW")


@lru_cache(maxsize=256)
def letters(schedule: str, chunks: int) -> frozenset[str]:
    """Return the letters of the passes of a schedule, B where some backward passes yield both kinds of gradients."""
    return frozenset(action.letter for row in schedules.load(schedule, 2, 4, chunks) for action in row)
