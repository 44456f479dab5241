"""The templates of all ranks: what leaves the same in the graph of a step has one form, and its patterns are written once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, distinct_rows
from clustersim.engine.pattern import Numbers, Pattern
from clustersim.engine.program import COMPUTE, GroupCell, Handle, Launched, Message, Program, Template, TemplateKey


class TemplateForm(NamedTuple):
    """Templates that leave the same in a graph, whichever groups their ranks are in: one pattern serves all of them."""

    template: int
    """The first one of the form."""
    launched: Mapping[str, int]
    """How many tasks a pass launches, by stream …"""
    awaited: Mapping[str, int]
    """… and how many launched before it make a difference to who waits."""


class Templates:
    """All templates of all ranks, and their passes, rank after rank."""

    def __init__(self, programs: Sequence[Program], members: Mapping[GroupCell, int]) -> None:
        self.members = members
        self.rank: list[int] = []
        """By template."""
        self.where: list[TemplateKey] = []
        self.tasks: list[Template] = []
        self.messages: list[dict[Message, int]] = []
        """Those that it waits for or sends, in order of appearance."""
        self.form: list[int] = []
        """Which of `forms` it has."""
        self.forms: list[TemplateForm] = []
        self.numbers: dict[Hashable, int] = {}
        self.groups: list[dict[GroupCell, tuple[int, bool]]] = []
        """By rank, the groups that several start tasks in: which of them each is, and whether this is the first of its ranks."""
        self.group_numbers: dict[GroupCell, int] = {}
        orders: dict[Hashable, tuple[Ints, Ints]] = {}
        rows = [self.add(rank, program, orders) for rank, program in enumerate(programs)]
        count = np.array([len(own) for own, _ in rows])
        self.of_pass, self.microbatch = (np.concatenate(column) for column in zip(*rows, strict=True))
        self.form_of_pass = np.array(self.form)[self.of_pass]
        self.rank_of_pass = np.repeat(np.arange(len(programs)), count)
        self.first_pass = np.repeat(np.cumsum(count) - count, count)
        """By pass, the first one of its rank."""
        self.place = np.arange(len(self.of_pass)) - self.first_pass
        """By pass, how many of its rank came before."""

    def add(self, rank: int, program: Program, orders: dict[Hashable, tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
        """Add the templates of a rank; return the template and the microbatch of each of its passes.

        orders: those of other ranks, as `_order` has them.
        """
        own, first = dict[GroupCell, tuple[int, bool]](), len(self.rank)
        self.groups.append(own)
        for where, tasks in program.templates():
            for group in dict.fromkeys([task.group for task in tasks]):
                if group is not None and group not in own and self.members[group] > 1:
                    own[group] = len(own), group not in self.group_numbers
                    self.group_numbers.setdefault(group, len(self.group_numbers))
            self.rank.append(rank)
            self.where.append(where)
            self.tasks.append(tasks)
            self.form.append(self.formed(tasks, own))
        like = id(program.row), tuple(program.steps), tuple(program.special), id(program.pairing)  # as replicas are
        if like not in orders:
            orders[like] = _order(program)
        number, microbatch = orders[like]
        return first + number, microbatch

    def formed(self, tasks: Template, groups: Mapping[GroupCell, tuple[int, bool]]) -> int:
        """Return the form of the next template, which names groups and messages by their places among those of its rank."""
        messages: dict[Message, int] = {}
        key = tuple(
            [
                (
                    task.stream,
                    task.kind,
                    groups.get(task.group) if task.group else None,
                    tuple([_placed(handle, messages) for handle in task.waits]) if task.waits else None,
                    _placed(task.gives, messages) if task.gives else None,
                )
                for task in tasks
            ]
        )
        self.messages.append(messages)
        form = self.numbers.setdefault(key, len(self.forms))
        if form == len(self.forms):
            self.forms.append(TemplateForm(len(self.tasks) - 1, *_counted(tasks)))
        return form

    def before(self, each: Ints) -> Ints:
        """Return, by pass, the sums of the columns of `each` over the earlier passes of its rank."""
        total = np.cumsum(each, axis=0) - each
        found: Ints = total - total[self.first_pass]
        return found


def _placed(handle: Handle, messages: dict[Message, int]) -> Hashable:
    """Return a handle; in place of a message its place among those of its template."""
    return messages.setdefault(handle, len(messages)) if isinstance(handle, Message) else handle


def _counted(tasks: Template) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many tasks a pass launches by stream, and how many before it make a difference to who waits.

    That is: anything at all, as many tasks as somebody waits for the first ones of, and more than somebody leaves out who waits.
    """
    launched, awaited = dict[str, int](), dict[str, int]()
    for task in tasks:
        if task.stream != COMPUTE:
            launched[task.stream] = launched.get(task.stream, 0) + 1
        for handle in task.waits:
            if isinstance(handle, Launched):
                more = handle.but - launched.get(handle.stream, 0) + 1
                awaited[handle.stream] = max(awaited.get(handle.stream, 1), handle.first or 1, more)
    return launched, awaited


