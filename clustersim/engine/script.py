"""Scripts: the programs of pipeline ranks in a step, with their kernels, collectives and messages, without links.

A script depends only on the job; `plan` binds it to the cells of a network. The scripts of all pipeline ranks contain all
collectives of a job with their sizes, on which the choice of an algorithm depends. Ranks that differ only in stage numbers, as
those in the middle of a pipeline, share one layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import itemgetter
from typing import NamedTuple, cast

import numpy as np

from clustersim.engine.fabric import HOST
from clustersim.engine.microbatch_overlap import Pairing, StepKey, launched_between, turns
from clustersim.engine.program import (
    COMPUTE,
    SYNCHRONISE,
    Launches,
    Layout,
    Pass,
    PassMessage,
    Program,
    ScriptLine,
    Task,
    Wait,
    joined,
    launch,
    once_each,
)
from clustersim.engine.sharded import SHARED, ShardedPass
from clustersim.hardware.constants import BYTES
from clustersim.model.kernel import Kernel
from clustersim.model.moe import COUNTS
from clustersim.model.operator import Awaited, Collective, OperatorStep, Started, Steps
from clustersim.parallel import offload
from clustersim.parallel.deepspeed import persistent
from clustersim.parallel.fsdp import block_by_block, by_buckets
from clustersim.parallel.host import reads_counts, reads_loss, unflattens
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import (
    bucket,
    first_reads,
    gradients_leave,
    has_habit,
    last_ready,
    put_back,
    replicated_families,
    update,
    weight_bytes,
)
from clustersim.parallel.stages import Stage
from clustersim.schedules.action import LETTERS, ActionRow, Schedule
from clustersim.schedules.pipeline import Pipeline

TO_NEXT, TO_PREVIOUS = "p2p-forward", "p2p-backward"
EXCHANGE = "ep"
"""Family of the all-to-alls with experts on other ranks."""

Neighbours = tuple[int, int, bool, bool]
"""Facts of a stage: (-1 or 0, 1 or 0, reversed, last). The first two are the offsets of the stages before and after it that are
on another rank, 0 for none. reversed: whether its chunk runs from the last pipeline rank to the first. last: whether it ends the
model."""
Mark = tuple[int, ScriptLine]
"""(index of the step in a pass before which it comes, task or condition)"""
DRAIN = Task(HOST, SYNCHRONISE)
"""Point where the host waits until its GPU is idle."""


def row_ends(schedule: Schedule, pipeline: Pipeline) -> tuple[RowEnds, ...]:
    """Return the row of every pipeline rank with its stages, and its passes in the order of their first and last actions."""
    rows, rank_stages = list(map(ActionRow.of, schedule)), [pipeline.rank_stages(rank) for rank in range(len(schedule))]
    code = np.concatenate([row.code for row in rows])
    number = np.arange(len(code))
    first, last = np.full((2, code.max(initial=-1) + 1), -1)
    last[code], first[code[::-1]] = number, number[::-1]  # of several values for one element the last one stays
    rank = np.arange(len(rows)).repeat([*map(len, rows)])
    ends: tuple[list[list[Pass]], ...] = ([[] for _ in rows], [[] for _ in rows])
    for passes, places in zip(ends, (first, last), strict=True):
        order = np.sort(places[places >= 0])
        stages, letters = np.divmod(code[order], len(LETTERS))
        for owner, stage, letter in zip(rank[order].tolist(), stages.tolist(), letters.tolist(), strict=True):
            passes[owner].append((LETTERS[letter], rank_stages[owner].index(stage)))
    return tuple(map(RowEnds, rows, rank_stages, *(map(tuple, passes) for passes in ends)))


def scripts(job: Job, written: WrittenPasses, rows: Sequence[RowEnds]) -> tuple[Program, ...]:
    """Return the script of every pipeline rank, from the `rows` of its schedule. Ranks with equal layouts share one object.

    written: stages of the job, and the layouts and parts so far, also for other numbers of microbatches and other orders of
    passes; new ones are added.
    """
    pipeline, stages, programs = job.pipeline, written.stages, list[Program]()
    all_neighbours, interleaved = neighbours(pipeline), pipeline.paired or job.parallelism.overlap.ep == "microbatch"
    for ends in rows:
        rank_stages, stage_neighbours = ends.stages, [all_neighbours[stage] for stage in ends.stages]
        # all ranks that hold the same stages reduce and gather them in model order
        model_order = [
            chunk for _, chunk in sorted([(stage % pipeline.stages, chunk) for chunk, stage in enumerate(rank_stages)])
        ]
        writer = _Writer(job, written, ends, stage_neighbours, model_order)
        pairing, cut = Pairing(), tuple[StepKey, ...]()
        if interleaved:
            pairing = Pairing(writer.exchange_counts(ends.begun), pipeline.paired)
            cut = tuple(key for key in dict(turns(ends.row, rank_stages, pairing)) if len(key) == 4)
        ids = [id(stages[stage]) for stage in rank_stages]
        content = (*ids, *stage_neighbours, ends.begun, ends.ended, *model_order, cut)
        if content not in written.layouts:
            written.layouts[content] = writer.layout(pairing, cut)
        programs.append(Program(written.layouts[content], ends.row, rank_stages))
    return tuple(programs)


def neighbours(pipeline: Pipeline) -> list[Neighbours]:
    """Return the facts of each global stage."""
    stage = np.arange(pipeline.stages * pipeline.copies)
    chunk, position = np.divmod(stage, pipeline.ranks)
    reversed_chunk = pipeline.folded & (chunk % 2 == 1)
    rank = np.where(reversed_chunk, pipeline.ranks - 1 - position, position)
    last = (stage + 1) % pipeline.stages == 0
    joined = (np.diff(rank, append=-1) != 0) & ~last
    before = -np.append(False, joined[:-1]).astype(int)
    return list(zip(before.tolist(), joined.astype(int).tolist(), reversed_chunk.tolist(), last.tolist(), strict=True))


def layouts(written: Iterable[Program]) -> list[Layout]:
    """Return the different layouts of scripts, in order of appearance."""
    return list(dict.fromkeys([script.layout for script in written]))


def kernels(written: Sequence[Program]) -> list[Kernel]:
    """Return the distinct kernels of all scripts, in order of appearance."""
    return list(dict.fromkeys(once_each(_steps(written), Kernel)))


def collectives(written: Sequence[Program]) -> list[Collective]:
    """Return the distinct collectives and messages of all scripts, in order of appearance."""
    return list(dict.fromkeys(once_each(_steps(written), Collective)))


def _steps(written: Sequence[Program]) -> Iterable[OperatorStep]:
    """Return the steps of all tasks in order of appearance; equal stages share one object, whose steps are returned once."""
    tasks = chain.from_iterable([one.tasks for one in layouts(written)])
    items = [task.items if task.collective is None else (task.collective,) for task in tasks]
    return chain.from_iterable(dict(zip(map(id, items), items, strict=True)).values())


def _exchanges(items: Steps) -> list[int]:
    """Return the indices of the all-to-alls with experts on other ranks."""
    return [i for i, item in enumerate(items) if isinstance(item, Collective) and item.group == EXCHANGE]


@dataclass(frozen=True, slots=True)
class WrittenPasses:
    """Parts of scripts, which depend neither on the number of microbatches nor on the order of passes; equal parts are shared."""

    stages: tuple[Stage, ...]
    """All global stages."""
    parts: dict[tuple[int, ...], Steps] = field(default_factory=dict)
    """{ids of consecutive steps: the steps}"""
    updates: dict[tuple[int, int], tuple[Steps, Steps]] = field(default_factory=dict)
    """{(number of parameters, of experts' parameters among them): (steps of the gradient norm, of the optimizer)}"""
    layouts: dict[tuple[object, ...], Layout] = field(default_factory=dict)
    """{(ids of stages, neighbours, order of passes …): layout}"""


class RowEnds(NamedTuple):
    """The row of a rank, and the order in which its passes begin and end."""

    row: ActionRow
    """Actions of the rank in order."""
    stages: tuple[int, ...]
    """Global stages of the rank, by chunk."""
    begun: tuple[Pass, ...]
    """Passes in the order of their first actions."""
    ended: tuple[Pass, ...]
    """Passes in the order of their last actions."""

    @property
    def complete(self) -> tuple[Pass, ...]:
        """Passes of letter B or W that complete a stage's weight gradients in their last action, in the order of `begun`."""
        last = {chunk: letter for letter, chunk in self.ended if letter in "BW"}
        return tuple([(letter, chunk) for letter, chunk in self.begun if last.get(chunk) == letter])


@dataclass(slots=True)
class _Writer:
    """Writes the layout of a pipeline rank."""

    job: Job
    written: WrittenPasses
    ends: RowEnds
    neighbours: list[Neighbours]
    """Neighbours of the stage of each chunk."""
    model_order: list[int]
    """Chunks in model order."""

    def stage(self, chunk: int) -> Stage:
        """Return the stage of a chunk."""
        return self.written.stages[self.ends.stages[chunk]]

    def special_passes(self) -> list[Pass]:
        """Return the passes with special lines, such as gathers, in an action of a step that `Program.order` names."""
        split, ends = self.job.parallelism, self.ends
        if self.job.sharded:
            gathers = not split.reshard_after_forward and split.pp > 1  # once for all microbatches
            complete = ends.complete if split.no_sync else ()
            return [pass_key for pass_key in ends.begun if (pass_key[0] == "F" and gathers) or pass_key in complete]
        reduces = split.overlap.grad_reduce and self.replicated and not split.reduce_every_microbatch
        # parameters that are needed first are gathered first
        firsts = [pass_key for pass_key in ends.ended if pass_key[0] == "F"] if self.gathers_ahead else []
        return [*(ends.complete if reduces else ()), *firsts]

    def layout(self, pairing: Pairing, cut: Sequence[StepKey]) -> Layout:
        """Return the layout of the rank. cut: keys of the parts of passes that run in parts."""
        sharded, special_passes = self.job.sharded, self.special_passes()
        reduces_each = self.job.parallelism.reduce_every_microbatch and bool(self.replicated)
        steps: dict[StepKey, tuple[Task, ...]] = {}
        for pass_key in self.ends.begun:
            at_once = reduces_each and pass_key[0] in "BW"
            pass_lines = self.sharded_pass if sharded else self.reduced_at_once if at_once else self.plain_pass
            steps[pass_key] = self.with_messages(pass_key, pass_lines(pass_key))
        begin: tuple[ScriptLine, ...] = ()
        special: dict[Pass, tuple[Task, ...]] = {}
        for pass_key in special_passes:
            if sharded:
                special[pass_key] = self.with_messages(pass_key, self.sharded_pass(pass_key, special=True))
            elif pass_key[0] in "BW":
                special[pass_key] = self.with_messages(pass_key, self.reducing_pass(pass_key))
        if self.gathers_ahead:
            begin, first = self.first_gathers([pass_key for pass_key in special_passes if pass_key[0] == "F"])
            special |= first
        for key in cut:
            letter, chunk, part, exchanges = cast(tuple[str, int, int, int], key)
            steps[key] = joined(self.cut_part((letter, chunk), part, exchanges, pairing))
        finish = joined(chain(self.reduce_all(), self.norm_and_optimizer(), self.gather_all()))
        return Layout(joined(begin), steps, special, finish, pairing)

    def with_messages(self, pass_key: Pass, lines: Iterable[ScriptLine]) -> tuple[Task, ...]:
        """Return the tasks of a pass with these lines, its receive before them and its send after them."""
        return joined((*self.receive(pass_key), *lines, *self.send(pass_key)))

    def exchange_counts(self, passes: Iterable[Pass]) -> dict[Pass, int]:
        """Return {pass: number of its all-to-alls with experts} if passes of two microbatches overlap, else {}."""
        if self.job.parallelism.overlap.ep != "microbatch":
            return {}
        return {pass_key: len(_exchanges(self.items(pass_key))) for pass_key in passes}

    def cut_part(self, pass_key: Pass, number: int, exchanges: int, pairing: Pairing) -> Iterator[ScriptLine]:
        """Yield the lines of a part of a pass that is cut at its all-to-alls: up to the launch of the next one, or its message.

        number: index of the part, as in StepKey. exchanges: number of exchanges of the overlapping pass.
        """
        items, paired = self.items(pass_key), self.job.pipeline.paired
        cuts = [-1, *(_exchanges(items) if pairing.exchanges else ()), len(items)]
        if number == len(cuts) - 1:
            yield from self.send(pass_key)
            return
        if number < 1 and (number < 0) == paired:
            yield from self.receive(pass_key)
        if number < 0:
            return
        begin, end = cuts[number], cuts[number + 1]
        if number:
            yield Wait(EXCHANGE, but=launched_between((*pass_key, number, exchanges)))
        if end > begin + 1:
            yield from self.computation(*pass_key, items[begin + 1 : end])
        if end < len(items):
            yield launch(pass_key[1], cast(Collective, items[end]))
        elif not paired:
            yield from self.send(pass_key)

    def items(self, pass_key: Pass) -> Steps:
        """Return the kernels and collectives of a pass in order."""
        by_letter = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
        items: Steps = getattr(self.stage(pass_key[1]), by_letter[pass_key[0]])
        return items

    def plain_pass(self, pass_key: Pass) -> Iterator[ScriptLine]:
        """Yield the lines of a pass in one part without gathers and reductions, with the copies of offloaded activations."""
        return self.with_marks(pass_key, self.items(pass_key), self.activation_copies(pass_key))

    def activation_copies(self, pass_key: Pass) -> list[Mark]:
        """Return the marks of copies of offloaded activations: to the host after each block, or back during the block before."""
        letter, chunk = pass_key
        copies = offload.block_copies(self.job, self.stage(chunk), letter)
        return [
            (position, launch(chunk, copy) if isinstance(copy, Collective) else Wait(*copy))
            for position, copy in copies
        ]

    def computation(self, letter: str, chunk: int, items: Steps) -> Iterator[ScriptLine]:
        """Yield the lines of a computation, cut at collectives outside the tp group, such as those of experts.

        Its parts are in lock-step with the tp group; if tp peers hold different experts, only parts with tp collectives are.
        """
        split = self.job.parallelism
        group = "tp" if split.tp > 1 else None
        tp_calls = [call for call in once_each(items, Collective) if call.group == "tp"]
        computing = {*map(id, once_each(items, Kernel)), *map(id, tp_calls)}
        cuts = [i for i, item in enumerate(map(id, items)) if item not in computing]
        for begin, end in pairwise([-1, *cuts, len(items)]):
            steps = items[begin + 1 : end]
            steps = self.written.parts.setdefault(tuple(map(id, steps)), steps)  # equal layers share one object
            independent = split.etp != split.tp and not any(isinstance(item, Collective) for item in steps)
            if steps or not items:
                yield Task(COMPUTE, letter, chunk, None if independent else group, items=steps)
            if end < len(items):
                item = items[end]
                if not isinstance(item, Awaited):
                    yield launch(chunk, item.collective if isinstance(item, Started) else cast(Collective, item))
                if not isinstance(item, Started):
                    yield Wait(cast(Collective, item).group)
                if isinstance(item, Collective) and item.group == COUNTS and reads_counts(self.job):
                    yield DRAIN

    def with_marks(self, pass_key: Pass, items: Steps, marks: Sequence[Mark]) -> Iterator[ScriptLine]:
        """Yield the lines of the computation of `items`, with the line of each mark at its position."""
        done = 0
        for position, line in sorted(marks, key=itemgetter(0)):
            if position > done:
                yield from self.computation(*pass_key, items[done:position])
                done = position
            yield line
        if done < len(items):
            yield from self.computation(*pass_key, items[done:])

    def receive(self, pass_key: Pass) -> tuple[ScriptLine, ...]:
        """Return the receive of a pass, and the tp all-gather after it if each tp rank receives a part; () without a message."""
        forward, stage = pass_key[0] == "F", self.stage(pass_key[1])
        if not self.message_offset(pass_key, not forward):
            return ()
        received = PassMessage(self.message_family(pass_key), pass_key[1])
        if self.job.message_parts == 1:
            return (received,)
        size = stage.input_bytes if forward else stage.output_bytes
        return received, launch(pass_key[1], Collective("tp", "all_gather", size)), Wait("tp")

    def send(self, pass_key: Pass) -> tuple[ScriptLine, ...]:
        """Return the send of a pass, and the wait for it unless messages overlap; () without a message.

        A last stage whose host reads the loss has the host's wait instead.
        """
        forward, stage = pass_key[0] == "F", self.stage(pass_key[1])
        if forward and self.neighbours[pass_key[1]][3] and reads_loss(self.job):
            return (DRAIN,)
        ahead = self.message_offset(pass_key, forward)
        if not ahead:
            return ()
        size = (stage.output_bytes if forward else stage.input_bytes) / self.job.message_parts
        family = self.message_family(pass_key)
        given = PassMessage(family, pass_key[1], ahead)
        sent = Task(family, "send", pass_key[1], gives=given, collective=Collective(family, "send", size))
        return (sent,) if self.job.parallelism.overlap.p2p else (sent, Wait(family))

    def message_offset(self, pass_key: Pass, onwards: bool) -> int:
        """Return the offset of the stage after (`onwards`: 1) or before (-1) a pass's own; 0 if they exchange no message."""
        return 0 if pass_key[0] == "W" else self.neighbours[pass_key[1]][onwards]

    def message_family(self, pass_key: Pass) -> str:
        """Return the family of a pass's messages: TO_NEXT to the next pipeline rank, TO_PREVIOUS to the previous one."""
        return TO_NEXT if (pass_key[0] == "F") != self.neighbours[pass_key[1]][2] else TO_PREVIOUS

    def sharded_pass(self, pass_key: Pass, special: bool = False) -> Iterator[ScriptLine]:
        """Return the lines of a pass over sharded parameters.

        special: whether it is the action of the step that gathers parameters, or reduces gradients, for all microbatches.
        """
        job, (letter, chunk) = self.job, pass_key
        once = letter == "F" and (special or job.parallelism.pp == 1)
        gathers = letter != "W" and (job.parallelism.reshard_after_forward or once)
        reduces = letter in "BW" and (special or not job.parallelism.no_sync)

        if job.parallelism.zero3:
            events = by_buckets(job, self.stage(chunk), letter)
        else:
            events = block_by_block(job, self.stage(chunk), letter, gathers, reduces)
        return ShardedPass(job, letter, chunk, self.computation).lines(events, reduces)

    @property
    def replicated(self) -> list[tuple[str, bool]]:
        """Families of ranks with the same parameters, each with whether they are experts' (`parallel.optimizer`)."""
        return replicated_families(self.job)

    @property
    def gathers_ahead(self) -> bool:
        """Whether the parameters of the last update are gathered during the first forward passes."""
        return bool(
            self.job.parallelism.zero in (1, 2) and self.job.parallelism.overlap.param_gather and self.replicated
        )

    def shard_family(self, family: str) -> str:
        """Return the family of ranks that share one copy of the optimizer states, for a family of the same parameters."""
        return SHARED[family] if self.job.parallelism.optimizer_instances > 1 else family

    def reduction(self, family: str, chunk: int, parameters: float) -> tuple[ScriptLine, ...]:
        """Return the lines that reduce the gradients of a number of parameters of a family; () for none.

        They are a reduce-scatter to shards, then an all-reduce over copies of the shards, and the copy of offloaded gradients.
        """
        size, shard_family = parameters * BYTES[self.job.training.gradients], self.shard_family(family)
        shards = self.job.shards(expert=family == "edp")
        all_reduces = has_habit(self.job, "reduces_whole")
        scatter = launch(chunk, Collective(shard_family, "all_reduce" if all_reduces else "reduce_scatter", size))
        copies = launch(
            chunk, Collective(family, "all_reduce", size / shards), Wait(shard_family) if shards > 1 else None
        )
        read = (DRAIN,) * reads_loss(self.job)  # such a host reads the norm of each bucket too
        leaving_bytes = offload.leaving(self.job, size, family == "edp") * (shards > 1)
        copy = launch(chunk, Collective(offload.OUT, "gradients", leaving_bytes), Wait(shard_family))
        reduce = (scatter,) * (shards > 1) + (copies,) * (shards == 1 or shard_family != family)
        return (*read, *reduce, *(copy,) * (leaving_bytes > 0)) if size else ()

    def gathering(self, family: str, chunk: int, parameters: float, op: str = "all_gather") -> tuple[ScriptLine, ...]:
        """Return the collective `op` that brings updated parameters to the ranks of a shard family; () with a single shard."""
        size = parameters * weight_bytes(self.job) * (self.job.shards(expert=family == "edp") > 1)
        return (launch(chunk, Collective(self.shard_family(family), op, size)),) if size else ()

    def reducing_pass(self, pass_key: Pass) -> Iterator[ScriptLine]:
        """Yield the lines of a backward pass that launches each gradient bucket's reduction when its last gradient is ready."""
        items, stage, marks = self.items(pass_key), self.stage(pass_key[1]), self.activation_copies(pass_key)
        for family, expert in self.replicated:
            ready = stage.gradient_ready(expert) if pass_key[0] == "B" else ((len(items), stage.held(expert)),)
            for last in last_ready(ready, bucket(self.job)):
                marks += [(last.position, line) for line in self.reduction(family, pass_key[1], last.parameters)]
        return self.with_marks(pass_key, items, marks)

    def reduced_at_once(self, pass_key: Pass) -> Iterator[ScriptLine]:
        """Yield the lines of a backward pass, the reductions of its gradients during or after it, and the waits for them."""
        if self.job.parallelism.overlap.grad_reduce:
            yield from self.reducing_pass(pass_key)
        else:
            yield from self.plain_pass(pass_key)
            for family, expert in self.replicated:
                yield from self.reduction(family, pass_key[1], self.stage(pass_key[1]).held(expert))
        yield from (Wait(family) for family, _ in self.replicated)

    def first_gathers(self, firsts: Iterable[Pass]) -> tuple[tuple[ScriptLine, ...], dict[Pass, tuple[Task, ...]]]:
        """Return the launches of all gathers at the start of a step, and the tasks of the first forward passes, by pass.

        A first forward pass waits for each bucket of parameters before their first use.
        """
        starts: dict[str, list[ScriptLine]] = {family: [] for family, _ in self.replicated}
        special: dict[Pass, tuple[Task, ...]] = {}
        for pass_key in firsts:
            stage = self.stage(pass_key[1])
            marks = self.activation_copies(pass_key)
            for family, expert in self.replicated:
                for first_read in first_reads(stage.parameters_used(expert), bucket(self.job)):
                    starts[family] += self.gathering(family, pass_key[1], first_read.parameters)
                    marks.append((first_read.position, Wait(self.shard_family(family), len(starts[family]))))
            special[pass_key] = self.with_messages(pass_key, self.with_marks(pass_key, stage.forward, marks))
        return tuple(line for lines in starts.values() for line in lines), special

    @property
    def rank_stages(self) -> list[Stage]:
        """Stages of the rank in model order."""
        return [self.stage(chunk) for chunk in self.model_order]

    def reduce_all(self) -> Iterator[ScriptLine]:
        """Yield reductions after the last pass, the waits for all, then the all-reduce of the tied embedding's gradients."""
        for family, expert in () if self.job.sharded else self.replicated:
            split = self.job.parallelism
            if not split.overlap.grad_reduce and not split.reduce_every_microbatch:
                for chunk in self.model_order:
                    yield from self.reduction(family, chunk, self.stage(chunk).held(expert))
            yield Wait(family)
        shared = max(stage.shared for stage in self.rank_stages)
        if shared:
            size = shared * BYTES[self.job.training.gradients] / (self.job.shards(False) if self.job.sharded else 1)
            yield launch(-1, Collective("embedding", "all_reduce", size))
            yield Wait("embedding")

    def norm_and_optimizer(self) -> Iterator[ScriptLine]:
        """Yield the lines of the gradient norm, all-reduced over a replica with all experts, and of the optimizer or its host."""
        stages = self.rank_stages
        parameters, experts = (sum(getattr(stage, kind) for stage in stages) for kind in ("parameters", "experts"))
        updates = self.written.updates
        if (parameters, experts) not in updates:
            updates[parameters, experts] = self.update_steps(parameters, experts)
        norm, optimizer = updates[parameters, experts]
        if norm:
            yield Task(COMPUTE, "norm", family="model" if isinstance(norm[-1], Collective) else None, items=norm)
        if gradients_leave(self.job):
            yield Wait(offload.OUT)
        update = list(offload.host_update(self.job, stages, parameters, experts))
        yield from (launch(-1, call, Wait(after) if after else None) for call, after in update)
        if optimizer:
            launches = Launches(tensors=sum(sum(stage.tensors) for stage in stages))
            yield Task(COMPUTE, "optimizer", items=optimizer, launches=launches)
        yield from (Wait(family) for family in dict.fromkeys(call.group for call, _ in update))

    def update_steps(self, parameters: int, experts: int) -> tuple[Steps, Steps]:
        """Return the steps of the gradient norm (empty if there is none) and of the optimizer. experts: parameters in experts."""
        steps = update(self.job, parameters, experts)
        norm = next((i + 1 for i, kernel in enumerate(steps) if kernel.op == "gradient_norm"), 0)
        all_ranks = norm and self.job.mesh.size > self.job.copies(expert=True)
        return (*steps[:norm], *([Collective("model", "all_reduce", 4.0)] if all_ranks else [])), steps[norm:]

    def gather_all(self) -> Iterator[ScriptLine]:
        """Yield the collectives of updated parameters (ZeRO-1 and 2), unless they overlap with the next forward passes.

        With sharded parameters this is the all-gather of small ones that DeepSpeed keeps whole (`persistent`).
        """
        setting = self.job.parallelism.zero3 if self.job.sharded else None
        size = persistent(self.written.stages[0], setting) * weight_bytes(self.job) if setting else 0.0
        if size:
            yield launch(0, Collective(SHARED["dp"], "all_gather", size))
            yield Wait(SHARED["dp"])
        if not self.job.parallelism.zero or self.gathers_ahead or self.job.sharded:
            return
        for family, expert in self.replicated:
            for chunk in self.model_order:
                stage = self.stage(chunk)
                if has_habit(self.job, "broadcasts"):
                    for owner in stage.owners(self.job.shards(expert), expert):
                        yield from self.gathering(family, chunk, owner, "broadcast")
                else:
                    yield from self.gathering(family, chunk, stage.held(expert))
            yield Wait(self.shard_family(family))
            yield from self.unflattened(expert)

    def unflattened(self, expert: bool) -> Iterator[ScriptLine]:
        """Yield the copy of gathered parameters from a flat buffer into their tensors, if the framework makes it."""
        parameters = sum(stage.held(expert) for stage in self.rank_stages)
        if parameters and unflattens(self.job):
            tensors = sum(stage.tensors[expert] for stage in self.rank_stages)
            launches = Launches(parts=tensors * self.job.shards(expert))
            yield Task(COMPUTE, "optimizer", items=(put_back(self.job, parameters),), launches=launches)
