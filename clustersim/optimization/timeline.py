"""Earliest times of passes: the longest path through a schedule, whose ranks execute their units one after the other.

A unit is one pass, or a backward pass with the forward pass that overlaps it. It waits for the messages that its passes receive.
1F1B on two ranks, two microbatches, passes of 1 and 2 seconds, messages of 0.1 seconds:

    rank 0   F0 0–1    F1 1–2        B0 4.2–6.2   B1 7.2–9.2
    rank 1   F0 1.1–2.1   B0 2.1–4.1   F1 4.1–5.1   B1 5.1–7.1
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.schedules import check as schedules
from clustersim.schedules.pipeline import together

FORWARD, BACKWARD, INPUTS, WEIGHTS, GATE = range(5)
"""Letters F, B, I and W, and the wait for the parameters of a stage."""


class Units(NamedTuple):
    """Units of all ranks, each after those that it waits for."""

    columns: Ints
    """Rank, kind, messages that the two passes wait for, and messages that they give (6, units)."""
    kinds: Ints
    """Letter and stage of the two passes of each kind; the second of a single pass is a gate (kinds, 2, 2)."""
    closing: Ints
    """Last unit with gradients of the weights of each stage (stages,)."""
    returning: Ints
    """Last unit with gradients of inputs on each rank (ranks,)."""
    gathered: tuple[tuple[int, ...], ...]
    """Stages of each rank in the order in which their parameters are gathered."""
    messages: int
    """Number of messages. Message 0 is none, the next ones are the gates of stages."""


class UnitSeconds(NamedTuple):
    """Seconds of the units of each kind (kinds,)."""

    first: Floats
    """Least seconds of the first pass."""
    second: Floats
    """Least seconds of the second pass, from its own message on."""
    whole: Floats
    """Least seconds of both passes together."""
    sent: Floats
    """Seconds of the messages that the passes send (2, kinds)."""
    held: Floats
    """Seconds for which the rank waits for its own messages."""
    pair: Mask
    """Whether there are two passes."""
    late: Mask
    """Whether the second pass ends last."""


@lru_cache(maxsize=256)
def units(schedule: str, ranks: int, microbatches: int, chunks: int, beside: bool) -> Units:
    """Return the units of a schedule. beside: whether each backward pass overlaps the forward pass right after it."""
    rows, on = schedules.load(schedule, ranks, microbatches, chunks), schedules.pipeline(schedule, ranks, chunks)
    stages = on.stages * on.copies
    sources = [
        [-1 if (one := step(stage)) is None else one for stage in range(stages)] for step in (on.before, on.after)
    ]
    unread = 1 + stages + 2 * stages * microbatches  # a message that no unit waits for
    kinds: dict[tuple[int, ...], int] = {}

    def message(stage: int, back: bool, microbatch: int) -> int:
        return 1 + stages + 2 * (stage * microbatches + microbatch) + back

    waiting: list[list[tuple[int, ...]]] = []
    for row in rows:
        own, opened = list[tuple[int, ...]](), set[int]()
        waiting.append(own)
        for unit in together(row, on.paired or beside):
            kind, awaited, given = [GATE, 0, GATE, 0], [0, 0], [unread, unread]  # of both passes
            for place, (stage, letter, microbatch) in enumerate(unit):
                kind[2 * place : 2 * place + 2] = "FBIW".index(letter), stage
                if letter == "F" and stage not in opened:
                    opened.add(stage)
                    own.append((kinds.setdefault((GATE, stage, GATE, 0), len(kinds)), 1 + stage, 0, unread, unread))
                if letter != "W":
                    back = letter != "F"
                    source = sources[back][stage]
                    awaited[place] = 0 if source < 0 else message(source, back, microbatch)
                    given[place] = message(stage, back, microbatch)
            own.append((kinds.setdefault(tuple(kind), len(kinds)), *awaited, *given))
    sent, places = bytearray([1] * (1 + stages) + [0] * (unread - stages)), [0] * ranks
    found: list[tuple[int, ...]] = []
    while any(place < len(own) for place, own in zip(places, waiting, strict=True)):
        for rank, own in enumerate(waiting):
            while places[rank] < len(own) and sent[own[places[rank]][1]] and sent[own[places[rank]][2]]:
                found.append((rank, *own[places[rank]]))
                sent[found[-1][4]] = sent[found[-1][5]] = 1
                places[rank] += 1
    columns = np.array(found, np.int32).T
    each = np.array(list(kinds), np.int32).reshape(-1, 2, 2)
    letter, stage = each[columns[1], 0].T
    closing, returning = np.zeros(stages, int), np.zeros(ranks, int)
    for last, of, letters in ((closing, stage, (BACKWARD, WEIGHTS)), (returning, columns[0], (BACKWARD, INPUTS))):
        some = np.flatnonzero(np.isin(letter, letters))
        last[of[some]] = some
    gathered = tuple(tuple(dict.fromkeys(one.stage for one in row[::-1] if one.letter == "F"))[::-1] for row in rows)
    return Units(columns, each, closing, returning, gathered, unread + 1)


def earliest(order: Units, seconds: UnitSeconds, gates: Floats, paired: bool) -> tuple[Floats, Floats, Floats]:
    """Return the begin and the end of the first pass of each unit, and the time at which each rank has ended all units.

    gates: time before which the first forward pass of each stage cannot start (stages,). paired: whether both passes of a unit
    start and end together.
    """
    first, second, whole, (sent, sent_second), held, pair, late = (part.tolist() for part in seconds)
    arrived, free = [0.0, *gates.tolist()], [0.0] * len(order.returning)
    arrived += [0.0] * (order.messages - len(arrived))
    begins, ends = list[float](), list[float]()
    for rank, kind, awaited, awaited_second, given, given_second in zip(*order.columns.tolist(), strict=True):
        begin = max(free[rank], arrived[awaited])
        end = own = begin + first[kind]
        if pair[kind]:
            start = max(begin, arrived[awaited_second])
            if paired:
                begin = start
            end = max(begin + whole[kind], start + second[kind])
            own = end if paired else own
            arrived[given_second] = (end if late[kind] else start + second[kind]) + sent_second[kind]
        arrived[given] = own + sent[kind]
        free[rank] = end + held[kind]
        begins.append(begin)
        ends.append(own)
    return np.array(begins), np.array(ends), np.array(free)