def _order(program: Program) -> tuple[Ints, Ints]:
    """Return which of its templates each pass of a rank is, in the order of `Program.templates`, and its microbatch."""
    steps = {key: 1 + place for place, key in enumerate(program.steps)}
    special = {action: 1 + len(steps) + place for place, action in enumerate(program.special)}
    turns = program.turns()
    row = [steps.get(key, -1) for key, _ in turns]
    if special:
        row = [special.get(action, one) for one, (_, action) in zip(row, turns, strict=True)]
    finish, microbatch = 1 + len(steps) + len(special), [action.microbatch for _, action in turns]
    return np.array([0, *row, finish]), np.array([-1, *microbatch, -1])


def patterns(templates: Templates) -> tuple[list[Pattern], Ints, Numbers]:
    """Return the patterns of all passes, the one of each pass, and the numbers of what is in them.

    Passes of a form have one pattern if their ranks have launched as much before, so far as that matters.
    """
    numbers, forms = Numbers(), templates.forms
    numbers.streams = {
        name: place for place, name in enumerate(dict.fromkeys(s for own in forms for s in own.launched))
    }
    names = list(numbers.streams)
    count = np.array([[own.launched.get(name, 0) for name in names] for own in forms], np.int64)
    awaited = np.array([[own.awaited.get(name, 1) for name in names] for own in forms], np.int64)
    most = np.ones((len(templates.groups), len(names)), np.int64)
    np.maximum.at(most, templates.rank, awaited[templates.form])
    states = np.minimum(templates.before(count[templates.form_of_pass]), most[templates.rank_of_pass])
    first, kind = distinct_rows(np.column_stack([templates.form_of_pass, states]))
    order = np.argsort(first)
    made = []
    for one in first[order].tolist():
        own = forms[templates.form_of_pass[one]].template
        so_far = dict(zip(names, states[one].tolist(), strict=True))
        groups, messages = templates.groups[templates.rank[own]], templates.messages[own]
        made.append(Pattern(so_far, groups, messages, numbers).write(templates.tasks[own]))
    return made, np.argsort(order)[kind], numbers


class Numbered(NamedTuple):
    """The tasks, slots and messages of templates, counted from the first of each; templates without a pass have none."""

    tasks: list[tuple[int, TemplateKey, int]]
    """As in `StepGraph`."""
    task: Ints
    """By template, its first task …"""
    slots: list[tuple[int, ...]]
    """The tasks of each slot: here the one that a rank starts alone."""
    slot: Ints
    """… its first slot …"""
    stage: Ints
    """For which stage each message is …"""
    message: Ints
    """… by the message of a template, which of them it is …"""
    first: Ints
    """… and by template, where its messages begin there."""


def numbered(templates: Templates, patterns: Sequence[Pattern], pattern: Ints) -> Numbered:
    """Number what is in templates, in order of appearance; pattern: that of each pass."""
    used, at = np.unique(templates.of_pass, return_index=True)
    order = np.argsort(at)
    used, alone = used[order], [patterns[one].alone for one in pattern[at[order]].tolist()]
    task, slot = (np.zeros(len(templates.tasks), np.int64) for _ in range(2))
    tasks, slots = list[tuple[int, TemplateKey, int]](), list[tuple[int, ...]]()
    for template, own in zip(used.tolist(), alone, strict=True):
        task[template], slot[template] = first, _ = len(tasks), len(slots)
        rank, where = templates.rank[template], templates.where[template]
        tasks += [(rank, where, place) for place in range(len(templates.tasks[template]))]
        slots += [(first + place,) for place in own]
    number: dict[Message, int] = {}
    message = [number.setdefault(one, len(number)) for own in templates.messages for one in own]
    begin = np.cumsum([0, *map(len, templates.messages)])[:-1]
    stage = np.array([one.stage for one in number], np.int64)
    return Numbered(tasks, task, slots, slot, stage, np.array(message, np.int64), begin)
