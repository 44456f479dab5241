"""What each pipeline stage runs, in order, for one microbatch: its layers, parameters, gradients and activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from clustersim.model.attention import CORE
from clustersim.model.embedding import TABLE
from clustersim.model.head import LOGITS
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Layer, Operator, Steps
from clustersim.model.transformer import blocks, embedding, head, hidden_bytes
from clustersim.parallel.job import Job


@dataclass(frozen=True)
class Stage:
    """One of the pp·vpp global stages, or several that are alike, as one rank runs them; stage i is on pipeline rank i % pp."""

    layers: tuple[tuple[Layer, int], ...]
    """(layer, how many in a row), in run order."""
    recompute: str
    """As in the workload."""
    shared: int
    """Parameters that this stage holds of a tied embedding which another stage holds too."""
    borrowed: int
    """Parameters of the embedding of this very stage that its head uses."""
    input_bytes: float
    """Activations received from the stage before, per tp rank and microbatch; 0 at the start. Gradients travel back in the
    same size."""
    output_bytes: float
    """Activations sent to the next stage; 0 at the end."""

    @cached_property
    def forward(self) -> Steps:
        """Kernels and exchanges of one forward pass."""
        return tuple(step for layer, count in self.layers for step in _forward(layer) * count)

    @cached_property
    def backward(self) -> Steps:
        """Kernels and exchanges of one full backward pass, what is recomputed included."""
        return tuple(step for layer, count in reversed(self.layers) for step in self._pass(layer).steps * count)

    @cached_property
    def backward_input(self) -> Steps:
        """The part of `backward` that yields the gradient of the stage's input, for schedules that split the two."""
        return tuple(step for layer, count in reversed(self.layers) for step in self._pass(layer).inputs * count)

    @cached_property
    def backward_weight(self) -> tuple[Kernel, ...]:
        """The part of `backward` that yields the gradients of the weights."""
        return tuple(step for layer, count in reversed(self.layers) for step in self._pass(layer).weights * count)

    @cached_property
    def parameters(self) -> int:
        """Parameters on one rank."""
        return self.held(expert=False) + self.experts

    @cached_property
    def experts(self) -> int:
        """Parameters of experts that only some of the data-parallel ranks hold, among `parameters`."""
        return self.held(expert=True)

    def held(self, expert: bool) -> int:
        """Return the parameters on one rank that all data-parallel ranks hold, or those of experts spread over them."""
        owned = ((self.owned(op) * count, op.expert) for layer, count in self.layers for op in layer.operators)
        return sum(parameters for parameters, kind in owned if kind == expert)

    @cached_property
    def replicated(self) -> int:
        """Parameters that are the same on every tp rank."""
        return sum(op.replicated * count for layer, count in self.layers for op in layer.operators)

    @cached_property
    def saved_bytes(self) -> float:
        """Bytes of activations that each microbatch in flight keeps on one rank."""
        return math.fsum(self._saved(layer) * count for layer, count in self.layers)

    @cached_property
    def working_bytes(self) -> float:
        """Bytes that recomputation brings back while one layer's backward pass runs."""
        return max(math.fsum(op.saved for op in layer.operators) - self._saved(layer) for layer, _ in self.layers)

    def gradient_ready(self, expert: bool) -> tuple[tuple[int, int], ...]:
        """Return (n, parameters): how many more parameters have their gradient once the first n steps of `backward` are done.

        Of experts that are spread over ranks, or of all the others.
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
        """Return (n, parameters): these parameters are first read after n steps of `forward`; `expert` as in gradient_ready."""
        used: list[tuple[int, int]] = []
        position = 0
        for layer, count in self.layers:
            for _ in range(count):
                for op in layer.operators:
                    if self.owned(op) and op.expert == expert:
                        used.append((position, self.owned(op)))
                    position += len(op.forward)
        return tuple(used)

    def owned(self, op: Operator) -> int:
        """Return the parameters that an operator adds to this stage; a head that borrows the embedding adds its bias."""
        return op.parameters - (self.borrowed if op.name == LOGITS else 0)

    def recomputed(self, layer: Layer) -> tuple[Operator, ...]:
        """Return the operators of a layer whose forward pass runs again before their backward pass."""
        if layer.name != "block" or self.recompute == "none":
            return ()
        return layer.operators if self.recompute == "full" else tuple(op for op in layer.operators if op.name == CORE)

    def _saved(self, layer: Layer) -> float:
        again = self.recomputed(layer)
        kept = math.fsum(op.saved for op in layer.operators if op not in again)
        return kept + (layer.input_bytes if again == layer.operators else 0.0)

    def _pass(self, layer: Layer) -> _Backward:
        """Return the backward pass of one layer: each operator in reverse, after what must be recomputed for it."""
        again = self.recomputed(layer)
        whole = _forward(layer) if again == layer.operators else ()
        steps, inputs, weights, ready = [*whole], [*whole], list[Kernel](), list[tuple[int, Operator]]()
        for op in reversed(layer.operators):
            core = op.forward if op in again and not whole else ()
            steps += (*core, *op.backward_input, *op.backward_weight)
            inputs += (*core, *op.backward_input)
            weights += op.backward_weight
            if self.owned(op):
                ready.append((len(steps), op))
        return _Backward(tuple(steps), tuple(inputs), tuple(weights), tuple(ready))


@dataclass(frozen=True, slots=True)
class _Backward:
    steps: Steps
    inputs: Steps
    weights: tuple[Kernel, ...]
    ready: tuple[tuple[int, Operator], ...]


def _forward(layer: Layer) -> Steps:
    return tuple(step for op in layer.operators for step in op.forward)


def share(layers: int, stages: int, first: bool = False, last: bool = False) -> tuple[int, ...]:
    """Return how many blocks each global stage gets: as even as possible, the first ones get one more.

    first, last: whether the embedding counts as a layer of the first stage, the loss as one of the last.
    """
    each, extra = divmod(layers + first + last, stages)
    counts = [each + (stage < extra) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def parts(runs: Sequence[int], counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Return how many blocks of each run of equal ones each stage has: stages take `counts` of them one after the other."""
    ends, places = [0, *accumulate(runs)], [0, *accumulate(counts)]
    return [
        tuple(max(0, min(last, end) - max(first, start)) for start, end in pairwise(ends))
        for first, last in pairwise(places)
    ]


