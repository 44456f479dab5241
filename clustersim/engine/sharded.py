"""A pass over parameters that are sharded: gathers ahead of what runs, reductions behind it, copies between.

Gathers and reductions of a unit are on one stream, that of their NCCL communicator, in the order in which they are launched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from clustersim.engine.instruction import Compute, Instruction, Launch, Wait
from clustersim.hardware.constants import BYTES
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective, Steps
from clustersim.parallel.deepspeed import IN_FLIGHT
from clustersim.parallel.fsdp import Events, Unit, copy_in, copy_out, spread
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import weight_bytes
from clustersim.schedules.action import Action

SHARED = {"dp": "fsdp", "edp": "efsdp"}
"""The family that shares one copy of what is sharded, by that of all who hold the same parameters (of several copies: the same
shard of them)."""


@dataclass(slots=True)
class ShardedPass:
    """Writes one pass over units of sharded parameters; counts what it has launched on each stream."""

    job: Job
    action: Action
    computed: Callable[[Action, Steps], Iterator[Instruction]]
    launched: Counter[str] = field(default_factory=Counter)
    gathers: dict[tuple[str, int], int] = field(default_factory=dict)
    """By family and unit, how many were launched before."""
    reductions: dict[str, list[int]] = field(default_factory=dict)
    written: dict[int, tuple[Instruction, ...]] = field(default_factory=dict)
    """The computation of units by their items; those of equal blocks are one."""
    copies: dict[Kernel, Steps] = field(default_factory=dict)

    def lines(self, events: Events, reduces: bool) -> Iterator[Instruction]:
        """Yield the instructions of a pass; reduces: whether it waits for reductions at its end."""
        for what, place, unit in events:
            yield from getattr(self, what)(place, unit)
        for stream in self.launched if reduces else ():
            yield Wait(stream)

    def kinds(self, unit: Unit) -> Iterator[tuple[str, str, int, bool]]:
        """Yield of each kind of parameters the family that shares them, that of their copies, how many, and whether experts'."""
        kinds = ((SHARED["dp"], "dp", unit.dense, False), (SHARED["edp"], "edp", unit.experts, True))
        yield from (kind for kind in kinds if kind[2] and self.job.shards(kind[3]) > 1)

    def gather(self, place: int, unit: Unit) -> Iterator[Instruction]:
        """Launch the gathers of a unit."""
        for family, _, parameters, _ in self.kinds(unit):
            self.gathers[family, place] = self.launched[family]
            yield self.launch(family, "all_gather", parameters * weight_bytes(self.job))

    def arrive(self, place: int, unit: Unit) -> Iterator[Instruction]:
        """Wait for the gathers of a unit and copy its parameters out."""
        for family, *_ in self.kinds(unit):
            yield Wait(family, but=self.launched[family] - self.gathers.get((family, place), -1) - 1)
        if self.job.parallelism.fsdp.copy_out:
            yield self.copy(copy_out, unit)

    def run(self, place: int, unit: Unit) -> Iterator[Instruction]:
        """Compute."""
        if unit.items and id(unit.items) not in self.written:
            self.written[id(unit.items)] = tuple(self.computed(self.action, unit.items))
        yield from self.written.get(id(unit.items), ())

    def reduce(self, place: int, unit: Unit) -> Iterator[Instruction]:
        """Wait for older reductions, copy the gradients of a unit in and launch their reduction."""
        setting = self.job.parallelism.fsdp
        own = list(self.kinds(unit))
        most = IN_FLIGHT if self.job.parallelism.zero3 else setting.reduce_in_flight
        for family, *_ in own:
            done = self.reductions.setdefault(family, [])
            if most and len(done) >= most:
                yield Wait(family, but=self.launched[family] - done[-most] - 1)
        if setting.copy_in and own:
            yield self.copy(copy_in, unit)
        for family, copies, parameters, expert in own:
            size, shards = parameters * BYTES[self.job.training.gradients], self.job.shards(expert)
            self.reductions[family].append(self.launched[family])
            yield self.launch(family, "reduce_scatter", size)
            if shards < self.job.copies(expert):
                yield self.launch(copies, "all_reduce", size / shards, Wait(family))

    def copy(self, kernel: Callable[[Job, int], Kernel], unit: Unit) -> Compute:
        """Return the copy of the parameters of a unit, or of their gradients; that of equal units is one object."""
        found = kernel(self.job, spread(self.job, unit.dense, unit.experts))
        items = self.copies.setdefault(found, (found,))
        return Compute(self.action.letter, self.action.stage, items, None)

    def launch(self, family: str, op: str, size: float, after: Wait | None = None) -> Launch:
        """Return the launch of a collective, which counts."""
        self.launched[family] += 1
        return Launch(self.action.stage, Collective(family, op, size), after)
