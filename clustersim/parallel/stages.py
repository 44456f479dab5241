"""Pipeline stages: the layers that a rank runs in each pass, and the peak memory of a pass.

A forward pass adds saved activations operator by operator, and a backward pass frees them in reverse. So the peak may be at the
loss, with the activations of all blocks, or in the backward pass of the last block, when those of the loss are freed. While an
operator runs, its temporary buffers are added.
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
    """Bytes of saved activations of the layers up to the running one, including recomputed ones."""
    temporary: float
    """Bytes of temporary buffers of the running layer."""


def pass_peak(layers: Iterable[tuple[Layer, int]], *, backward: bool) -> PassPeak:
    """Return the largest peak of all layers of a forward pass or, if `backward`, of a backward pass.

    layers: (layer, number of times in a row), in the order of the forward pass. In a run of equal layers the peak is at the last
    one, when all have saved their activations.
    """
    saved, peaks = 0.0, [PassPeak(0.0, 0.0)]
    for layer, count in layers:
        saved += layer.saved * count
        peaks.append(PassPeak(saved + layer.recomputed if backward else saved, layer.temporary[backward]))
    return max(peaks, key=math.fsum)


@dataclass(frozen=True)
class Stage:
    """A global pipeline stage as one rank runs it, for one microbatch. Identical stages share one object."""

    layers: tuple[tuple[Layer, int], ...]
    """(layer, number of times in a row), in the order of the forward pass."""
    shared: int
    """Number of parameters of an embedding table of which another stage has a copy, so that their gradients are summed."""
    reused: int
    """Number of parameters of this stage's own embedding that its head reuses; 0 if the head has its own."""
    input_bytes: float
    """Bytes of activations received from the previous stage, per tp rank and microbatch; 0 on the first stage. Gradients sent
    back have the same size."""
    output_bytes: float
    """Bytes of activations sent to the next stage, per tp rank and microbatch; 0 on the last stage."""

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
        """Kernels and collectives of the half of a backward pass that computes input gradients, recomputation included."""
        return tuple(chain.from_iterable(self._inputs(layer) * count for layer, count in reversed(self.layers)))

    @cached_property
    def backward_weight(self) -> tuple[Kernel, ...]:
        """Kernels of the half of a backward pass that computes weight gradients."""
        return tuple(chain.from_iterable(self._pass(layer).weights * count for layer, count in reversed(self.layers)))

    @cached_property
    def parameters(self) -> int:
        """Number of trained parameters on one rank, before they are sharded over data-parallel ranks."""
        return self.dense + self.experts

    @cached_property
    def dense(self) -> int:
        """Number of those `parameters` that are not in spread experts; all data-parallel ranks have the same ones."""
        return self._owned[0]

    @cached_property
    def experts(self) -> int:
        """Number of those `parameters` that are in experts spread over several ranks."""
        return self._owned[1]

    @cached_property
    def _owned(self) -> tuple[int, int]:
        """Number of trained parameters: (not in spread experts, in spread experts)."""
        counts = [(self.layer_parameters(layer), count) for layer, count in self.layers]
        return sum([dense * n for (dense, _), n in counts]), sum([experts * n for (_, experts), n in counts])

    def held(self, expert: bool) -> int:
        """Return the number of trained parameters on one rank: `experts` if `expert`, else `dense`."""
        return self.experts if expert else self.dense

    @cached_property
    def tensors(self) -> tuple[int, int]:
        """Number of parameter tensors on one rank, weights and biases: (not in spread experts, in spread experts)."""
        counts = [0, 0]
        for op, count in [(op, count) for layer, count in self.layers for op in layer.operators if self.owned(op)]:
            counts[op.expert] += count * _tensors(op)
        return counts[0], counts[1]

    def owners(self, ranks: int, expert: bool) -> list[int]:
        """Return the number of parameters that each owner of whole weight tensors updates, as a heap: the first is the smallest.

        ranks: largest number of owners; there are no more than tensors. expert: whether for spread experts instead of other
        parameters. From the largest on, each tensor goes to the owner with the fewest parameters.
        """
        operators = ((op, count) for layer, count in self.layers for op in layer.operators if op.expert == expert)
        sizes = [self.owned(op) for op, count in operators if self.owned(op) for _ in range(count)]
        owners = [0] * min(ranks, len(sizes))
        for size in sorted(sizes, reverse=True):
            heapq.heapreplace(owners, owners[0] + size)
        return owners

    @cached_property
    def saved_bytes(self) -> float:
        """Bytes of activations that one microbatch saves on one rank from its forward to its backward pass."""
        return math.fsum([layer.saved * count for layer, count in self.layers])

    @cached_property
    def forward_peak(self) -> PassPeak:
        """Peak activation memory of a forward pass of one microbatch."""
        return pass_peak(self.layers, backward=False)

    @cached_property
    def backward_peak(self) -> PassPeak:
        """Peak activation memory of a backward pass of one microbatch, its saved activations included."""
        return pass_peak(self.layers, backward=True)

    def passes(self, letter: str) -> Iterator[tuple[Layer, Steps]]:
        """Yield (layer, its kernels and collectives) for each layer of one pass, in run order.

        letter: `F` for a forward pass, `B` for a backward pass, `I` or `W` for its half that computes gradients of inputs or
        weights. Equal layers share one steps object.
        """
        for layer, count in self.layers if letter == "F" else reversed(self.layers):
            part = self.steps(layer, letter)
            yield from ((layer, part) for _ in range(count))

    def steps(self, layer: Layer, letter: str) -> Steps:
        """Return the kernels and collectives of one layer in a pass. letter: as in `passes`."""
        if letter == "F":
            return tuple(chain.from_iterable([op.forward for op in layer.operators]))
        if letter == "I":
            return self._inputs(layer)
        backward = self._pass(layer)
        return backward.steps if letter == "B" else backward.weights

    def layer_parameters(self, layer: Layer) -> tuple[int, int]:
        """Return the number of trained parameters of one layer: (not in spread experts, in spread experts)."""
        reused = sum(op.parameters - self.owned(op) for op in layer.operators) if self.reused else 0
        return layer.parameters[0] - reused, layer.parameters[1]

    def layer_frozen(self, layer: Layer) -> tuple[int, int]:
        """Return the number of frozen weights of one layer, (dense, spread experts), in weights of the activations' type."""
        reused = sum(op.frozen - self.frozen_in(op) for op in layer.operators) if self.reused else 0
        return layer.frozen[0] - reused, layer.frozen[1]

    @cached_property
    def frozen(self) -> tuple[int, int]:
        """Number of frozen weights on one rank, (dense, spread experts), counted in weights of the activations' type."""
        counts = [(self.layer_frozen(layer), count) for layer, count in self.layers]
        return sum(dense * n for (dense, _), n in counts), sum(experts * n for (_, experts), n in counts)

    def gradient_ready(self, expert: bool) -> tuple[tuple[int, int], ...]:
        """Return pairs (n, parameters): after n steps of `backward`, this number of further parameters has its gradient.

        expert: whether for parameters of spread experts instead of all others.
        """
        ready: list[tuple[int, int]] = []
        position = 0
        for layer, count in reversed(self.layers):
            backward = self._pass(layer)
            for _ in range(count):
                ready += [(position + after, self.owned(op)) for after, op in backward.ready if op.expert == expert]
                position += len(backward.steps)
        return tuple(ready)

    def parameters_used(self, expert: bool) -> tuple[tuple[int, int], ...]:
        """Return pairs (n, parameters): after n steps of `forward`, this number of parameters is read for the first time.

        expert: whether for parameters of spread experts instead of all others.
        """
        used: list[tuple[int, int]] = []
        position = 0
        for layer, count in self.layers:
            for op in layer.operators * count:
                if self.owned(op) and op.expert == expert:
                    used.append((position, self.owned(op)))
                position += len(op.forward)
        return tuple(used)

    def owned(self, op: Operator) -> int:
        """Return the trained parameters that an operator adds to this stage; a table that the head reuses counts once."""
        return op.parameters - (self.reused if op.name == LOGITS and op.parameters else 0)

    def frozen_in(self, op: Operator) -> int:
        """Return the frozen weights that an operator adds to this stage; a table that the head reuses counts once."""
        return op.frozen - (self.reused if op.name == LOGITS and op.frozen else 0)

    def recomputed(self, layer: Layer) -> dict[int, Steps]:
        """Return {index of an operator of a layer: the steps of its forward pass that are recomputed}."""
        return {index: steps for rerun in layer.recomputations for index, steps in rerun.operators}

    def _pass(self, layer: Layer) -> _Backward:
        """Return the backward pass of one layer: its operators in reverse order, each preceded by the recomputation that it
        needs."""
        steps, weights, ready = list[OperatorStep](), list[Kernel](), list[tuple[int, Operator]]()
        recomputed = _recomputed_steps(layer)
        for index, op in reversed(list(enumerate(layer.operators))):
            steps += (*recomputed.get(index, ()), *op.backward_input, *op.backward_weight)
            weights += op.backward_weight
            if self.owned(op):
                ready.append((len(steps), op))
        return _Backward(tuple(steps), tuple(weights), tuple(ready))

    def _inputs(self, layer: Layer) -> Steps:
        """Return the kernels and collectives of one layer that compute input gradients, recomputation included, in run order."""
        operators, recomputed = reversed(list(enumerate(layer.operators))), _recomputed_steps(layer)
        parts = ((*recomputed.get(index, ()), *without_overlap(op.backward_input)) for index, op in operators)
        return tuple(chain.from_iterable(parts))


