"""Scripts: the programs of pipeline ranks in a step, with their kernels, collectives and messages, without links.

A script depends only on the job; `plan` binds it to the cells of a network. The scripts of all pipeline ranks contain all
collectives of a job with their sizes, on which the choice of an algorithm depends. Ranks that differ only in stage numbers, as
those in the middle of a pipeline, share one layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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

FORWARD, BACKWARD = "p2p-forward", "p2p-backward"
EXCHANGE = "ep"
"""Group of the exchange of rows with experts on other ranks."""

Neighbours = tuple[int, int, bool, bool]
"""How far the stages before and after one are, whether its chunk is reversed, and whether it ends the model."""
Mark = tuple[int, ScriptLine]
"""(position in a pass, task or condition there)"""
DRAIN = Task(HOST, SYNCHRONISE)
"""Point where the host waits until its GPU is idle."""


def row_ends(schedule: Schedule, pipeline: Pipeline) -> tuple[RowEnds, ...]:
    """Return the row of every pipeline rank with its stages."""
    rows, own = list(map(ActionRow.of, schedule)), [pipeline.rank_stages(rank) for rank in range(len(schedule))]
    code, number = np.concatenate([row.code for row in rows]), np.arange(sum(map(len, rows)))
    first, last = np.full((2, code.max(initial=-1) + 1), -1)
    last[code], first[code[::-1]] = number, number[::-1]  # of the actions of one pass, the last that is written stays
    rank = np.arange(len(rows)).repeat([*map(len, rows)])
    ends: tuple[list[list[Pass]], ...] = ([[] for _ in rows], [[] for _ in rows])
    for passes, places in zip(ends, (first, last), strict=True):
        order = np.sort(places[places >= 0])
        stages, letters = np.divmod(code[order], len(LETTERS))
        for of, stage, letter in zip(rank[order].tolist(), stages.tolist(), letters.tolist(), strict=True):
            passes[of].append((LETTERS[letter], own[of].index(stage)))
    return tuple(map(RowEnds, rows, own, *(map(tuple, passes) for passes in ends)))


def scripts(job: Job, written: WrittenPasses, rows: Sequence[RowEnds]) -> tuple[Program, ...]:
    """Return the script of every pipeline rank; its layout is written for the first rank that has it.

    `written` keeps layouts for jobs with other numbers of microbatches.
    """
    pipeline, stages, found = job.pipeline, written.stages, list[Program]()
    around, interleaved = neighbours(pipeline), pipeline.paired or job.parallelism.overlap.ep == "microbatch"
    for ends in rows:
        own, beside = ends.own, [around[stage] for stage in ends.own]
        # all ranks that hold the same stages reduce and gather them in model order
        order = [chunk for _, chunk in sorted([(stage % pipeline.stages, chunk) for chunk, stage in enumerate(own)])]
        pairing, cut = Pairing(), tuple[StepKey, ...]()
        if interleaved:
            exchanges = _Writer(job, written, ends, beside, order).exchanges(ends.begun)
            pairing = Pairing(exchanges, pipeline.paired)
            cut = tuple(key for key in dict(turns(ends.row, own, pairing)) if len(key) == 4)
        content = (*[id(stages[one]) for one in own], *beside, ends.begun, ends.ended, *order, cut)
        if content not in written.layouts:
            written.layouts[content] = _Writer(job, written, ends, beside, order).layout(pairing, cut)
        found.append(Program(written.layouts[content], ends.row, own))
    return tuple(found)


def neighbours(pipeline: Pipeline) -> list[Neighbours]:
    """Return for each global stage how far the stages before and after it are, 0 where there is none or it is on the same rank;
    whether its chunk is reversed, and whether it ends the model."""
    stage = np.arange(pipeline.stages * pipeline.copies)
    chunk, place = np.divmod(stage, pipeline.ranks)
    back = pipeline.folded & (chunk % 2 == 1)
    rank = np.where(back, pipeline.ranks - 1 - place, place)
    last = (stage + 1) % pipeline.stages == 0
    joined = (np.diff(rank, append=-1) != 0) & ~last
    before = -np.append(False, joined[:-1]).astype(int)
    return list(zip(before.tolist(), joined.astype(int).tolist(), back.tolist(), last.tolist(), strict=True))


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
    """Parts of scripts that do not depend on the number of microbatches. Equal parts are one object."""

    stages: tuple[Stage, ...]
    """All global stages."""
    passes: dict[tuple[object, ...], tuple[ScriptLine, ...]] = field(default_factory=dict)
    """Lines of passes by letter, stage object and options; written for the first of equal stages."""
    parts: dict[tuple[int, ...], Steps] = field(default_factory=dict)
    """Consecutive steps of passes, by the identities of the steps."""
    updates: dict[tuple[int, int], tuple[Steps, Steps]] = field(default_factory=dict)
    """(gradient norm, optimizer) by the number of parameters and of experts' parameters."""
    layouts: dict[tuple[object, ...], Layout] = field(default_factory=dict)
    """Layouts by their content: stages, messages, special passes, order."""


