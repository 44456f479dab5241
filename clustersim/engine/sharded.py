"""A pass over sharded parameters: gathers ahead of the computation, reductions after it, and copies of both.

Gathers and reductions of a unit run on one stream, that of their NCCL communicator, in the order of their launches.
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
"""{family of ranks with the same parameters: family of ranks that share one copy of sharded tensors}. With several copies,
groups of the former family hold the same shard of each copy."""


@dataclass(slots=True)
class ShardedPass:
    """Writes the script lines of one pass over units of sharded parameters. Use it for one pass only."""

    job: Job
    letter: str
    chunk: int
    computed: Callable[[str, int, Steps], Iterator[ScriptLine]]
    """Function that returns the lines of a computation, given letter, chunk, and kernels with collectives."""
    launched: Counter[str] = field(default_factory=Counter)
    """{family: number of collectives launched so far on its stream}"""
    gathers: dict[tuple[str, int], int] = field(default_factory=dict)
    """{(family, index of a unit): number of collectives launched on the stream before the unit's gather}"""
    reductions: dict[str, list[int]] = field(default_factory=dict)
    """{family: number of collectives launched on the stream before each reduction}"""
    written: dict[int, tuple[ScriptLine, ...]] = field(default_factory=dict)
    """{id of a unit's items: lines of its computation}; equal blocks share one object of items."""
    copies: dict[Kernel, Steps] = field(default_factory=dict)
    """{copy kernel: tuple with it}, so that equal units share one object."""

    def lines(self, events: Events, reduces: bool) -> Iterator[ScriptLine]:
        """Yield the lines of the pass: of its events (gather, arrive, run, reduce), and the copies of offloaded activations.

        reduces: whether the pass waits at its end for everything that it launched.
        """
        events, forward, share = list(events), self.letter == "F", self.job.training.offload.activations
        sizes, done = [share * unit.saved for what, _, unit in events if what == "run" and share * unit.saved], 0
        for what, index, unit in events:
            copied = what == "run" and share * unit.saved > 0
            if copied and not forward:  # activations of the next block are copied while this block runs
                yield from (self.launch(RELOAD, "activations", size) for size in sizes[done + (done > 0) : done + 2])
                done += 1
                yield Wait(RELOAD, but=int(done < len(sizes)))
            yield from getattr(self, what)(index, unit)
            if copied and forward:
                yield Wait(SAVE)
                yield self.launch(SAVE, "activations", share * unit.saved)
        for stream in self.launched if reduces else ():
            yield Wait(stream)

    def kinds(self, dense: int, experts: int) -> Iterator[tuple[str, str, int, bool]]:
        """Yield (family of shards, family of copies, number of parameters, whether experts') for each kind of sharded parameters.

        dense, experts: number of dense and of experts' parameters; a kind without parameters or with one shard is left out.
        """
        kinds = ((SHARED["dp"], "dp", dense, False), (SHARED["edp"], "edp", experts, True))
        yield from (kind for kind in kinds if kind[2] and self.job.shards(kind[3]) > 1)

    def gather(self, index: int, unit: Unit) -> Iterator[ScriptLine]:
        """Yield the launches of a unit's gathers, and of the copies of offloaded parameters that they wait for."""
        after = Wait(INTO) if self.job.training.offload.parameters else None
        for family, _, parameters, expert in self.kinds(*unit.gathered):
            self.gathers[family, index] = self.launched[family]
            if after:
                width = weight_bytes(self.job) if self.job.parallelism.zero3 else main_bytes(self.job)
                size = width * parameters + (weight_bytes(self.job) - width) * unit.frozen[expert]
                yield self.launch(INTO, "parameters", size / self.job.shards(expert))
            yield self.launch(family, "all_gather", parameters * weight_bytes(self.job), after)

    def arrive(self, index: int, unit: Unit) -> Iterator[ScriptLine]:
        """Yield the waits for a unit's gathers, and the kernel that copies its parameters out of the gathered buffer."""
        for family, *_ in self.kinds(*unit.gathered):
            yield Wait(family, but=self.launched[family] - self.gathers.get((family, index), -1) - 1)
        if self.job.parallelism.fsdp.copy_out and spread(self.job, *unit.gathered):
            yield self.copy(copy_out, *unit.gathered)

    def run(self, index: int, unit: Unit) -> Iterator[ScriptLine]:
        """Yield the lines of a unit's computation."""
        if unit.items and id(unit.items) not in self.written:
            self.written[id(unit.items)] = tuple(self.computed(self.letter, self.chunk, unit.items))
        yield from self.written.get(id(unit.items), ())

    def reduce(self, index: int, unit: Unit) -> Iterator[ScriptLine]:
        """Yield the copy of a unit's gradients into a buffer, and the launches of their reduction.

        Before that come waits for older reductions, so that no more than the framework's limit are in flight.
        """
        setting = self.job.parallelism.fsdp
        kinds = list(self.kinds(unit.dense, unit.experts))
        limit = IN_FLIGHT if self.job.parallelism.zero3 else setting.reduce_in_flight
        for family, *_ in kinds:
            earlier = self.reductions.setdefault(family, [])
            if limit and len(earlier) >= limit:
                yield Wait(family, but=self.launched[family] - earlier[-limit] - 1)
        if setting.copy_in and kinds and spread(self.job, unit.dense, unit.experts):
            yield self.copy(copy_in, unit.dense, unit.experts)
        for family, copies, parameters, expert in kinds:
            size, shards = parameters * BYTES[self.job.training.gradients], self.job.shards(expert)
            self.reductions[family].append(self.launched[family])
            yield self.launch(family, "reduce_scatter", size)
            if shards < self.job.copies(expert):
                yield self.launch(copies, "all_reduce", size / shards, Wait(family))
            if away := leaving(self.job, size, expert):
                yield self.launch(OUT, "gradients", away, Wait(family))

    def copy(self, kernel: Callable[[Job, int], Kernel], dense: int, experts: int) -> Task:
        """Return the task that copies a unit's parameters or gradients. kernel: function that makes it from their number."""
        copied = kernel(self.job, spread(self.job, dense, experts))
        items = self.copies.setdefault(copied, (copied,))
        return Task(COMPUTE, self.letter, self.chunk, items=items)

    def launch(self, family: str, op: str, size: float, after: Wait | None = None) -> Task:
        """Return the launch of a collective of `size` bytes, and count it. after: wait for launches on another stream."""
        self.launched[family] += 1
        return launch(self.chunk, Collective(family, op, size), after)
