"""In which order sharded parameters are gathered, and their gradients reduced, while the layers of a stage run.

A stage is a row of *units*, each of which is gathered and reduced as a whole: its blocks, and the root, which has all other
parameters (embedding, final norm, head). The root is gathered before all others and kept; its gradients are reduced last.
Events come in the order in which the host issues them. That is also their order on the one NCCL stream of a communicator
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
"""Layers that are units of their own."""


class Unit(NamedTuple):
    """What is gathered and reduced at once, and what runs with it."""

    items: Steps
    """The kernels and collectives of the pass."""
    dense: int
    """Trained parameters on one rank before they are sharded, without experts that are spread over ranks."""
    experts: int
    """Those of experts that are spread over ranks."""
    frozen: tuple[int, int] = (0, 0)
    """Frozen weights of both kinds, in weights of the activations' type."""
    saved: float = 0.0
    """Bytes of activations that its forward pass keeps."""

    @property
    def gathered(self) -> tuple[int, int]:
        """All weights of both kinds, in weights of the activations' type."""
        return self.dense + self.frozen[0], self.experts + self.frozen[1]


Events = Iterable[tuple[str, int, Unit]]
"""What happens, the place of a gather by which it is waited for, and to which parameters, or what runs."""


class Event(NamedTuple):
    """One thing that happens to a unit, by its place in the order of the pass."""

    what: Literal["gather", "arrive", "run", "reduce"]
    """gather: its parameters are asked for; arrive: they are waited for; run: it computes; reduce: its gradients leave."""
    unit: int


def forward_units(stage: Stage) -> list[Unit]:
    """Return the units of a forward pass in order: the root with the embedding, blocks, and the head, without parameters."""
    parts = list(stage.passes("F"))
    first = parts.pop(0)[1] if parts and parts[0][0].name == "embedding" else ()
    return [Unit(first, *_root(stage)), *(_unit(stage, *part) for part in parts)]


def backward_units(stage: Stage, letter: str) -> list[Unit]:
    """Return the units of a backward pass, or of its half `I` or `W`, in order: the head, blocks, the root with the embedding."""
    parts = list(stage.passes(letter))
    last = parts.pop()[1] if parts and parts[-1][0].name == "embedding" else ()
    return [*(_unit(stage, *part) for part in parts), Unit(last, *_root(stage))]


def _unit(stage: Stage, layer: Layer, items: Steps) -> Unit:
    if layer.name not in BLOCKS:
        return Unit(items, 0, 0)
    return Unit(items, *stage.of_layer(layer), stage.frozen_of(layer), stage.saved(layer))


def _root(stage: Stage) -> tuple[int, int, tuple[int, int]]:
    """Return the trained and frozen weights of a stage that lie in no block."""
    own = [(*stage.of_layer(one), *stage.frozen_of(one)) for one, _ in stage.layers if one.name not in BLOCKS]
    dense, experts, *frozen = map(sum, zip(*own, strict=True)) if own else (0, 0, 0, 0)
    return dense, experts, (frozen[0], frozen[1])


def order(gathered: Sequence[bool], reduced: Sequence[bool], ahead: int) -> Iterator[Event]:
    """Yield the events of a pass over units, of which some are `gathered` and some `reduced`.

    A unit is asked for when that begins which stands `ahead` before it, with 0 when it is to run itself.
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
    """Yield the events of a pass of a stage that FSDP shards; gathers, reduces: whether the pass does."""
    forward, setting = letter == "F", job.parallelism.fsdp
    units = forward_units(stage) if forward else backward_units(stage, letter)
    root = 0 if forward else len(units) - 1
    gathered = [gathers and any(unit.gathered) and (forward or i != root) for i, unit in enumerate(units)]
    ahead = setting.forward_prefetch if forward else setting.backward_prefetch
    reduced = [reduces and bool(unit.dense or unit.experts) for unit in units]
    return ((what, i, units[i]) for what, i in order(gathered, reduced, ahead))


def by_buckets(job: Job, stage: Stage, letter: str) -> Events:
    """Yield the events of a pass that DeepSpeed's ZeRO-3 shards; each wait is one for all gathers before it."""
    setting = job.parallelism.zero3 or DeepSpeed()
    return ((one.what, 0, Unit(one.steps, one.parameters, 0)) for one in moments(stage, setting, letter))


def copy_out(job: Job, parameters: int) -> Kernel:
    """Return the copy of gathered parameters from the collective's buffer into their places: reads and writes them."""
    return vector("memory", "all_gather_copy_out", "bf16", 1, parameters, 0.0, 2 * weight_bytes(job))


def copy_in(job: Job, parameters: int) -> Kernel:
    """Return the copy of gradients into the collective's buffer, in the type in which they are reduced.

    They come in the type of the parameters, or as they were added up over microbatches.
    """
    wire = BYTES[job.training.gradients]
    read = wire if job.parallelism.no_sync else weight_bytes(job)
    return vector("memory", "reduce_scatter_copy_in", "bf16", 1, parameters, 0.0, read + wire)


def copies(job: Job, stage: Stage) -> Iterator[Kernel]:
    """Yield the copies of the parameters of a stage and of their gradients, those of equal units once."""
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
    """Return how many parameters of a unit are spread over ranks."""
    return (dense if job.shards(False) > 1 else 0) + (experts if job.shards(True) > 1 else 0)