class RowEnds(NamedTuple):
    """The row of a rank, and the order in which its passes begin and end."""

    row: ActionRow
    """Actions of the rank in order."""
    own: tuple[int, ...]
    """Global stages of the rank, by chunk."""
    begun: tuple[Pass, ...]
    """Passes in the order of their first actions."""
    ended: tuple[Pass, ...]
    """Passes in the order of their last actions."""

    @property
    def complete(self) -> tuple[Pass, ...]:
        """Passes after whose last action the weight gradients of a stage are complete, in the order of their first actions."""
        last = {chunk: letter for letter, chunk in self.ended if letter in "BW"}
        return tuple([(letter, chunk) for letter, chunk in self.begun if last.get(chunk) == letter])


def _of_chunk(line: ScriptLine, chunk: int) -> ScriptLine:
    """Return the line with another chunk."""
    return line._replace(chunk=chunk) if isinstance(line, Task) and 0 <= line.chunk != chunk else line


@dataclass(slots=True)
class _Writer:
    """Writes the layout of a pipeline rank."""

    job: Job
    written: WrittenPasses
    ends: RowEnds
    neighbours: list[Neighbours]
    """Neighbours of the stage of each chunk."""
    in_order: list[int]
    """Chunks in model order."""

    def stage(self, chunk: int) -> Stage:
        """Return the stage of a chunk."""
        return self.written.stages[self.ends.own[chunk]]

    def once(self) -> list[Pass]:
        """Return the passes with special lines, such as reductions or gathers, for the action that `Program.order` names."""
        split, ends = self.job.parallelism, self.ends
        if self.job.sharded:
            gathers = not split.reshard_after_forward and split.pp > 1  # for all microbatches
            complete = ends.complete if split.no_sync else ()
            return [one for one in ends.begun if (one[0] == "F" and gathers) or one in complete]
        reduces = split.overlap.grad_reduce and self.kinds and not split.reduce_every_microbatch
        # what is needed first, first
        firsts = [one for one in ends.ended if one[0] == "F"] if self.gathers else []
        return [*(ends.complete if reduces else ()), *firsts]

    def layout(self, pairing: Pairing, cut: Sequence[StepKey]) -> Layout:
        """Write the layout of the rank. cut: parts of passes that are cut."""
        split, sharded, several, once = self.job.parallelism, self.job.sharded, bool(self.kinds), self.once()
        steps: dict[StepKey, tuple[Task, ...]] = {}
        for one in self.ends.begun:
            at_once = split.reduce_every_microbatch and several and one[0] in "BW"
            write = self.sharded if sharded else self.reduced_at_once if at_once else self.whole
            steps[one] = self.between(one, write(one))
        begin: tuple[ScriptLine, ...] = ()
        special: dict[Pass, tuple[Task, ...]] = {}
        for one in once:
            if sharded:
                special[one] = self.between(one, self.sharded(one, once=True))
            elif one[0] in "BW":
                special[one] = self.between(one, self.reduced(one))
        if self.gathers:
            begin, first = self.gathered([one for one in once if one[0] == "F"])
            special |= first
        for key in cut:
            letter, chunk, which, beside = cast(tuple[str, int, int, int], key)
            steps[key] = joined(self.part((letter, chunk), which, beside, pairing))
        finish = joined(chain(self.reduce_all(), self.end(), self.gather_all()))
        return Layout(joined(begin), steps, special, finish, pairing)

    def between(self, one: Pass, lines: Iterable[ScriptLine]) -> tuple[Task, ...]:
        """Return the tasks of a pass, with the message that it receives and the one that it sends."""
        return joined((*self.take(one), *lines, *self.give(one)))

    def exchanges(self, passes: Iterable[Pass]) -> dict[Pass, int]:
        """Return {pass: number of all-to-alls with experts} if two passes run beside each other, else nothing."""
        if self.job.parallelism.overlap.ep != "microbatch":
            return {}
        return {one: len(_exchanges(self.items(one))) for one in passes}

    def part(self, one: Pass, which: int, beside: int, pairing: Pairing) -> Iterator[ScriptLine]:
        """Yield part `which` of a pass that is cut at its all-to-alls: up to the launch of the next one, or its message."""
        items, paired = self.items(one), self.job.pipeline.paired
        places = [-1, *(_exchanges(items) if pairing.exchanges else ()), len(items)]
        if which == len(places) - 1:
            yield from self.give(one)
            return
        if which < 1 and (which < 0) == paired:
            yield from self.take(one)
        if which < 0:
            return
        begin, end = places[which], places[which + 1]
        if which:
            yield Wait(EXCHANGE, but=launched_between((*one, which, beside)))
        if end > begin + 1:
            yield from self.computed(*one, items[begin + 1 : end])
        if end < len(items):
            yield launch(one[1], cast(Collective, items[end]))
        elif not paired:
            yield from self.give(one)

    def items(self, one: Pass) -> Steps:
        """Return the kernels and collectives of a pass."""
        by_letter = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
        items: Steps = getattr(self.stage(one[1]), by_letter[one[0]])
        return items

    def whole(self, one: Pass) -> Iterator[ScriptLine]:
        """Yield the lines of an uncut pass, with the copies of offloaded activations."""
        return self.like(one, (), lambda: self.marked(one, self.items(one), self.copies(one)))

    def copies(self, one: Pass) -> list[Mark]:
        """Return the copies of offloaded activations: to the host after each block, or back during the block before."""
        letter, chunk = one
        found = offload.block_copies(self.job, self.stage(chunk), letter)
        return [(place, launch(chunk, own) if isinstance(own, Collective) else Wait(*own)) for place, own in found]

    def like(
        self, one: Pass, what: tuple[object, ...], write: Callable[[], Iterable[ScriptLine]]
    ) -> Iterator[ScriptLine]:
        """Yield lines that `write` writes once for all equal stages. `what`: options that change them."""
        key, passes = (one[0], id(self.stage(one[1])), *what), self.written.passes
        if key not in passes:
            passes[key] = tuple(write())
        return (_of_chunk(line, one[1]) for line in passes[key])

    def computed(self, letter: str, chunk: int, items: Steps) -> Iterator[ScriptLine]:
        """Yield computations in lock-step with the tp group, and between them the collectives of experts, which join other ranks.

        Where tp peers hold different experts, whose work may differ, only parts with tp collectives are in lock-step.
        """
        split = self.job.parallelism
        lock = "tp" if split.tp > 1 else None
        inside = [one for one in once_each(items, Collective) if one.group == "tp"]
        here = {*map(id, once_each(items, Kernel)), *map(id, inside)}
        places = [i for i, item in enumerate(map(id, items)) if item not in here]
        for begin, end in pairwise([-1, *places, len(items)]):
            part = items[begin + 1 : end]
            part = self.written.parts.setdefault(tuple(map(id, part)), part)  # like layers have one
            alone = split.etp != split.tp and not any(isinstance(item, Collective) for item in part)
            if part or not items:
                yield Task(COMPUTE, letter, chunk, None if alone else lock, items=part)
            if end < len(items):
                one = items[end]
                if not isinstance(one, Awaited):
                    yield launch(chunk, one.collective if isinstance(one, Started) else cast(Collective, one))
                if not isinstance(one, Started):
                    yield Wait(cast(Collective, one).group)
                if isinstance(one, Collective) and one.group == COUNTS and reads_counts(self.job):
                    yield DRAIN

    def marked(self, one: Pass, items: Steps, marks: Sequence[Mark]) -> Iterator[ScriptLine]:
        """Yield the computations of `items`, with each mark's line at its position."""
        done = 0
        for position, line in sorted(marks, key=itemgetter(0)):
            if position > done:
                yield from self.computed(*one, items[done:position])
                done = position
            yield line
        if done < len(items):
            yield from self.computed(*one, items[done:])

    def take(self, one: Pass) -> tuple[ScriptLine, ...]:
        """Return the receive of a pass, and the tp all-gather after it if each tp rank receives a part."""
        forward, stage = one[0] == "F", self.stage(one[1])
        if not self.beyond(one, not forward):
            return ()
        received = PassMessage(self.way(one), one[1])
        if self.job.message_parts == 1:
            return (received,)
        size = stage.input_bytes if forward else stage.output_bytes
        return received, launch(one[1], Collective("tp", "all_gather", size)), Wait("tp")

    def give(self, one: Pass) -> tuple[ScriptLine, ...]:
        """Return the send of a pass, and the wait for it if it is awaited at once, or the wait of a host that reads the loss."""
        forward, stage = one[0] == "F", self.stage(one[1])
        if forward and self.neighbours[one[1]][3] and reads_loss(self.job):
            return (DRAIN,)
        ahead = self.beyond(one, forward)
        if not ahead:
            return ()
        size = (stage.output_bytes if forward else stage.input_bytes) / self.job.message_parts
        way = self.way(one)
        given = PassMessage(way, one[1], ahead)
        sent = Task(way, "send", one[1], gives=given, collective=Collective(way, "send", size))
        return (sent,) if self.job.parallelism.overlap.p2p else (sent, Wait(way))

    def beyond(self, one: Pass, onwards: bool) -> int:
        """Return the offset (1, -1) from a pass's stage to the next or previous one, if it is on another rank that exchanges
        messages; else 0."""
        return 0 if one[0] == "W" else self.neighbours[one[1]][onwards]

    def way(self, one: Pass) -> str:
        """Return the family of a pass's messages: p2p-forward to the next pipeline rank, p2p-backward to the previous one."""
        return FORWARD if (one[0] == "F") != self.neighbours[one[1]][2] else BACKWARD

    def sharded(self, one: Pass, once: bool = False) -> Iterator[ScriptLine]:
        """Yield a pass that gathers its parameters, and reduces their gradients after it.

        once: whether it is the pass of a step that does what others leave out.
        """
        job, forward = self.job, one[0] == "F"
        gathers = (job.parallelism.reshard_after_forward or (forward and (once or job.parallelism.pp == 1))) and one[
            0
        ] != "W"
        reduces = one[0] in "BW" and (once or not job.parallelism.no_sync)
        yield from self.like(one, (gathers, reduces), lambda: self.sharded_lines(one, gathers, reduces))

    def sharded_lines(self, one: Pass, gathers: bool, reduces: bool) -> Iterator[ScriptLine]:
        """Yield the lines of a pass over sharded parameters. gathers, reduces: whether it gathers them and reduces gradients."""
        job, (letter, chunk) = self.job, one
        events = (
            by_buckets(job, self.stage(chunk), letter)
            if job.parallelism.zero3
            else block_by_block(job, self.stage(chunk), letter, gathers, reduces)
        )
        return ShardedPass(job, letter, chunk, self.computed).lines(events, reduces)

    @property
    def kinds(self) -> list[tuple[str, bool]]:
        """[(family, whether experts')] of the groups with the same parameters, as in `parallel.optimizer.replicated_families`."""
        return replicated_families(self.job)

    @property
    def gathers(self) -> bool:
        """Whether the parameters of the last update are gathered during the first forward passes."""
        return bool(self.job.parallelism.zero in (1, 2) and self.job.parallelism.overlap.param_gather and self.kinds)

    def sharing(self, family: str) -> str:
        """Return the family whose ranks share one copy of the optimizer states."""
        return SHARED[family] if self.job.parallelism.optimizer_instances > 1 else family

    def reduce(self, family: str, chunk: int, parameters: float) -> tuple[ScriptLine, ...]:
        """Return the reduction of gradients: a reduce-scatter to shards, then an all-reduce over copies of the shards."""
        size, sharing = parameters * BYTES[self.job.training.gradients], self.sharing(family)
        shards = self.job.shards(expert=family == "edp")
        whole = has_habit(self.job, "reduces_whole")
        scatter = launch(chunk, Collective(sharing, "all_reduce" if whole else "reduce_scatter", size))
        copies = launch(chunk, Collective(family, "all_reduce", size / shards), Wait(sharing) if shards > 1 else None)
        read = (DRAIN,) * reads_loss(self.job)  # and the norm of each bucket
        away = offload.leaving(self.job, size, family == "edp") * (shards > 1)
        leave = (launch(chunk, Collective(offload.OUT, "gradients", away), Wait(sharing)),) if away else ()
        reduce = (scatter,) * (shards > 1) + (copies,) * (shards == 1 or sharing != family)
        return (*read, *reduce, *leave) if size else ()

    def gather(self, family: str, chunk: int, parameters: float, op: str = "all_gather") -> tuple[ScriptLine, ...]:
        """Return the collective that brings updated parameters to the ranks that share one copy of the optimizer states."""
        size = parameters * weight_bytes(self.job) * (self.job.shards(expert=family == "edp") > 1)
        return (launch(chunk, Collective(self.sharing(family), op, size)),) if size else ()

    def reduced(self, one: Pass) -> Iterator[ScriptLine]:
        """Yield a backward pass that launches the reduction of each gradient bucket when it is full."""
        return self.like(one, ("reduced",), lambda: self.reduced_lines(one))

    def reduced_lines(self, one: Pass) -> Iterator[ScriptLine]:
        """Yield the lines of a pass that launches the reduction of each gradient bucket when its last gradient is ready."""
        items, stage = self.items(one), self.stage(one[1])
        marks = self.copies(one)
        for family, expert in self.kinds:
            ready = stage.gradient_ready(expert) if one[0] == "B" else ((len(items), stage.held(expert)),)
            for own in last_ready(ready, bucket(self.job)):
                marks += [(own.position, line) for line in self.reduce(family, one[1], own.parameters)]
        return self.marked(one, items, marks)

    def reduced_at_once(self, one: Pass) -> Iterator[ScriptLine]:
        """Yield a backward pass, the reductions of its gradients during or after it, and the wait for them."""
        if self.job.parallelism.overlap.grad_reduce:
            yield from self.reduced(one)
        else:
            yield from self.whole(one)
            for family, expert in self.kinds:
                yield from self.reduce(family, one[1], self.stage(one[1]).held(expert))
        yield from (Wait(family) for family, _ in self.kinds)

    def gathered(self, firsts: Iterable[Pass]) -> tuple[tuple[ScriptLine, ...], dict[Pass, tuple[Task, ...]]]:
        """Launch all gathers at once; the first forward pass of each stage waits for each bucket before its first use."""
        starts: dict[str, list[ScriptLine]] = {family: [] for family, _ in self.kinds}
        special: dict[Pass, tuple[Task, ...]] = {}
        for first in firsts:
            stage = self.stage(first[1])
            marks = self.copies(first)
            for family, expert in self.kinds:
                for one in first_reads(stage.parameters_used(expert), bucket(self.job)):
                    starts[family] += self.gather(family, first[1], one.parameters)
                    marks.append((one.position, Wait(self.sharing(family), len(starts[family]))))
            special[first] = self.between(first, self.marked(first, stage.forward, marks))
        return tuple(line for lines in starts.values() for line in lines), special

    @property
    def held(self) -> list[Stage]:
        """Stages of the rank in model order."""
        return [self.stage(chunk) for chunk in self.in_order]

    def reduce_all(self) -> Iterator[ScriptLine]:
        """Yield the reductions after the last pass, then the all-reduce of the tied embedding's gradients."""
        for family, expert in () if self.job.sharded else self.kinds:
            split = self.job.parallelism
            if not split.overlap.grad_reduce and not split.reduce_every_microbatch:
                for chunk in self.in_order:
                    yield from self.reduce(family, chunk, self.stage(chunk).held(expert))
            yield Wait(family)
        shared = max(stage.shared for stage in self.held)
        if shared:
            size = shared * BYTES[self.job.training.gradients] / (self.job.shards(False) if self.job.sharded else 1)
            yield launch(-1, Collective("embedding", "all_reduce", size))
            yield Wait("embedding")

    def end(self) -> Iterator[ScriptLine]:
        """Yield the gradient norm, all-reduced over a replica with all experts, and the optimizer, here or on the host."""
        parameters, experts = (sum(getattr(stage, kind) for stage in self.held) for kind in ("parameters", "experts"))
        updates = self.written.updates
        if (parameters, experts) not in updates:
            updates[parameters, experts] = self.update(parameters, experts)
        norm, optimizer = updates[parameters, experts]
        if norm:
            yield Task(COMPUTE, "norm", family="model" if isinstance(norm[-1], Collective) else None, items=norm)
        if gradients_leave(self.job):
            yield Wait(offload.OUT)
        update = list(offload.host_update(self.job, self.held, parameters, experts))
        yield from (launch(-1, one, Wait(after) if after else None) for one, after in update)
        if optimizer:
            own = Launches(tensors=sum(sum(stage.tensors) for stage in self.held))
            yield Task(COMPUTE, "optimizer", items=optimizer, launches=own)
        yield from (Wait(family) for family in dict.fromkeys(one.group for one, _ in update))

    def update(self, parameters: int, experts: int) -> tuple[Steps, Steps]:
        """Return the gradient norm and the optimizer of `parameters` parameters, of which `experts` are experts'."""
        found = update(self.job, parameters, experts)
        norm = next((i + 1 for i, kernel in enumerate(found) if kernel.op == "gradient_norm"), 0)
        everyone = norm and self.job.mesh.size > self.job.copies(expert=True)
        return (*found[:norm], *([Collective("model", "all_reduce", 4.0)] if everyone else [])), found[norm:]

    def gather_all(self) -> Iterator[ScriptLine]:
        """Yield the collectives of updated parameters (ZeRO-1 and 2), unless they overlap with the next forward passes."""
        if self.job.sharded:
            yield from self.gather_small()
        if not self.job.parallelism.zero or self.gathers or self.job.sharded:
            return
        for family, expert in self.kinds:
            for chunk in self.in_order:
                stage = self.stage(chunk)
                if has_habit(self.job, "broadcasts"):
                    for owner in stage.owners(self.job.shards(expert), expert):
                        yield from self.gather(family, chunk, owner, "broadcast")
                else:
                    yield from self.gather(family, chunk, stage.held(expert))
            yield Wait(self.sharing(family))
            yield from self.unflattened(expert)

    def gather_small(self) -> Iterator[ScriptLine]:
        """Yield the all-gather of small parameters that DeepSpeed keeps whole (`persistent`)."""
        setting = self.job.parallelism.zero3
        size = persistent(self.written.stages[0], setting) * weight_bytes(self.job) if setting else 0.0
        if size:
            yield launch(0, Collective(SHARED["dp"], "all_gather", size))
            yield Wait(SHARED["dp"])

    def unflattened(self, expert: bool) -> Iterator[ScriptLine]:
        """Yield the copies of gathered parameters from a flat buffer into their tensors, if the framework makes them."""
        held = sum(stage.held(expert) for stage in self.held)
        if held and unflattens(self.job):
            tensors = sum(stage.tensors[expert] for stage in self.held)
            own = Launches(parts=tensors * self.job.shards(expert))
            yield Task(COMPUTE, "optimizer", items=(put_back(self.job, held),), launches=own)
