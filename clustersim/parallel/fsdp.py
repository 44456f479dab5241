"""Order in which FSDP gathers sharded parameters and reduces gradients while the layers of a stage run.

A stage is a list of *units*, each of which is gathered and reduced as a whole: its blocks, and the root with all other parameters
(embedding, final norm, head). The root is gathered first and kept; its gradients are reduced last. Events are in the order in
which the host issues them, which is also their order on the single NCCL stream of a communicator
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; FSDP1: torch/distributed/fsdp/_runtime_utils.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from clustersim.config.workload import DeepSpeed
from clustersim.hardware.constants import BYTES
from clustersim.model.kernel import Kernel, vector
from clustersim.model.operator import Layer, Steps
from clustersim.parallel.deepspeed import moments
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import weight_bytes
from clustersim.parallel.stages import Stage

BLOCKS = ("block", "mtp")
"""Names of the layers that are units of their own."""


class Unit(NamedTuple):
    """Parameters that are gathered and reduced together, and the steps that run with them."""

    items: Steps
    """Kernels and collectives of the unit in a pass."""
    dense: int
    """Number of trained parameters on one rank before sharding, without experts that are spread over ranks."""
    experts: int
    """Number of trained parameters of experts that are spread over ranks."""
    frozen: tuple[int, int] = (0, 0)
    """Frozen weights (dense, experts), counted in weights of the activations' type."""
    saved: float = 0.0
    """Bytes of activations that the unit's forward pass saves."""

    @property
    def gathered(self) -> tuple[int, int]:
        """Number of trained plus frozen weights, (dense, spread experts), counted in weights of the activations' type."""
        return self.dense + self.frozen[0], self.experts + self.frozen[1]


Events = Iterable[tuple[str, int, Unit]]
"""Events as (kind as in `Event.what`, index of the unit; 0 where a wait covers all earlier gathers, unit)."""


class Event(NamedTuple):
    """One event of a unit in a pass."""

    what: Literal["gather", "arrive", "run", "reduce"]
    """Kind of event. gather: its gather starts; arrive: the pass waits for it; run: it computes; reduce: its reduction starts."""
    unit: int
    """Index of the unit in the order of the pass."""


def forward_units(stage: Stage) -> list[Unit]:
    """Return the units of a forward pass in run order. They are the root, which runs the embedding if the stage has one, and a
    unit for each layer; layers that are part of the root have no parameters of their own here."""
    parts = list(stage.passes("F"))
    first = parts.pop(0)[1] if parts and parts[0][0].name == "embedding" else ()
    return [Unit(first, *_root_weights(stage)), *(_unit(stage, *part) for part in parts)]


def backward_units(stage: Stage, letter: str) -> list[Unit]:
    """Return the units of a backward pass in run order, the root last.

    letter: `B` for the whole pass, `I` or `W` for its half that computes gradients of inputs or weights. Units are as in
    `forward_units`.
    """
    parts = list(stage.passes(letter))
    last = parts.pop()[1] if parts and parts[-1][0].name == "embedding" else ()
    return [*(_unit(stage, *part) for part in parts), Unit(last, *_root_weights(stage))]


def _unit(stage: Stage, layer: Layer, items: Steps) -> Unit:
    """Return the unit of a layer that runs `items` in a pass; without parameters if the layer is part of the root."""
    if layer.name not in BLOCKS:
        return Unit(items, 0, 0)
    return Unit(items, *stage.layer_parameters(layer), stage.layer_frozen(layer), layer.saved)


def _root_weights(stage: Stage) -> tuple[int, int, tuple[int, int]]:
    """Return the number of weights of a stage outside its blocks: (trained dense, trained in spread experts, `Unit.frozen`)."""
    layers = [layer for layer, _ in stage.layers if layer.name not in BLOCKS]
    weights = [(*stage.layer_parameters(layer), *stage.layer_frozen(layer)) for layer in layers]
    dense, experts, *frozen = map(sum, zip(*weights, strict=True)) if weights else (0, 0, 0, 0)
    return dense, experts, (frozen[0], frozen[1])


