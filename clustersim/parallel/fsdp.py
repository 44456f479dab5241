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
        """Trained plus frozen weights (dense, experts), counted in weights of the activations' type."""
        return self.dense + self.frozen[0], self.experts + self.frozen[1]


Events = Iterable[tuple[str, int, Unit]]
"""Events as (kind as in `Event.what`, index of the gather that an arrive waits for, unit)."""


class Event(NamedTuple):
    """One event of a unit, identified by its index in the order of the pass."""

    what: Literal["gather", "arrive", "run", "reduce"]
    """Kind of event. gather: its gather starts; arrive: the pass waits for it; run: it computes; reduce: its reduction starts."""
    unit: int


def forward_units(stage: Stage) -> list[Unit]:
    """Return the units of a forward pass in order: the root with the embedding, blocks, and the head without parameters."""
    parts = list(stage.passes("F"))
    first = parts.pop(0)[1] if parts and parts[0][0].name == "embedding" else ()
    return [Unit(first, *_root(stage)), *(_unit(stage, *part) for part in parts)]


def backward_units(stage: Stage, letter: str) -> list[Unit]:
    """Return the units of a backward pass (`letter` B, or its half I or W) in order: head, blocks, root with the embedding."""
    parts = list(stage.passes(letter))
    last = parts.pop()[1] if parts and parts[-1][0].name == "embedding" else ()
    return [*(_unit(stage, *part) for part in parts), Unit(last, *_root(stage))]


def _unit(stage: Stage, layer: Layer, items: Steps) -> Unit:
    if layer.name not in BLOCKS:
        return Unit(items, 0, 0)
    return Unit(items, *stage.of_layer(layer), stage.frozen_of(layer), stage.saved(layer))


def _root(stage: Stage) -> tuple[int, int, tuple[int, int]]:
    """Return the weights of a stage outside its blocks: (trained dense, trained expert, frozen as in `Unit.frozen`)."""
    own = [(*stage.of_layer(one), *stage.frozen_of(one)) for one, _ in stage.layers if one.name not in BLOCKS]
    dense, experts, *frozen = map(sum, zip(*own, strict=True)) if own else (0, 0, 0, 0)
    return dense, experts, (frozen[0], frozen[1])


def order(gathered: Sequence[bool], reduced: Sequence[bool], ahead: int) -> Iterator[Event]:
    """Yield the events of a pass over units, with a mask of those that are `gathered` and one of those that are `reduced`.

    The gather of a unit starts when the unit `ahead` places before it starts; with 0, when the unit itself is to run.
    """
    waiting = deque(unit for unit, own in enumerate(gathered) if own)

    def asked(last: int) -> Iterator[Event]:
        while waiting and waiting[0] <= last:
            yield Event("gather", waiting.popleft())

    for unit, own in enumerate(gathered):
        yield from asked(unit + max(ahead - 1, 0))
        if own:
            yield Event("arrive", unit)
        yield from asked(unit + ahead)
        yield Event("run", unit)
        if reduced[unit]:
            yield Event("reduce", unit)


def block_by_block(job: Job, stage: Stage, letter: str, gathers: bool, reduces: bool) -> Events:
    """Yield the events of a pass of a stage with FSDP. `gathers` and `reduces` say whether this pass gathers and reduces."""
    forward, setting = letter == "F", job.parallelism.fsdp
    units = forward_units(stage) if forward else backward_units(stage, letter)
    root = 0 if forward else len(units) - 1
    gathered = [gathers and any(unit.gathered) and (forward or i != root) for i, unit in enumerate(units)]
    ahead = setting.forward_prefetch if forward else setting.backward_prefetch
    reduced = [reduces and bool(unit.dense or unit.experts) for unit in units]
    return ((what, i, units[i]) for what, i in order(gathered, reduced, ahead))


def by_buckets(job: Job, stage: Stage, letter: str) -> Events:
    """Yield the events of a pass with DeepSpeed's ZeRO-3; each wait covers all earlier gathers."""
    setting = job.parallelism.zero3 or DeepSpeed()
    return ((one.what, 0, Unit(one.steps, one.parameters, 0)) for one in moments(stage, setting, letter))


def copy_out(job: Job, parameters: int) -> Kernel:
    """Return the copy of gathered parameters from the collective's buffer into place: a read and a write of each."""
    return vector("memory", "all_gather_copy_out", "bf16", 1, parameters, 0.0, 2 * weight_bytes(job))


def copy_in(job: Job, parameters: int) -> Kernel:
    """Return the copy of gradients into the collective's buffer, converted to the data type of the reduction.

    Their own type is that of the parameters, or that of the sum over microbatches.
    """
    wire = BYTES[job.training.gradients]
    read = wire if job.parallelism.no_sync else weight_bytes(job)
    return vector("memory", "reduce_scatter_copy_in", "bf16", 1, parameters, 0.0, read + wire)


def copies(job: Job, stage: Stage) -> Iterator[Kernel]:
    """Yield the copies of a stage's parameters and gradients, those of equal units once."""
    if job.parallelism.zero3:
        found = dict.fromkeys((what, unit.dense) for letter in "FB" for what, _, unit in by_buckets(job, stage, letter))
        yield from (copy_out(job, parameters) for what, parameters in found if what == "arrive")
        yield from (copy_in(job, parameters) for what, parameters in found if what == "reduce")
        return
    for unit in forward_units(stage):
        gathered, trained = spread(job, *unit.gathered), spread(job, unit.dense, unit.experts)
        if gathered and job.parallelism.fsdp.copy_out:
            yield copy_out(job, gathered)
        if trained and job.parallelism.fsdp.copy_in:
            yield copy_in(job, trained)


def spread(job: Job, dense: int, experts: int) -> int:
    """Return the number of a unit's parameters that are sharded over data-parallel ranks."""
    return (dense if job.shards(False) > 1 else 0) + (experts if job.shards(True) > 1 else 0)