def modules(layer: Layer, letter: str) -> Iterator[tuple[int, Steps, bool]]:
    """Yield (index of an operator, its steps, whether its weight gradients are then complete) in the order of a pass of a layer.

    letter: `F` for a forward, `B` for a backward pass. Operators that a backward pass recomputes come once more, with the
    recomputed steps.
    """
    if letter == "F":
        yield from ((index, op.forward, False) for index, op in enumerate(layer.operators))
        return
    for index, op in reversed(list(enumerate(layer.operators))):
        recomputed = (op for rerun in layer.recomputations if rerun.before == index for op in rerun.operators)
        yield from ((i, steps, False) for i, steps in recomputed)
        yield index, (*op.backward_input, *op.backward_weight), True


def without_overlap(steps: Steps) -> Iterator[OperatorStep]:
    """Yield the steps of half a backward pass, without overlap with kernels of the other half. A collective that would overlap
    more kernels than follow it in `steps` overlaps none: the pass waits for it."""
    for index, step in enumerate(steps):
        kernels_left = sum(isinstance(following, Kernel) for following in steps[index + 1 :])
        too_far = isinstance(step, Collective) and step.over > kernels_left
        yield step._replace(over=0) if too_far and isinstance(step, Collective) else step


def _tensors(op: Operator) -> int:
    """Return the number of parameter tensors of an operator: A and B of each adapter, else a weight and perhaps a bias."""
    ops = [kernel.op for kernel in op.backward_weight]
    return ops.count("wgrad") if op.name.endswith(ADAPTER) else 1 + ("bias_gradient" in ops)


