"""Earliest times of passes: the longest path through a schedule, whose ranks execute their units one after the other.

A unit is one pass, or a backward pass with the forward pass that overlaps it. It waits for the messages that its passes receive.
1F1B on two ranks, two microbatches, passes of 1 and 2 seconds, messages of 0.1 seconds:

    rank 0   F0 0–1    F1 1–2        B0 4.2–6.2   B1 7.2–9.2
    rank 1   F0 1.1–2.1   B0 2.1–4.1   F1 4.1–5.1   B1 5.1–7.1

Once a pipeline is full, its order repeats: more microbatches only insert periods, such as B2 F6 B3 F7 of 1F1B. Times of a period
are maxima of sums of those in the periods before it. So if all times of some periods are at least d seconds after those one
period earlier, this holds for each later period, and n periods that are left out take at least n · d seconds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.schedules import check as schedules
from clustersim.schedules.pipeline import action_units

FORWARD, BACKWARD, INPUTS, WEIGHTS, GATE = range(5)
"""Letters F, B, I and W, and the wait for the parameters of a stage."""
LOOKBACK = 2
"""Number of periods from which a period receives its messages, itself excluded."""


class Units(NamedTuple):
    """Units of all ranks, each after those that it waits for."""

    columns: Ints
    """Rank, kind, messages that the two passes wait for, and messages that they give (6, units)."""
    kinds: Ints
    """(letter, stage) of the two passes of each kind; the second of a single pass is a gate (kinds, 2, 2)."""
    closing: Ints
    """Last unit with gradients of the weights of each stage (stages,)."""
    returning: Ints
    """Last unit with gradients of inputs on each rank (ranks,)."""
    single: Ints
    """Number of forward passes of each rank that overlap no backward pass (ranks,)."""
    gathered: tuple[tuple[int, ...], ...]
    """Stages of each rank in the order in which their parameters are gathered."""
    messages: int
    """Number of messages. Message 0 is none, the next ones are the gates of stages."""
    recent: Ints
    """Units of the last `LOOKBACK` periods that repeat, and the same units one period earlier (2, units)."""


class UnitSeconds(NamedTuple):
    """Seconds of the units of each kind (kinds,)."""

    first: Floats
    """Least seconds of the first pass."""
    second: Floats
    """Least seconds of the second pass, from its own message on."""
    together: Floats
    """Least seconds of both passes together."""
    sent: Floats
    """Seconds of the messages that the passes send (2, kinds)."""
    held: Floats
    """Seconds for which the rank waits for its own messages."""
    pair: Mask
    """Whether there are two passes."""
    late: Mask
    """Whether the second pass ends last."""


def units(schedule: str, ranks: int, microbatches: int, chunks: int, overlapped: bool) -> tuple[Units, int]:
    """Return the units of a schedule without the periods that only repeat, and the number of these periods.

    overlapped: whether each backward pass overlaps the forward pass right after it.
    """
    on = schedules.pipeline(schedule, ranks, chunks)
    period = on.copies if on.folded or chunks == 1 else (*schedules.group(schedule), ranks)[0]
    least = schedules.peak_microbatches(schedule, ranks, microbatches, chunks) + 2 * (LOOKBACK + 1) * period
    periods = max(0, (microbatches - least) // period)
    return all_units(schedule, ranks, microbatches - periods * period, chunks, overlapped, periods and period), periods


@lru_cache(maxsize=512)
def all_units(schedule: str, ranks: int, microbatches: int, chunks: int, overlapped: bool, period: int = 0) -> Units:
    """Return all units of a schedule. period: number of microbatches after which the order repeats, 0 if it need not."""
    rows, on = schedules.load(schedule, ranks, microbatches, chunks), schedules.pipeline(schedule, ranks, chunks)
    stages = on.stages * on.copies
    steps = (on.previous_stage, on.next_stage)
    sources = [[-1 if (source := step(stage)) is None else source for stage in range(stages)] for step in steps]
    unread = 1 + stages + 2 * stages * microbatches  # a message that no unit waits for
    kinds: dict[tuple[int, ...], int] = {}

    def message(stage: int, back: bool, microbatch: int) -> int:
        """Return the number of the message of a stage's pass for a microbatch. back: of a backward pass."""
        return 1 + stages + 2 * (stage * microbatches + microbatch) + back

    waiting: list[list[tuple[int, ...]]] = []
    forwards: list[dict[int, list[int]]] = [{} for _ in rows]  # places of the forward passes of each stage
    for row, opened in zip(rows, forwards, strict=True):
        queue = list[tuple[int, ...]]()
        waiting.append(queue)
        for unit in action_units(row, on.paired or overlapped):
            kind, awaited, sends = [GATE, 0, GATE, 0], [0, 0], [unread, unread]  # of both passes
            for place, (stage, letter, microbatch) in enumerate(unit):
                kind[2 * place : 2 * place + 2] = "FBIW".index(letter), stage
                if letter == "F" and stage not in opened:
                    queue.append((kinds.setdefault((GATE, stage, GATE, 0), len(kinds)), 1 + stage, 0, unread, unread))
                if letter == "F":
                    opened.setdefault(stage, []).append(len(queue))
                if letter != "W":
                    back = letter != "F"
                    source = sources[back][stage]
                    awaited[place] = 0 if source < 0 else message(source, back, microbatch)
                    sends[place] = message(stage, back, microbatch)
            queue.append((kinds.setdefault(tuple(kind), len(kinds)), *awaited, *sends))
    sent, places = bytearray([1] * (1 + stages) + [0] * (unread - stages)), [0] * ranks
    placed, numbers = list[tuple[int, ...]](), [list[int]() for _ in rows]
    while any(place < len(queue) for place, queue in zip(places, waiting, strict=True)):
        for rank, queue in enumerate(waiting):
            while places[rank] < len(queue) and sent[queue[places[rank]][1]] and sent[queue[places[rank]][2]]:
                numbers[rank].append(len(placed))
                placed.append((rank, *queue[places[rank]]))
                sent[placed[-1][4]] = sent[placed[-1][5]] = 1
                places[rank] += 1
    columns = np.array(placed, np.int32).T
    each = np.array(list(kinds), np.int32).reshape(-1, 2, 2)
    letter, stage = each[columns[1], 0].T
    closing, returning = np.zeros(stages, int), np.zeros(ranks, int)
    for last, owners, letters in ((closing, stage, (BACKWARD, WEIGHTS)), (returning, columns[0], (BACKWARD, INPUTS))):
        some = np.flatnonzero(np.isin(letter, letters))
        last[owners[some]] = some
    gathered = tuple(tuple(dict.fromkeys(item.stage for item in row[::-1] if item.letter == "F"))[::-1] for row in rows)
    recent = np.zeros((0, 2), int)
    for number, opened in zip(numbers, forwards, strict=True) if period else ():
        first = min(opened.values(), key=lambda indices: indices[-1])  # the first stage that has no more forward passes
        end, begin = first[-1] + 1, first[-1 - period // on.copies] + 1
        some = np.arange(end - LOOKBACK * (end - begin), end)
        recent = np.concatenate([recent, np.array(number)[np.stack([some, some - (end - begin)], axis=1)]])
    single = np.bincount(columns[0, letter == FORWARD], minlength=ranks)  # of a pair, the backward pass is the first
    return Units(columns, each, closing, returning, single, gathered, unread + 1, recent.T)


def earliest(
    order: Units, seconds: UnitSeconds, gates: Floats, paired: bool, periods: int = 0
) -> tuple[Floats, Floats, Floats]:
    """Return the begin and the end of each unit's first pass (units,), and when each rank has ended all units (ranks,), in s.

    gates: time before which the first forward pass of each stage cannot start (stages,). paired: whether both passes of a unit
    start and end together. periods: number of periods that are left out, before the units whose times are of interest.
    """
    first, second, together, (sent, sent_second), held, pair, late = (part.tolist() for part in seconds)
    arrived, free = [0.0, *gates.tolist()], [0.0] * len(order.returning)
    arrived += [0.0] * (order.messages - len(arrived))
    begins, starts, ends = list[float](), list[float](), list[float]()
    for rank, kind, awaited, awaited_second, sent_first, sent_last in zip(*order.columns.tolist(), strict=True):
        begin = max(free[rank], arrived[awaited])
        end = first_end = begin + first[kind]
        start = max(begin, arrived[awaited_second])
        if pair[kind]:
            if paired:
                begin = start
            end = max(begin + together[kind], start + second[kind])
            first_end = end if paired else first_end
            arrived[sent_last] = (end if late[kind] else start + second[kind]) + sent_second[kind]
        arrived[sent_first] = first_end + sent[kind]
        free[rank] = end + held[kind]
        begins.append(begin)
        starts.append(start)
        ends.append(first_end)
    last, before = order.recent
    times = np.array([begins, starts])
    more = periods * float((times[:, last] - times[:, before]).min()) if periods else 0.0
    return times[0] + more, np.array(ends) + more, np.array(free) + more
