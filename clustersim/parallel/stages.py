"""Peak memory of a pass of a stage: activations that its layers save, and temporary buffers while an operator runs.

A forward pass adds saved activations operator by operator, and a backward pass frees them in reverse. So the peak may be at the
loss, with the activations of all blocks, or in the backward pass of the last block, when those of the loss are freed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, groupby
from typing import NamedTuple

from clustersim.errors import InputError
from clustersim.model.elementwise import copy
from clustersim.model.embedding import TABLE
from clustersim.model.encoder import encoder_of
from clustersim.model.head import LOGITS
from clustersim.model.kernel import Kernel
from clustersim.model.lora import ADAPTER
from clustersim.model.operator import Collective, Layer, Operator, OperatorStep, Steps
from clustersim.model.recompute import Marker
from clustersim.model.sharding import ShardedModel
from clustersim.model.transformer import blocks, decoder_entry, embedding, further_head, head, hidden_bytes, prediction
from clustersim.parallel.job import Job
from clustersim.parallel.layout import Portion, portions


class PassPeak(NamedTuple):
    """Peak activation memory of one pass, in bytes for one microbatch."""

    kept: float
    """Bytes of activations of the layers up to the running one, including recomputed ones."""
    temporary: float
    """Bytes of temporary buffers."""

    @property
    def total(self) -> float:
        """Sum of saved and temporary bytes."""
        return self.kept + self.temporary


def pass_peak(layers: Iterable[tuple[Layer, float]], *, backward: bool) -> PassPeak:
    """Return the peak over the layers of a pass. In a run of equal layers it is at the last, when all of them are saved.

    layers: one layer for each run of equal layers, with the bytes that the whole run saves.
    """
    below, found = 0.0, [PassPeak(0.0, 0.0)]
    for layer, kept in layers:
        below += kept
        again = max((rerun.working for rerun in layer.reruns), default=0.0) if backward else 0.0
        found.append(PassPeak(below + again, temporary_bytes(layer, backward=backward)))
    return max(found, key=lambda one: one.total)


def temporary_bytes(layer: Layer, *, backward: bool) -> float:
    """Return the bytes that a layer needs during its pass on top of all the activations that it saves.

    While an operator runs, later operators of the layer have saved nothing yet, or have freed it already.
    """
    alive = [op.backward_alive if backward else op.forward_alive for op in layer.operators]
    kept = list(accumulate([op.saved for op in layer.operators]))
    return max(max([before + own for before, own in zip(kept, alive, strict=True)]) - kept[-1], 0.0)


@dataclass(frozen=True)
class Stage:
    """A global pipeline stage as one rank runs it. Identical stages share one object."""

    layers: tuple[tuple[Layer, int], ...]
    """(layer, number in a row), in run order."""
    shared: int
    """Number of parameters of a tied embedding that another stage also holds."""
    borrowed: int
    """Number of parameters of this stage's own embedding that its head reuses."""
    input_bytes: float
    """Bytes of activations received from the previous stage, per tp rank and microbatch; 0 at the start. Gradients sent back have
    the same size."""
    output_bytes: float
    """Bytes of activations sent to the next stage; 0 at the end."""

    @cached_property
    def forward(self) -> Steps:
        """Kernels and collectives of one forward pass."""
        return tuple(chain.from_iterable(self.steps(layer, "F") * count for layer, count in self.layers))

    @cached_property
    def backward(self) -> Steps:
        """Kernels and collectives of one full backward pass, recomputation included."""
        return tuple(chain.from_iterable(self._pass(layer).steps * count for layer, count in reversed(self.layers)))

    @cached_property
    def backward_input(self) -> Steps:
        """Part of `backward` that computes the gradient of the stage's input, for schedules that split backward passes."""
        return tuple(chain.from_iterable(self._inputs(layer) * count for layer, count in reversed(self.layers)))

    @cached_property
    def backward_weight(self) -> tuple[Kernel, ...]:
        """Part of `backward` that computes weight gradients."""
        return tuple(chain.from_iterable(self._pass(layer).weights * count for layer, count in reversed(self.layers)))

    @cached_property
    def parameters(self) -> int:
        """Number of trained parameters on one rank."""
        return self.dense + self.experts

    @cached_property
    def dense(self) -> int:
        """Number of those `parameters` that all data-parallel ranks hold."""
        return self._owned[0]

    @cached_property
    def experts(self) -> int:
        """Number of those `parameters` that belong to experts spread over data-parallel ranks."""
        return self._owned[1]

    @cached_property
    def _owned(self) -> tuple[int, int]:
        """Return the trained parameters of all layers: on all data-parallel ranks, and in spread experts."""
        each = [(self.of_layer(layer), count) for layer, count in self.layers]
        return sum([own[0] * count for own, count in each]), sum([own[1] * count for own, count in each])

    def held(self, expert: bool) -> int:
        """Return the number of parameters on one rank: of spread experts if `expert`, else those on all data-parallel ranks."""
        return self.experts if expert else self.dense

    @cached_property
    def tensors(self) -> tuple[int, int]:
        """Parameter tensors on one rank, weights and biases: on all data-parallel ranks, and of spread experts."""
        found = [0, 0]
        for op, count in [(op, count) for layer, count in self.layers for op in layer.operators if self.owned(op)]:
            found[op.expert] += count * _tensors(op)
        return found[0], found[1]

    def owners(self, ranks: int, expert: bool) -> list[int]:
        """Return the number of parameters of each of `ranks` owners of whole weights; the largest goes to the least loaded."""
        own = ((self.owned(op), count) for layer, count in self.layers for op in layer.operators if op.expert == expert)
        sizes = [size for size, count in own if size for _ in range(count)]
        owners = [0] * min(ranks, len(sizes))
        for size in sorted(sizes, reverse=True):
            heapq.heapreplace(owners, owners[0] + size)
        return owners

    @cached_property
    def replicated(self) -> int:
        """Number of parameters that are replicated on every tp rank."""
        return sum(op.replicated * count for layer, count in self.layers for op in layer.operators)

    @cached_property
    def saved_bytes(self) -> float:
        """Bytes of activations that each microbatch in flight saves on one rank."""
        return math.fsum([kept for _, kept in self._kept])

    @cached_property
    def working_bytes(self) -> float:
        """Bytes of recomputed activations during one layer's backward pass."""
        return max((again.working for layer, _ in self.layers for again in layer.reruns), default=0.0)

    @cached_property
    def forward_peak(self) -> PassPeak:
        """Peak of a forward pass, without other microbatches."""
        return pass_peak(self._kept, backward=False)

    @cached_property
    def backward_peak(self) -> PassPeak:
        """Peak of a backward pass, without other microbatches."""
        return pass_peak(self._kept, backward=True)

    def passes(self, letter: str) -> Iterator[tuple[Layer, Steps]]:
        """Yield the layers of one pass (`F`, `B`, or its halves `I` and `W`) in run order, each with its kernels and collectives.

        Equal layers share one steps object.
        """
        for layer, count in self.layers if letter == "F" else reversed(self.layers):
            part = self.steps(layer, letter)
            yield from ((layer, part) for _ in range(count))

    def steps(self, layer: Layer, letter: str) -> Steps:
        """Return the kernels and collectives of one layer in a pass, as in `passes`."""
        if letter == "F":
            return tuple(chain.from_iterable([op.forward for op in layer.operators]))
        if letter == "I":
            return self._inputs(layer)
        whole = self._pass(layer)
        return whole.steps if letter == "B" else whole.weights

    def of_layer(self, layer: Layer) -> tuple[int, int]:
        """Return the number of trained parameters of one layer: on all data-parallel ranks, and in spread experts."""
        found = [0, 0]
        for op in layer.operators:
            found[op.expert] += self.owned(op)
        return found[0], found[1]

    def frozen_of(self, layer: Layer) -> tuple[int, int]:
        """Return the frozen weights of one layer (dense, spread experts), counted in weights of the activations' type."""
        found = [0, 0]
        for op in layer.operators:
            found[op.expert] += self.frozen_in(op)
        return found[0], found[1]

    @cached_property
    def frozen(self) -> tuple[int, int]:
        """Frozen weights on one rank (dense, spread experts), counted in weights of the activations' type."""
        each = [(self.frozen_of(layer), count) for layer, count in self.layers]
        return sum(own[0] * count for own, count in each), sum(own[1] * count for own, count in each)

    def gradient_ready(self, expert: bool) -> tuple[tuple[int, int], ...]:
        """Return pairs (n, parameters): after the first n steps of `backward`, so many further parameters have their gradient.

        With `expert`, for parameters of spread experts; otherwise for all others.
        """
        ready: list[tuple[int, int]] = []
        position = 0
        for layer, count in reversed(self.layers):
            one = self._pass(layer)
            for _ in range(count):
                ready += [(position + after, self.owned(op)) for after, op in one.ready if op.expert == expert]
                position += len(one.steps)
        return tuple(ready)

    def parameters_used(self, expert: bool) -> tuple[tuple[int, int], ...]:
        """Return pairs (n, parameters): these are first read after n steps of `forward`. `expert` as in gradient_ready."""
        used: list[tuple[int, int]] = []
        position = 0
        for layer, count in self.layers:
            for op in layer.operators * count:
                if self.owned(op) and op.expert == expert:
                    used.append((position, self.owned(op)))
                position += len(op.forward)
        return tuple(used)

    def owned(self, op: Operator) -> int:
        """Return the number of parameters that an operator adds to this stage; a head with a tied embedding adds its bias."""
        return op.parameters - (self.borrowed if op.name == LOGITS and op.parameters else 0)

    def frozen_in(self, op: Operator) -> int:
        """Return the number of frozen weights that an operator adds to this stage."""
        return op.frozen - (self.borrowed if op.name == LOGITS and op.frozen else 0)

    def recomputed(self, layer: Layer) -> dict[int, Steps]:
        """Return the recomputed part of a layer's forward pass by the index of the operator in whose backward pass it runs."""
        return {place: steps for again in layer.reruns for place, steps in again.operators}

    def saved(self, layer: Layer) -> float:
        """Return the bytes of activations that one layer saves per microbatch."""
        return math.fsum([op.saved for op in layer.operators]) - math.fsum([again.dropped for again in layer.reruns])

    @cached_property
    def _kept(self) -> list[tuple[Layer, float]]:
        """Return (layer, bytes of activations that all its repetitions save per microbatch)."""
        return [(layer, self.saved(layer) * count) for layer, count in self.layers]

    def _pass(self, layer: Layer) -> _Backward:
        """Return the backward pass of one layer: each operator in reverse order, preceded by the recomputation it needs."""
        steps, weights, ready = list[OperatorStep](), list[Kernel](), list[tuple[int, Operator]]()
        again = _reruns(layer)
        for place, op in reversed(list(enumerate(layer.operators))):
            steps += (*again.get(place, ()), *op.backward_input, *op.backward_weight)
            weights += op.backward_weight
            if self.owned(op):
                ready.append((len(steps), op))
        return _Backward(tuple(steps), tuple(weights), tuple(ready))

    def _inputs(self, layer: Layer) -> Steps:
        """Return the part of the backward pass of one layer that computes the gradient of its input."""
        operators, again = reversed(list(enumerate(layer.operators))), _reruns(layer)
        return tuple(step for place, op in operators for step in (*again.get(place, ()), *alone(op.backward_input)))