def order(gathered: Sequence[bool], reduced: Sequence[bool], ahead: int) -> Iterator[Event]:
    """Yield the events of a pass over units in the order in which the host issues them.

    gathered, reduced: for each unit in run order, whether this pass gathers it and reduces its gradients. ahead: the gather of a
    unit starts right before the unit that runs `ahead` places earlier; with 0, right before the unit itself.
    """
    waiting = deque(unit for unit, is_gathered in enumerate(gathered) if is_gathered)

    def gathers_up_to(last: int) -> Iterator[Event]:
        """Yield the gathers of units up to index `last` that have not started."""
        while waiting and waiting[0] <= last:
            yield Event("gather", waiting.popleft())

    for unit, is_gathered in enumerate(gathered):
        yield from gathers_up_to(unit + max(ahead - 1, 0))
        if is_gathered:
            yield Event("arrive", unit)
        yield from gathers_up_to(unit + ahead)
        yield Event("run", unit)
        if reduced[unit]:
            yield Event("reduce", unit)


def block_by_block(job: Job, stage: Stage, letter: str, gathers: bool, reduces: bool) -> Events:
    """Return the events of one pass of a stage with FSDP.

    letter: `F`, `B`, `I` or `W`, as in `Stage.passes`. gathers, reduces: whether this pass gathers parameters and reduces
    gradients. The root is not gathered in a backward pass.
    """
    forward, setting = letter == "F", job.parallelism.fsdp
    units = forward_units(stage) if forward else backward_units(stage, letter)
    root = 0 if forward else len(units) - 1
    gathered = [gathers and any(unit.gathered) and (forward or i != root) for i, unit in enumerate(units)]
    ahead = setting.forward_prefetch if forward else setting.backward_prefetch
    reduced = [reduces and bool(unit.dense or unit.experts) for unit in units]
    return ((what, i, units[i]) for what, i in order(gathered, reduced, ahead))


def by_buckets(job: Job, stage: Stage, letter: str) -> Events:
    """Return the events of a forward (`F`) or backward (`B`) pass with DeepSpeed's ZeRO-3.

    Each arrive waits for all earlier gathers. Units stand for the parameters of an event, which are counted as dense.
    """
    setting = job.parallelism.zero3 or DeepSpeed()
    return ((event.what, 0, Unit(event.steps, event.parameters, 0)) for event in moments(stage, setting, letter))


def copy_out(job: Job, parameters: int) -> Kernel:
    """Return the kernel that copies gathered parameters from the collective's buffer into place: it reads and writes each one.

    parameters: number of gathered parameters.
    """
    return vector("memory", "all_gather_copy_out", "bf16", 1, parameters, 0.0, 2 * weight_bytes(job))


def copy_in(job: Job, parameters: int) -> Kernel:
    """Return the kernel that copies gradients into the collective's buffer and converts them to the data type of the reduction.

    parameters: number of gradients. They have the type of the parameters or, if they are summed over microbatches, of the sum.
    """
    wire = BYTES[job.training.gradients]
    read = wire if job.parallelism.no_sync else weight_bytes(job)
    return vector("memory", "reduce_scatter_copy_in", "bf16", 1, parameters, 0.0, read + wire)


def copies(job: Job, stage: Stage) -> Iterator[Kernel]:
    """Yield the kernels that copy the parameters and gradients of a stage's units; equal kernels may repeat."""
    if job.parallelism.zero3:
        sizes = dict.fromkeys((what, unit.dense) for letter in "FB" for what, _, unit in by_buckets(job, stage, letter))
        yield from (copy_out(job, parameters) for what, parameters in sizes if what == "arrive")
        yield from (copy_in(job, parameters) for what, parameters in sizes if what == "reduce")
        return
    for unit in forward_units(stage):
        gathered, trained = spread(job, *unit.gathered), spread(job, unit.dense, unit.experts)
        if gathered and job.parallelism.fsdp.copy_out:
            yield copy_out(job, gathered)
        if trained and job.parallelism.fsdp.copy_in:
            yield copy_in(job, trained)


def spread(job: Job, dense: int, experts: int) -> int:
    """Return the number of an FSDP unit's parameters that are sharded over more than one rank.

    dense, experts: parameters of its dense layers, and of experts spread over ranks.
    """
    return (dense if job.shards(False) > 1 else 0) + (experts if job.shards(True) > 1 else 0)