def stages(job: Job, position: int = 0) -> tuple[Stage, ...]:
    """Return the pp·vpp global stages of a job in the order that activations pass them, as one ep rank runs them.

    position: of that rank in its group; the first one's experts are the busiest. The embedding joins the first stage, the
    head the last; stages that are alike are one object, and so are equal layers.
    """
    shard, count = job.shard_at(position), job.parallelism.pp * job.parallelism.vpp
    first, last = embedding(shard), head(shard)
    between = hidden_bytes(shard)
    tied = job.model.tied_embeddings
    table = sum(op.parameters for op in first.operators if op.name == TABLE)
    split = job.parallelism
    counts = share(job.model.layers, count, split.account_for_embedding, split.account_for_loss)
    runs = blocks(shard)

    def stage(starts: bool, ends: bool, numbers: tuple[int, ...]) -> Stage:
        own = ((block, number) for (block, _), number in zip(runs, numbers, strict=True))
        layers = ((first, int(starts)), *own, (last, int(ends)))
        return Stage(
            tuple((layer, number) for layer, number in layers if number),
            job.training.recompute,
            shared=table if tied and starts != ends else 0,
            borrowed=table if tied and starts and ends else 0,
            input_bytes=0.0 if starts else between,
            output_bytes=0.0 if ends else between,
        )

    own = parts([number for _, number in runs], counts)
    kinds = [(index == 0, index == count - 1, numbers) for index, numbers in enumerate(own)]
    made = {kind: stage(*kind) for kind in dict.fromkeys(kinds)}
    return tuple(made[kind] for kind in kinds)