def modules(layer: Layer, letter: str) -> Iterator[tuple[int, Steps, bool]]:
    """Yield (index of the operator, its steps, whether its weight gradients are then complete) for each operator that runs in a
    forward (`F`) or backward (`B`) pass of a layer; a backward pass includes recomputation."""
    if letter == "F":
        yield from ((place, op.forward, False) for place, op in enumerate(layer.operators))
        return
    for place, op in reversed(list(enumerate(layer.operators))):
        again = (one for rerun in layer.reruns if rerun.before == place for one in rerun.operators)
        yield from ((i, steps, False) for i, steps in again)
        yield place, (*op.backward_input, *op.backward_weight), True


def alone(steps: Steps) -> Iterator[OperatorStep]:
    """Yield kernels without overlap: a collective that would overlap a step is waited for."""
    for place, step in enumerate(steps):
        left = sum(isinstance(one, Kernel) for one in steps[place + 1 :])
        over = isinstance(step, Collective) and step.over > left
        yield step._replace(over=0) if over and isinstance(step, Collective) else step


def _tensors(op: Operator) -> int:
    """Return the number of parameter tensors of an operator: A and B of each adapter, else a weight and its bias."""
    ops = [kernel.op for kernel in op.backward_weight]
    return ops.count("wgrad") if op.name.endswith(ADAPTER) else 1 + ("bias_gradient" in ops)


