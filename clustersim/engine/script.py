"""What a pipeline rank does in a step, before anyone says on which links: kernels, collectives and messages by size.

A script depends on the job alone; `plan` binds it to the cells of a network. From the scripts of all pipeline ranks follow all
collectives of a job, with their sizes, on which the choice of an algorithm depends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, pairwise
from operator import itemgetter
from typing import NamedTuple, cast

from clustersim.engine.instruction import Compute, Drain, Instruction, Launch, Recv, Send, Wait
from clustersim.engine.microbatch_overlap import ALONE, Pairing, StepKey, launched_between, turns
from clustersim.engine.sharded import SHARED, ShardedPass
from clustersim.hardware.constants import BYTES
from clustersim.model.kernel import Kernel
from clustersim.model.moe import COUNTS
from clustersim.model.operator import Awaited, Collective, OperatorStep, Started, Steps
from clustersim.parallel.deepspeed import persistent
from clustersim.parallel.fsdp import block_by_block, by_buckets
from clustersim.parallel.host import reads_counts, reads_loss, unflattens
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import (
    bucket,
    copied,
    first_reads,
    last_ready,
    put_back,
    reduces_whole,
    update,
    weight_bytes,
)
from clustersim.parallel.stages import Stage
from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.pipeline import Pipeline

FORWARD, BACKWARD = "p2p-forward", "p2p-backward"
EXCHANGE = "ep"
"""The group over which rows travel to experts on other ranks and back."""

_PASS = itemgetter(Action._fields.index("letter"), Action._fields.index("stage"))

Mark = tuple[int, Instruction]
"""A position in a pass, and what happens there."""


class Script(NamedTuple):
    """The lines of one pipeline rank; as engine.program.Program, unbound."""

    begin: tuple[Instruction, ...]
    row: tuple[Action, ...]
    steps: Mapping[StepKey, tuple[Instruction, ...]]
    special: Mapping[Action, tuple[Instruction, ...]]
    finish: tuple[Instruction, ...]
    pairing: Pairing = ALONE

    def lines(self) -> Iterator[Instruction]:
        """Yield all lines of all parts."""
        return chain(self.begin, *self.steps.values(), *self.special.values(), self.finish)


def scripts(job: Job, stages: Sequence[Stage], schedule: Schedule) -> tuple[Script, ...]:
    """Return the script of every pipeline rank of a placed job."""
    return scripts_of(job, WrittenPasses.of(stages), tuple(map(RowEnds, schedule)))


def scripts_of(job: Job, written: WrittenPasses, rows: Sequence[RowEnds]) -> tuple[Script, ...]:
    """Return the same, given what is written of the job for schedules of other numbers of microbatches, and add to that."""
    pipeline = job.pipeline
    return tuple(_Writer(job, written, rank, ends, pipeline).script() for rank, ends in enumerate(rows))


def lines(scripts: Iterable[Script]) -> tuple[int, int]:
    """Return how many instructions scripts have once a step, and how many for each microbatch: what a step takes to be played."""
    once = each = 0
    for script in scripts:
        once += sum(map(len, (script.begin, *script.special.values(), script.finish)))
        each += sum(map(len, script.steps.values()))
    return once, each


def kernels(written: Sequence[Script]) -> list[Kernel]:
    """Return the distinct kernels of all scripts, in order of appearance."""
    lines = (line for s in written for part in (*s.steps.values(), s.finish) for line in part)
    passes = {
        id(line.items): line.items for line in lines if isinstance(line, Compute)
    }  # those of like stages are one object
    once = (line for s in written for part in s.special.values() for line in part if isinstance(line, Compute))
    passes |= {id(line.items): line.items for line in once if len(line.items) == 1}  # the rest are parts of the others
    items = chain.from_iterable(passes.values())
    return list(dict.fromkeys(item for item in once_each(items) if isinstance(item, Kernel)))


def once_each(items: Iterable[OperatorStep]) -> Collection[OperatorStep]:
    """Return items without those that stand there again, as layers repeat them: the same objects, as few as these are."""
    same = list(items)
    return dict(zip(map(id, same), same, strict=True)).values()


def collectives(written: Sequence[Script]) -> list[Collective]:
    """Return the distinct collectives and messages of all scripts, in order of appearance."""
    found: dict[Collective, None] = {}
    seen: dict[int, Steps] = {}  # those of like stages are one object
    for line in chain.from_iterable(script.lines() for script in written):
        if isinstance(line, Send | Launch):
            found[line.collective] = None
        elif isinstance(line, Compute) and id(line.items) not in seen:
            seen[id(line.items)] = line.items
            found |= dict.fromkeys(item for item in once_each(line.items) if isinstance(item, Collective))
    return list(found)


def _in_lock_step(item: Collective | Started | Awaited) -> bool:
    """Return whether a collective is part of a computation, which all ranks of its group begin together."""
    return isinstance(item, Collective) and item.group == "tp"


def _exchanges(items: Steps) -> list[int]:
    """Return the places of the exchanges with experts on other ranks."""
    return [i for i, item in enumerate(items) if isinstance(item, Collective) and item.group == EXCHANGE]


class WrittenPasses(NamedTuple):
    """What is written of a job, whatever its number of microbatches: what is like there is one object."""

    stages: tuple[Stage, ...]
    """All global ones."""
    passes: dict[tuple[object, ...], tuple[Instruction, ...]]
    """What passes compute, by letter, stage object and what else decides it; for the first of the like stages."""
    updates: dict[tuple[int, int], tuple[Steps, Steps]]
    """What follows the passes, by parameters and those of experts."""
    parts: dict[tuple[object, ...], tuple[Instruction, ...]]
    """The parts of scripts, by rank, name and pass."""

    @classmethod
    def of(cls, stages: Sequence[Stage]) -> WrittenPasses:
        """Return that of a job of which nothing is written."""
        return cls(tuple(stages), {}, {}, {})


@dataclass(frozen=True)
class RowEnds:
    """Where passes of a rank begin and end."""

    row: tuple[Action, ...]
    """What the rank does."""

    @cached_property
    def first(self) -> dict[tuple[str, int], Action]:
        """The first action of each letter and stage, in the reverse order of the last ones."""
        back = self.row[::-1]
        return dict(zip(map(_PASS, back), back, strict=True))

    @cached_property
    def last(self) -> dict[tuple[str, int], Action]:
        """The last action of each letter and stage, in the order of the first ones."""
        return dict(zip(map(_PASS, self.row), self.row, strict=True))

    @cached_property
    def complete(self) -> Collection[Action]:
        """The last pass of each stage that yields gradients of weights: with it they are complete."""
        found = [action for action in self.last.values() if action.letter in "BW"]
        several = len({action.stage for action in found}) < len(found)  # some passes are whole, others in halves
        row = (action for action in self.row if action.letter in "BW") if several else found
        return frozenset({action.stage: action for action in row}.values())


def _of_stage(line: Instruction, stage: int) -> Instruction:
    """Return a line of a pass for a stage like its own."""
    if isinstance(line, Compute):
        return Compute(line.kind, stage, *line[2:])
    return line if isinstance(line, Wait) else line._replace(stage=stage)


@dataclass(frozen=True, slots=True)
class _Writer:
    job: Job
    written: WrittenPasses
    rank: int
    ends: RowEnds
    pipeline: Pipeline

    @property
    def row(self) -> tuple[Action, ...]:
        return self.ends.row

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.written.stages

    def script(self) -> Script:
        split, sharded, several = self.job.parallelism, self.job.sharded, bool(self.kinds)
        steps: dict[StepKey, tuple[Instruction, ...]] = {}
        special: dict[Action, tuple[Instruction, ...]] = {}
        for key, action in self.ends.last.items():
            if sharded:
                steps[key] = self.part_of("sharded", action, self.sharded)
                special |= self.sharded_once(action)
                continue
            if split.reduce_every_microbatch and several and action.letter in "BW":
                steps[key] = self.part_of("reduced at once", action, self.reduced_at_once)
                continue
            steps[key] = self.part_of("whole", action, self.whole)
            if split.overlap.grad_reduce and several and action in self.ends.complete:
                special[action] = self.part_of("reduced", action, self.reduced)
        begin, first = self.gathered() if self.gathers else ((), {})
        pairing = Pairing(self.exchanges(), self.pipeline.paired)
        for turn, action in dict(turns(self.row, pairing)).items() if pairing else ():
            if len(turn) == 4:
                steps[turn] = self.once((turn,), partial(self.part, action, turn))
        finish = self.once(("finish",), lambda: chain(self.reduce_all(), self.end(), self.gather_all()))
        return Script(begin, self.row, steps, special | first, finish, pairing)

    def once(self, what: tuple[object, ...], write: Callable[[], Iterable[Instruction]]) -> tuple[Instruction, ...]:
        """Return a part of the script, written the first time."""
        key, known = (self.rank, *what), self.written.parts
        if key not in known:
            known[key] = tuple(write())
        return known[key]

    def part_of(
        self, name: str, action: Action, write: Callable[[Action], Iterable[Instruction]]
    ) -> tuple[Instruction, ...]:
        """Return a pass with what it takes and gives, written the first time for its letter and stage."""
        return self.once((name, *_PASS(action)), lambda: (*self.take(action), *write(action), *self.give(action)))

    def exchanges(self) -> dict[tuple[str, int], int]:
        """Return how many exchanges with experts on other ranks each pass has, if those of two run beside each other."""
        if self.job.parallelism.overlap.ep != "microbatch":
            return {}
        once = {(action.letter, action.stage): action for action in self.row}
        return {key: len(_exchanges(self.items(action))) for key, action in once.items()}

    def part(self, action: Action, key: tuple[str, int, int, int]) -> Iterator[Instruction]:
        """Yield a part of a pass: from where its last exchange is over up to where the next one begins, or what it hands on."""
        items, which, paired = self.items(action), key[2], self.pipeline.paired
        places = [-1, *(_exchanges(items) if self.exchanges() else ()), len(items)]
        if which == len(places) - 1:
            yield from self.give(action)
            return
        if which < 1 and (which < 0) == paired:
            yield from self.take(action)
        if which < 0:
            return
        begin, end = places[which], places[which + 1]
        if which:
            yield Wait(EXCHANGE, but=launched_between(key))
        if end > begin + 1:
            yield from self.computed(action, items[begin + 1 : end])
        if end < len(items):
            yield Launch(action.stage, cast(Collective, items[end]))
        elif not paired:
            yield from self.give(action)

    def items(self, action: Action) -> Steps:
        stage = self.stages[action.stage]
        by_letter = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
        items: Steps = getattr(stage, by_letter[action.letter])
        return items

    def whole(self, action: Action) -> Iterator[Instruction]:
        """Yield what a whole pass computes."""
        return self.like(action, (), lambda: self.computed(action, self.items(action)))

    def like(
        self, action: Action, what: tuple[object, ...], write: Callable[[], Iterable[Instruction]]
    ) -> Iterator[Instruction]:
        """Yield what a pass computes, written once for all like stages; what: decides it beside its letter and stage."""
        key, passes = (action.letter, id(self.stages[action.stage]), *what), self.written.passes
        if key not in passes:
            passes[key] = tuple(write())
        return (_of_stage(line, action.stage) for line in passes[key])

    def computed(self, action: Action, items: Steps) -> Iterator[Instruction]:
        """Yield items in lock-step with the tp group; collectives of experts, which join ranks of different ones, stand between.

        Where tp peers hold different experts, whose work may differ, only parts with tp collectives are in lock-step.
        """
        split = self.job.parallelism
        lock = "tp" if split.tp > 1 else None
        places = [i for i, item in enumerate(items) if not isinstance(item, Kernel) and not _in_lock_step(item)]
        for begin, end in pairwise([-1, *places, len(items)]):
            part = items[begin + 1 : end]
            alone = split.etp != split.tp and not any(isinstance(item, Collective) for item in part)
            if part or not items:
                yield Compute(action.letter, action.stage, part, None if alone else lock)
            if end < len(items):
                one = items[end]
                if not isinstance(one, Awaited):
                    yield Launch(action.stage, one.collective if isinstance(one, Started) else cast(Collective, one))
                if not isinstance(one, Started):
                    yield Wait(cast(Collective, one).group)
                if isinstance(one, Collective) and one.group == COUNTS and reads_counts(self.job):
                    yield Drain(action.stage)

    def marked(self, action: Action, items: Steps, marks: Sequence[Mark]) -> Iterator[Instruction]:
        """Yield items with the line of each mark at its position."""
        done = 0
        for position, line in sorted(marks, key=itemgetter(0)):
            if position > done:
                yield from self.computed(action, items[done:position])
                done = position
            yield line
        if done < len(items):
            yield from self.computed(action, items[done:])

    def take(self, action: Action) -> tuple[Instruction, ...]:
        """Return what waits for the result of another rank."""
        forward, stage = action.letter == "F", self.stages[action.stage]
        if self.beyond(action, not forward) is None:
            return ()
        received = Recv(action.stage, self.way(action))
        if self.job.message_parts == 1:
            return (received,)
        size = stage.input_bytes if forward else stage.output_bytes
        return received, Launch(action.stage, Collective("tp", "all_gather", size)), Wait("tp")

    def give(self, action: Action) -> tuple[Instruction, ...]:
        """Return what hands the result of a pass on."""
        forward, stage = action.letter == "F", self.stages[action.stage]
        if forward and self.pipeline.after(action.stage) is None and reads_loss(self.job):
            return (Drain(action.stage),)
        to = self.beyond(action, forward)
        if to is None:
            return ()
        size, wait = stage.output_bytes if forward else stage.input_bytes, not self.job.parallelism.overlap.p2p
        size /= self.job.message_parts
        return (Send(to, Collective(self.way(action), "send", size), wait),)

    def beyond(self, action: Action, onwards: bool) -> int | None:
        """Return the stage after that of a pass, or before, if there is one on another rank and the two exchange messages."""
        other = self.pipeline.after(action.stage) if onwards else self.pipeline.before(action.stage)
        alone = action.letter == "W" or other is None or self.pipeline.rank(other) == self.rank
        return None if alone else other

    def way(self, action: Action) -> str:
        """Return the family of the messages of a pass: those to the next pipeline rank, or to the one before."""
        return FORWARD if (action.letter == "F") != self.pipeline.back(action.stage) else BACKWARD

    def sharded(self, action: Action, once: bool = False) -> Iterator[Instruction]:
        """Yield a pass that gathers its parameters, and reduces their gradients behind it.

        once: it is the one of a step that does what the others leave out.
        """
        job, forward = self.job, action.letter == "F"
        gathers = (
            job.parallelism.reshard_after_forward or (forward and (once or job.parallelism.pp == 1))
        ) and action.letter != "W"
        reduces = action.letter in "BW" and (once or not job.parallelism.no_sync)
        yield from self.like(action, (gathers, reduces), lambda: self.sharded_lines(action, gathers, reduces))

    def sharded_lines(self, action: Action, gathers: bool, reduces: bool) -> Iterator[Instruction]:
        """Yield the same; gathers, reduces: whether the pass does."""
        job, stage = self.job, self.stages[action.stage]
        events = (
            by_buckets(job, stage, action.letter)
            if job.parallelism.zero3
            else block_by_block(job, stage, action.letter, gathers, reduces)
        )
        return ShardedPass(job, action, self.computed).lines(events, reduces)

    def sharded_once(self, action: Action) -> dict[Action, tuple[Instruction, ...]]:
        """Return the pass of a letter and stage that gathers or reduces for all microbatches, if there is one.

        action: the last one of that letter and stage.
        """
        split = self.job.parallelism
        if action.letter == "F" and not split.reshard_after_forward and split.pp > 1:
            one = self.ends.first[_PASS(action)]
        elif action in self.ends.complete and split.no_sync:
            one = action
        else:
            return {}
        return {one: self.part_of("sharded once", one, partial(self.sharded, once=True))}

    @property
    def kinds(self) -> list[tuple[str, bool]]:
        """As `copied` of the job."""
        return copied(self.job)

    @property
    def gathers(self) -> bool:
        """Whether the parameters of the last update are gathered during the first forward passes."""
        return bool(self.job.parallelism.zero in (1, 2) and self.job.parallelism.overlap.param_gather and self.kinds)

    def sharing(self, family: str) -> str:
        """Return the family that shares one copy of the optimizer: that of equal parameters, or one of several inside it."""
        return SHARED[family] if self.job.parallelism.optimizer_instances > 1 else family

    def reduce(self, family: str, stage: int, parameters: float) -> tuple[Instruction, ...]:
        """Return the reduction of gradients over the ranks that hold the same parameters: of shards, then over their copies."""
        size, sharing = parameters * BYTES[self.job.training.gradients], self.sharing(family)
        shards = self.job.shards(expert=family == "edp")
        whole = reduces_whole(self.job)
        scatter = Launch(stage, Collective(sharing, "all_reduce" if whole else "reduce_scatter", size))
        copies = Launch(stage, Collective(family, "all_reduce", size / shards), Wait(sharing) if shards > 1 else None)
        read = (Drain(stage),) * reads_loss(self.job)  # and the norm of each bucket
        return (read + (scatter,) * (shards > 1) + (copies,) * (shards == 1 or sharing != family)) if size else ()

    def gather(self, family: str, stage: int, parameters: float) -> tuple[Instruction, ...]:
        """Return the gathering of parameters by the ranks that share one copy of the optimizer."""
        size = parameters * weight_bytes(self.job) * (self.job.shards(expert=family == "edp") > 1)
        return (Launch(stage, Collective(self.sharing(family), "all_gather", size)),) if size else ()

    def reduced(self, action: Action) -> Iterator[Instruction]:
        """Yield the last backward pass of a stage in parts, and the reduction of each bucket as it fills."""
        return self.like(action, ("reduced",), lambda: self.reduced_lines(action))

    def reduced_lines(self, action: Action) -> Iterator[Instruction]:
        """Yield the same."""
        items, stage = self.items(action), self.stages[action.stage]
        marks: list[Mark] = []
        for family, expert in self.kinds:
            ready = stage.gradient_ready(expert) if action.letter == "B" else ((len(items), stage.held(expert)),)
            for one in last_ready(ready, bucket(self.job)):
                marks += [(one.position, line) for line in self.reduce(family, action.stage, one.parameters)]
        return self.marked(action, items, marks)

    def reduced_at_once(self, action: Action) -> Iterator[Instruction]:
        """Yield a backward pass and the reduction of its gradients, bucket by bucket under it or behind it, and wait for that."""
        if self.job.parallelism.overlap.grad_reduce:
            yield from self.reduced(action)
        else:
            yield from self.whole(action)
            for family, expert in self.kinds:
                yield from self.reduce(family, action.stage, self.stages[action.stage].held(expert))
        yield from (Wait(family) for family, _ in self.kinds)

    def gathered(self) -> tuple[tuple[Instruction, ...], dict[Action, tuple[Instruction, ...]]]:
        """Launch all gathers at once; the first forward pass of each stage waits for each bucket where it reads it."""
        starts: dict[str, list[Instruction]] = {family: [] for family, _ in self.kinds}
        special: dict[Action, tuple[Instruction, ...]] = {}
        firsts = [one for one in self.ends.first.values() if one.letter == "F"]
        for action in reversed(firsts):  # what is needed first, first
            stage = self.stages[action.stage]
            marks: list[Mark] = []
            for family, expert in self.kinds:
                for one in first_reads(stage.parameters_used(expert), bucket(self.job)):
                    starts[family] += self.gather(family, action.stage, one.parameters)
                    marks.append((one.position, Wait(self.sharing(family), len(starts[family]))))
            special[action] = (*self.take(action), *self.marked(action, stage.forward, marks), *self.give(action))
        return tuple(line for lines in starts.values() for line in lines), special

    @property
    def own(self) -> list[int]:
        """The stages of this rank in the order of the model: so all ranks that hold the same ones go through them alike."""
        return sorted(self.pipeline.own(self.rank), key=lambda stage: stage % self.pipeline.stages)

    def reduce_all(self) -> Iterator[Instruction]:
        """Yield the reduction of what is not reduced yet, then that of the tied embedding."""
        for family, expert in () if self.job.sharded else self.kinds:
            split = self.job.parallelism
            if not split.overlap.grad_reduce and not split.reduce_every_microbatch:
                for stage in self.own:
                    yield from self.reduce(family, stage, self.stages[stage].held(expert))
            yield Wait(family)
        shared = max(self.stages[stage].shared for stage in self.own)
        if shared:
            size = shared * BYTES[self.job.training.gradients] / (self.job.shards(False) if self.job.sharded else 1)
            yield Launch(-1, Collective("embedding", "all_reduce", size))
            yield Wait("embedding")

    def end(self) -> Iterator[Instruction]:
        """Yield the gradient norm, which all ranks of a replica with all experts share, and the optimizer."""
        parameters, experts = (
            sum(getattr(self.stages[s], kind) for s in self.own) for kind in ("parameters", "experts")
        )
        updates = self.written.updates
        if (parameters, experts) not in updates:
            updates[parameters, experts] = self.update(parameters, experts)
        norm, optimizer = updates[parameters, experts]
        if norm:
            yield Compute("norm", -1, norm, "model" if isinstance(norm[-1], Collective) else None)
        if optimizer:
            yield Compute("optimizer", -1, optimizer, None, sum(self.stages[s].tensors for s in self.own))

    def update(self, parameters: int, experts: int) -> tuple[Steps, Steps]:
        """Return the gradient norm and the optimizer of so many parameters, experts' among them."""
        found = update(self.job, parameters, experts)
        norm = next((i + 1 for i, kernel in enumerate(found) if kernel.op == "gradient_norm"), 0)
        everyone = norm and self.job.mesh.size > self.job.copies(expert=True)
        return (*found[:norm], *([Collective("model", "all_reduce", 4.0)] if everyone else [])), found[norm:]

    def gather_all(self) -> Iterator[Instruction]:
        """Yield the gathering of the updated parameters, unless the next forward passes do it."""
        if self.job.sharded:
            yield from self.gather_small()
        if not self.job.parallelism.zero or self.gathers or self.job.sharded:
            return
        for family, expert in self.kinds:
            for stage in self.own:
                yield from self.gather(family, stage, self.stages[stage].held(expert))
            yield Wait(self.sharing(family))
            yield from self.unflattened(expert)

    def gather_small(self) -> Iterator[Instruction]:
        """Yield the gathering of updated parameters that are sharded at the update alone."""
        setting = self.job.parallelism.zero3
        size = persistent(self.stages[0], setting) * weight_bytes(self.job) if setting else 0.0
        if size:
            yield Launch(0, Collective(SHARED["dp"], "all_gather", size))
            yield Wait(SHARED["dp"])

    def unflattened(self, expert: bool) -> Iterator[Instruction]:
        """Yield the copies of gathered parameters out of each rank's part into place, if the framework makes them."""
        held = sum(self.stages[stage].held(expert) for stage in self.own)
        if held and unflattens(self.job):
            tensors = sum(self.stages[stage].tensors_held(expert) for stage in self.own)
            yield Compute("optimizer", -1, (put_back(self.job, held),), None, parts=tensors * self.job.shards(expert))