@dataclass(frozen=True, slots=True)
class _Backward:
    """Backward pass of one layer."""

    steps: Steps
    """All kernels and collectives in run order, recomputation included."""
    weights: tuple[Kernel, ...]
    """Kernels that compute weight gradients."""
    ready: tuple[tuple[int, Operator], ...]
    """(number of steps after which its weight gradients are complete, operator) of each operator with trained parameters."""


def _recomputed_steps(layer: Layer) -> dict[int, list[OperatorStep]]:
    """Return {index of an operator of a layer: steps that are recomputed before its backward pass}."""
    recomputed: dict[int, list[OperatorStep]] = {}
    for rerun in layer.recomputations:
        recomputed.setdefault(rerun.before, []).extend(chain.from_iterable([steps for _, steps in rerun.operators]))
    return recomputed


def stages(job: Job, position: int = 0, layers: Layers | None = None) -> tuple[Stage, ...]:
    """Return the global stages of a job as one rank runs them, in the order in which activations pass them.

    A schedule with copies of the model has the stages of each copy, one copy after the other. Identical stages and equal layers
    share one object. Raises ConfigError for a layout that does not fit the model.

    position: position of the rank in its ep group; 0 has the busiest experts. layers: the rank's layers, if they are built
    already.
    """
    shard, parts = job.shard_at(position), portions_of(job)
    layers, scales = layers or Layers(shard), scales_layer(shard)
    blocks_before = [0, *accumulate(portion.blocks for portion in parts)]
    mtp_before = [0, *accumulate(portion.mtp for portion in parts)]
    known: dict[tuple[Hashable, ...], Stage] = {}
    result = []
    for index, portion in enumerate(parts):
        start, end = blocks_before[index], blocks_before[index + 1]
        # a stage sends one activation per token, and those of predictions whose loss comes later
        received = 0.0 if portion.embedding else layers.between(start, mtp_before[index])
        sent = 0.0 if portion.loss else layers.between(end, mtp_before[index + 1])
        key = (portion, start <= layers.encoder < end, received, sent, layers.order[start:end])
        if key not in known:
            content = layers.with_decoder_entry(portion, layers.blocks[start:end], start)
            stage = layers.stage(portion, content, received, sent, job.pipeline.ends_on_one_rank)
            known[key] = replace(stage, layers=(*stage.layers, (scales, 1))) if scales else stage
        result.append(known[key])
    return tuple(result) * job.pipeline.copies