@dataclass(frozen=True, slots=True)
class _Backward:
    steps: Steps
    weights: tuple[Kernel, ...]
    ready: tuple[tuple[int, Operator], ...]


def _reruns(layer: Layer) -> dict[int, list[OperatorStep]]:
    """Return the steps recomputed before the backward pass of an operator, by its index."""
    found: dict[int, list[OperatorStep]] = {}
    for rerun in layer.reruns:
        found.setdefault(rerun.before, []).extend(chain.from_iterable([steps for _, steps in rerun.operators]))
    return found


def stages(job: Job, position: int = 0, layers: Layers | None = None) -> tuple[Stage, ...]:
    """Return the global stages of a job as one ep rank runs them: copy by copy of the model, in the order that activations pass.

    position: position of the rank in its ep group; at 0 are the busiest experts. layers: the rank's layers, if known. Identical
    stages and equal layers share one object. Raises ConfigError for a layout that does not fit the model.
    """
    shard, cut = job.shard_at(position), portions_of(job)
    layers, scales = layers or Layers(shard), scales_layer(shard)
    first = [0, *accumulate(portion.blocks for portion in cut)]
    further = [0, *accumulate(portion.mtp for portion in cut)]
    made: dict[tuple[Hashable, ...], Stage] = {}
    found = []
    for index, portion in enumerate(cut):
        start, end = first[index], first[index + 1]
        # a stage sends one activation per token, and those of predictions whose loss comes later
        received = 0.0 if portion.embedding else layers.between(start, further[index])
        sent = 0.0 if portion.loss else layers.between(end, further[index + 1])
        key = (portion, start <= layers.encoder < end, received, sent, layers.order[start:end])
        if key not in made:
            own = layers.entered(portion, layers.blocks[start:end], start)
            stage = layers.stage(portion, own, received, sent, job.pipeline.closed)
            made[key] = replace(stage, layers=(*stage.layers, (scales, 1))) if scales else stage
        found.append(made[key])
    return tuple(found) * job.pipeline.copies


