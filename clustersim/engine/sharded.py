"""A pass over sharded parameters: gathers ahead of the computation, reductions after it, copies between.

Gathers and reductions of a unit are on one stream, the one of their NCCL communicator, in the order of their launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from clustersim.engine.program import COMPUTE, ScriptLine, Task, Wait, launch
from clustersim.hardware.constants import BYTES
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective, Steps
from clustersim.parallel.deepspeed import IN_FLIGHT
from clustersim.parallel.fsdp import Events, Unit, copy_in, copy_out, spread
from clustersim.parallel.job import Job
from clustersim.parallel.offload import INTO, OUT, RELOAD, SAVE, leaving
from clustersim.parallel.optimizer import main_bytes, weight_bytes

SHARED = {"dp": "fsdp", "edp": "efsdp"}
"""{family of all ranks with the same parameters: family that shares one copy of sharded tensors}; with several copies, the former
holds the same shard of each."""


@dataclass(slots=True)
class ShardedPass:
    """Writes one pass over units of sharded parameters, and counts the collectives launched on each stream."""

    job: Job
    letter: str
    chunk: int
    computed: Callable[[str, int, Steps], Iterator[ScriptLine]]
    launched: Counter[str] = field(default_factory=Counter)
    gathers: dict[tuple[str, int], int] = field(default_factory=dict)
    """{(family, unit): number of collectives launched on the stream before its gather}."""
    reductions: dict[str, list[int]] = field(default_factory=dict)
    written: dict[int, tuple[ScriptLine, ...]] = field(default_factory=dict)
    """Computation of units by their items; equal blocks share one object."""
    copies: dict[Kernel, Steps] = field(default_factory=dict)

    def lines(self, events: Events, reduces: bool) -> Iterator[ScriptLine]:
        """Yield the lines of a pass: its events (gather, arrive, run, reduce) and the copies of offloaded activations.

        reduces: whether it waits at its end for everything that it launched.
        """
        events, forward, share = list(events), self.letter == "F", self.job.training.offload.activations
        sizes, done = [share * unit.saved for what, _, unit in events if what == "run" and share * unit.saved], 0
        for what, place, unit in events:
            copied = what == "run" and share * unit.saved > 0
            if copied and not forward:  # the next block's come under this one
                yield from (self.launch(RELOAD, "activations", size) for size in sizes[done + (done > 0) : done + 2])
                done += 1
                yield Wait(RELOAD, but=int(done < len(sizes)))
            yield from getattr(self, what)(place, unit)
            if copied and forward:
                yield Wait(SAVE)
                yield self.launch(SAVE, "activations", share * unit.saved)
        for stream in self.launched if reduces else ():
            yield Wait(stream)

    def kinds(self, dense: int, experts: int) -> Iterator[tuple[str, str, int, bool]]:
        """Yield (sharding family, family of copies, number of parameters, whether experts') for dense and expert parameters."""
        kinds = ((SHARED["dp"], "dp", dense, False), (SHARED["edp"], "edp", experts, True))
        yield from (kind for kind in kinds if kind[2] and self.job.shards(kind[3]) > 1)

    def gather(self, place: int, unit: Unit) -> Iterator[ScriptLine]:
        """Launch the gathers of a unit."""
        for family, _, parameters, expert in self.kinds(*unit.gathered):
            self.gathers[family, place] = self.launched[family]
            ready = None
            if self.job.training.offload.parameters:
                width = weight_bytes(self.job) if self.job.parallelism.zero3 else main_bytes(self.job)
                yield self.launch(INTO, "parameters", parameters * width / self.job.shards(expert))
                ready = Wait(INTO)
            yield self.launch(family, "all_gather", parameters * weight_bytes(self.job), ready)

    def arrive(self, place: int, unit: Unit) -> Iterator[ScriptLine]:
        """Wait for the gathers of a unit and copy its parameters out."""
        for family, *_ in self.kinds(*unit.gathered):
            yield Wait(family, but=self.launched[family] - self.gathers.get((family, place), -1) - 1)
        if self.job.parallelism.fsdp.copy_out and spread(self.job, *unit.gathered):
            yield self.copy(copy_out, *unit.gathered)

    def run(self, place: int, unit: Unit) -> Iterator[ScriptLine]:
        """Yield the computation of a unit."""
        if unit.items and id(unit.items) not in self.written:
            self.written[id(unit.items)] = tuple(self.computed(self.letter, self.chunk, unit.items))
        yield from self.written.get(id(unit.items), ())

    def reduce(self, place: int, unit: Unit) -> Iterator[ScriptLine]:
        """Wait for older reductions, copy the gradients of a unit in and launch their reduction."""
        setting = self.job.parallelism.fsdp
        own = list(self.kinds(unit.dense, unit.experts))
        most = IN_FLIGHT if self.job.parallelism.zero3 else setting.reduce_in_flight
        for family, *_ in own:
            done = self.reductions.setdefault(family, [])
            if most and len(done) >= most:
                yield Wait(family, but=self.launched[family] - done[-most] - 1)
        if setting.copy_in and own and spread(self.job, unit.dense, unit.experts):
            yield self.copy(copy_in, unit.dense, unit.experts)
        for family, copies, parameters, expert in own:
            size, shards = parameters * BYTES[self.job.training.gradients], self.job.shards(expert)
            self.reductions[family].append(self.launched[family])
            yield self.launch(family, "reduce_scatter", size)
            if shards < self.job.copies(expert):
                yield self.launch(copies, "all_reduce", size / shards, Wait(family))
            if away := leaving(self.job, size, expert):
                yield self.launch(OUT, "gradients", away, Wait(family))

    def copy(self, kernel: Callable[[Job, int], Kernel], dense: int, experts: int) -> Task:
        """Return the copy kernel of a unit's parameters or gradients. Equal units share one object."""
        found = kernel(self.job, spread(self.job, dense, experts))
        items = self.copies.setdefault(found, (found,))
        return Task(COMPUTE, self.letter, self.chunk, items=items)

    def launch(self, family: str, op: str, size: float, after: Wait | None = None) -> Task:
        """Return the launch of a collective, and count it."""
        self.launched[family] += 1
        return launch(self.chunk, Collective(family, op, size), after)