def portions_of(job: Job) -> tuple[Portion, ...]:
    """Return the part of the model on each global stage of one copy of a job's model. Raises ConfigError for a bad layout."""
    split = job.parallelism
    try:
        return portions(split, job.model)
    except InputError as error:
        key = "layout" if split.layout is not None else "last_layers" if split.first_layers is None else "first_layers"
        raise job.error(f"parallelism.{key}", str(error)) from error


CASTS = 12
"""Number of tensors per block with a scale in a pass: input, weight and output (or gradients) of four linears."""
HISTORY = 1024
"""Number of steps whose largest values set a scale (Megatron, training/arguments.py: --fp8-amax-history-len)."""


def scales_layer(shard: ShardedModel) -> Layer | None:
    """Return the layer that updates the scales of fp8 at the end of a pass; None without fp8 with delayed scaling.

    The largest absolute values of all tensors that a rank casts are reduced over the ranks of its stage, in the order of the
    compute stream, and the scales follow from their history (Transformer Engine, pytorch/fp8.py, reduce_and_update_fp8_tensors;
    Megatron-Core, parallel_state.get_amax_reduction_group).
    """
    split = shard.parallelism
    if shard.training.precision != "fp8" or shard.training.fp8_scaling != "delayed":
        return None
    tensors = CASTS * -(-shard.model.layers // split.pp)
    single_rank = split.dp == 1 and split.tp * split.cp == 1
    steps: Steps = (
        copy(shard, "amax", 1, tensors, 8.0, "fp32"),
        *(() if single_rank else (Collective("amax", "all_reduce", 4.0 * tensors),)),
        copy(shard, "scales", HISTORY, tensors, 8.0, "fp32"),
    )
    return Layer("scales", (Operator("scales", steps, steps),), 0.0)


class Layers:
    """Layers of a model on one tensor-parallel rank, from which stages are built. They depend on neither pp nor dp.

    Equal layers share one object. encoder: number of blocks of the encoder. order: identity of each block's layer object.
    hidden_bytes, encoder_bytes: bytes of one microbatch's activations of the decoder and of the encoder. table: number of
    parameters of the embedding table.
    """

    def __init__(self, shard: ShardedModel) -> None:
        self.shard, self.marker = shard, Marker(shard)
        self.tied = shard.model.tied_embeddings
        encoder = encoder_of(shard) if shard.model.encoder_layers else shard
        self.embedding, self.head = embedding(encoder), head(shard)
        self.blocks, self.encoder = blocks(shard), shard.model.encoder_layers
        self.order = tuple(map(id, self.blocks))
        self.hidden_bytes, self.encoder_bytes = hidden_bytes(shard), hidden_bytes(encoder) if self.encoder else 0.0
        self.table = sum(op.parameters + op.frozen for op in self.embedding.operators if op.name == TABLE)

    def between(self, blocks: int, predictions: int) -> float:
        """Return the bytes that a stage sends on for one microbatch.

        blocks, predictions: number of blocks and of further predictions before the cut. There is one activation per token, one
        more for each prediction whose loss comes later, and within a decoder the encoder's output.
        """
        if not self.encoder:
            return self.hidden_bytes * (1 + predictions)
        return self.encoder_bytes if blocks <= self.encoder else self.hidden_bytes + self.encoder_bytes

    def with_decoder_entry(self, portion: Portion, blocks: Sequence[Layer], first: int) -> list[Layer]:
        """Return the blocks of a stage, with the decoder's embedding before the decoder's first block if the stage has it.

        blocks: layers of the stage's blocks. first: index of the first of them in the model.
        """
        index, marked = self.encoder - first, self.marker.stage(blocks)
        if not self.encoder or not 0 <= index < len(blocks):
            return marked
        has_table = portion.embedding or (self.tied and portion.loss)
        return [*marked[:index], decoder_entry(self.shard, not has_table), *marked[index:]]

    def stage(self, portion: Portion, blocks: list[Layer], received: float, sent: float, closed: bool) -> Stage:
        """Return the stage with a portion of the model.

        blocks: result of `with_decoder_entry`. received, sent: bytes of activations per microbatch. closed: as in
        `Pipeline.ends_on_one_rank`.
        """
        has_table = portion.embedding or ((self.tied or closed) and portion.loss)
        # predictions and a decoder use embedding tables that count as tied on the last pipeline rank
        has_further_uses = self.tied or self.shard.model.mtp_layers or self.shard.model.encoder_layers
        is_shared = has_further_uses and portion.embedding != portion.loss and not closed and not self.shard.lora
        return Stage(
            self.layers(portion, blocks, has_table),
            shared=self.table if is_shared else 0,
            reused=self.table if self.tied and portion.loss and (portion.embedding or closed) else 0,
            input_bytes=received,
            output_bytes=sent,
        )

    def layers(self, portion: Portion, blocks: list[Layer], has_table: bool) -> tuple[tuple[Layer, int], ...]:
        """Return (layer, number of times in a row) for each run of equal layers of a stage, in the order of the forward pass.

        has_table: whether the stage has an embedding table that its predictions of further tokens can use.
        """
        mtp_layers = self.shard.model.mtp_layers
        sequence = [self.embedding] * portion.embedding + blocks
        predictions = [not has_table, *[False] * portion.mtp][: portion.mtp]
        sequence += [self.marker.prediction(prediction(self.shard, table)) for table in predictions]
        if portion.loss:
            sequence += [self.head, *([further_head(self.shard)] * mtp_layers if mtp_layers else ())]
        return tuple((run[0], len(run)) for run in (list(group) for _, group in groupby(sequence, key=id)))