def portions_of(job: Job) -> tuple[Portion, ...]:
    """Return the contents of each global stage of a job. Raises ConfigError for an invalid layout."""
    split = job.parallelism
    try:
        return portions(split, job.model)
    except InputError as error:
        key = "layout" if split.layout is not None else "last_layers" if split.first_layers is None else "first_layers"
        raise job.error(f"parallelism.{key}", str(error)) from error


CASTS = 12
"""Number of tensors of a block with a scale per pass: input, weight and output (or gradients) of four linears."""
HISTORY = 1024
"""Number of steps whose largest values set a scale (Megatron, training/arguments.py: --fp8-amax-history-len)."""


def scales_layer(shard: ShardedModel) -> Layer | None:
    """Return the layer at the end of a pass of fp8 with delayed scaling; None for other formats.

    The largest absolute values of all tensors that a rank casts are reduced over the ranks of its stage, in the order of the
    compute stream, and the scales follow from their history (Transformer Engine, pytorch/fp8.py, reduce_and_update_fp8_tensors;
    Megatron-Core, parallel_state.get_amax_reduction_group).
    """
    split = shard.parallelism
    if shard.training.precision != "fp8" or shard.training.fp8_scaling != "delayed":
        return None
    tensors = CASTS * -(-shard.model.layers // split.pp)
    alone = split.dp == 1 and split.tp * split.cp == 1
    steps: Steps = (
        copy(shard, "amax", 1, tensors, 8.0, "fp32"),
        *(() if alone else (Collective("amax", "all_reduce", 4.0 * tensors),)),
        copy(shard, "scales", HISTORY, tensors, 8.0, "fp32"),
    )
    return Layer("scales", (Operator("scales", steps, steps),), 0.0)


class Layers:
    """Layers of a model, from which stages are built; equal layers share one object. They depend on neither pp nor dp."""

    def __init__(self, shard: ShardedModel) -> None:
        self.shard, self.marker = shard, Marker(shard)
        self.tied = shard.model.tied_embeddings
        encoder = encoder_of(shard) if shard.model.encoder_layers else shard
        self.embedding, self.head = embedding(encoder), head(shard)
        self.blocks, self.encoder = blocks(shard), shard.model.encoder_layers
        self.order = tuple(map(id, self.blocks))
        self.own, self.beside = hidden_bytes(shard), hidden_bytes(encoder) if self.encoder else 0.0
        self.table = sum(op.parameters + op.frozen for op in self.embedding.operators if op.name == TABLE)

    def between(self, blocks: int, predictions: int) -> float:
        """Return the bytes per microbatch that a stage sends on after `blocks` blocks and `predictions` further predictions.

        One activation per token, those of predictions whose loss comes later, and within a decoder the encoder's output.
        """
        if not self.encoder:
            return self.own * (1 + predictions)
        return self.beside if blocks <= self.encoder else self.own + self.beside

    def entered(self, portion: Portion, own: Sequence[Layer], first: int) -> list[Layer]:
        """Return the blocks of a stage from index `first` on, with the decoder's embedding before the decoder's first block."""
        place, found = self.encoder - first, self.marker.stage(own)
        if not self.encoder or not 0 <= place < len(own):
            return found
        held = portion.embedding or (self.tied and portion.loss)
        return [*found[:place], decoder_entry(self.shard, not held), *found[place:]]

    def stage(self, portion: Portion, own: list[Layer], received: float, sent: float, closed: bool) -> Stage:
        """Return a stage of these blocks that receives and sends these bytes per microbatch. `closed` is as in `Pipeline`."""
        held = portion.embedding or ((self.tied or closed) and portion.loss)
        # predictions and a decoder use embedding tables that count as tied on the last pipeline rank
        joined = self.tied or self.shard.model.mtp_layers or self.shard.model.encoder_layers
        shared = joined and portion.embedding != portion.loss and not closed and not self.shard.lora
        return Stage(
            self.layers(portion, own, held),
            shared=self.table if shared else 0,
            borrowed=self.table if self.tied and portion.loss and (portion.embedding or closed) else 0,
            input_bytes=received,
            output_bytes=sent,
        )

    def layers(self, portion: Portion, own: list[Layer], held: bool) -> tuple[tuple[Layer, int], ...]:
        """Return (layer, number in a row) for a stage. `held`: whether it has an embedding table for its predictions."""
        further = self.shard.model.mtp_layers
        found = [self.embedding] * portion.embedding + own
        predictions = [not held, *[False] * portion.mtp][: portion.mtp]
        found += [self.marker.prediction(prediction(self.shard, table)) for table in predictions]
        if portion.loss:
            found += [self.head, *([further_head(self.shard)] * further if further else ())]
        return tuple((several[0], len(several)) for several in (list(group) for _, group in groupby(found, key=id)))
