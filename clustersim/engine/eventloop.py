"""The events of a step whose tasks slow each other, as one compiled loop.

Nodes begin when their predecessors are over. One that holds no link ends when its own time has passed; one that holds some
sleeps until it would end alone. When another one begins with which it could overfill a link, both wake: each is found in the
half segment that it has reached and goes on event by event, its bytes at max-min fair rates, until its links fit again. The
times are those that SimPy finds with `engine.fabric`, for the same reasons. numba compiles what is here when it is first
called, and keeps that for later processes: it compiles anew when this file has changed, and looks at no other, so that all that
is compiled stands here with its constants.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.engine.compiled import compiled
from clustersim.engine.world import Records, Sums, World

Heap = list[tuple[float, int, int, int, int, int]]
"""Events to come: time, turn, number, call, holder, and the holder's version for which it holds."""
Log = list[tuple[int, int, float]]
"""Half segments that ended: holder, number, time."""

OVER, AWAKE, BEGIN, SOLVE = range(4)
"""The turns of events of one time: what ends makes room for what begins, and rates are solved when all has changed."""
END, LANDED, MOVE, LAND = range(4)
"""What an awake holder waits for."""
NUMBER, DIRTY, STAMP, SOLVES, EVENTS = range(5)
"""Counters: of all events, whether rates are to be solved, of tries and solutions, and of events of tasks that met."""
FITS = 1 + 1e-9
SAME = 1e-12
"""A relative change of a rate that is none."""
NEARLY_FULL = 0.98
NEARLY = 1e-9
"""By so much a difference of sums may be off."""


@compiled
def push(heap: Heap, counts: Ints, time: float, turn: int, call: int, holder: int, version: int) -> None:
    """Let something happen to a holder."""
    counts[NUMBER] += 1
    heappush(heap, (time, turn, counts[NUMBER], call, holder, version + 0))  # 64 bits, as all of an event


@compiled
def over(segment: Any, moving: float) -> float:
    """Return the seconds of a flow that moves so long, with what is computed beside it."""
    longer: float = max(moving, segment.beside + segment.taken * moving)
    return longer if segment.beside else moving


@compiled
def alone(w: World, one: Any, index: int, begun: float) -> float:
    """Return when a half segment of a holder ends that begun at a time, if nothing slows it from there on."""
    segment = w.segments[one.segment + index // 2]
    end = begun
    if one.on_time:
        end = one.started + (segment.over if index % 2 else segment.computed)
    elif index % 2 == 0:
        end = max(begun + segment.compute, one.started + segment.launched)
    elif w.numbers[one.flow + index // 2] >= 0:
        end += over(segment, w.flows[w.numbers[one.flow + index // 2]].idle)
    return end


@compiled
def reach(w: World, log: Log, holder: int, time: float) -> None:
    """Bring a sleeper to the half segment in which it is at a time, at most its last one."""
    one = w.holders[holder]
    last = 2 * (one.segment_end - one.segment) - 1
    while one.index < last:
        end = alone(w, one, one.index, one.begun)
        if end > time:
            return
        log.append((holder, one.index, end))
        one.index += 1
        one.begun = end


@compiled
def wake(w: World, heap: Heap, log: Log, changed: list[int], holder: int, now: float) -> None:
    """Let a holder go on event by event from where it is by now."""
    one = w.holders[holder]
    one.version += 1
    reach(w, log, holder, now)
    if one.index:
        before = w.segments[one.segment + (one.index - 1) // 2]
        one.on_time = one.begun == one.started + (before.computed if one.index % 2 else before.over)
    enter(w, heap, log, changed, holder, now)


@compiled
def enter(w: World, heap: Heap, log: Log, changed: list[int], holder: int, now: float) -> None:
    """Go on with a half segment that has begun before now or just now."""
    one = w.holders[holder]
    while True:
        if one.index % 2:
            transfer(w, heap, changed, holder, now)
            return
        time = alone(w, one, one.index, one.begun)
        if time > now:
            push(heap, w.counts, time, AWAKE, END, holder, one.version)
            return
        if not goes_on(w, heap, log, holder, now):
            return


@compiled
def transfer(w: World, heap: Heap, changed: list[int], holder: int, now: float) -> None:
    """Go on with a flow, or with what is computed beside it."""
    one = w.holders[holder]
    number, begun = w.numbers[one.flow + one.index // 2], one.begun
    if number < 0 or not w.flows[number].size:
        time = begun + (w.flows[number].idle if number >= 0 else 0.0)
        if one.on_time:
            time = alone(w, one, one.index, begun)
        push(heap, w.counts, max(time, now), AWAKE, LANDED, holder, one.version)
        return
    flow = w.flows[number]
    if now >= begun + flow.idle:  # what is computed beside it takes longer
        push(heap, w.counts, max(alone(w, one, one.index, begun), now), AWAKE, END, holder, one.version)
    elif now >= begun + flow.latency:
        move(w, heap, changed, holder, now)
    else:
        push(heap, w.counts, begun + flow.latency, AWAKE, MOVE, holder, one.version)


@compiled
def goes_on(w: World, heap: Heap, log: Log, holder: int, now: float) -> bool:
    """End a half segment. Return whether the next one is to be gone through awake; else the holder sleeps to its end."""
    one = w.holders[holder]
    log.append((holder, one.index, now))
    one.index += 1
    one.begun = now
    halves = 2 * (one.segment_end - one.segment)
    if one.index < halves:
        for row in range(one.row, one.row_end):
            if w.links[w.rows[row].link].reserved > FITS:
                return True
    end = now
    for index in range(max(one.index, halves - 1) if one.on_time else one.index, halves):
        end = alone(w, one, index, end)
    one.awake = 0
    push(heap, w.counts, end, OVER, END, holder, one.version)
    return False


@compiled
def move(w: World, heap: Heap, changed: list[int], holder: int, now: float) -> None:
    """Let the bytes of a flow move, its latency being over."""
    one = w.holders[holder]
    number = w.numbers[one.flow + one.index // 2]
    flow = w.flows[number]
    lands = one.begun + flow.idle
    if one.on_time and not w.segments[one.segment + one.index // 2].beside:
        lands = alone(w, one, one.index, one.begun)
    if flow.load == flow.load_end:
        push(heap, w.counts, max(lands, now), AWAKE, LANDED, holder, one.version)
        return
    one.moving, one.rate, one.tried, one.lands, one.since = number, 0.0, 0.0, lands, now
    one.left = flow.size - max(now - one.begun - flow.latency, 0.0) * flow.bound
    for load in range(flow.load, flow.load_end):
        place = one.row + w.loads[load].place
        row = w.rows[place]
        link = w.links[row.link]
        row.at = link.first + link.crossing
        link.crossing += 1
        crossing = w.crossings[row.at]
        crossing.row, crossing.holder, crossing.weight = place, holder, w.loads[load].weight
    changed.append(-1 - holder)
    touch(w, heap, now)


@compiled
def touch(w: World, heap: Heap, now: float) -> None:
    """Solve once, after all that happens at this time."""
    if not w.counts[DIRTY]:
        w.counts[DIRTY] = 1
        push(heap, w.counts, now, SOLVE, 0, 0, 0)


@compiled
def land(w: World, full: Mask, heap: Heap, changed: list[int], holder: int, now: float) -> None:
    """Take away a flow that is over."""
    one = w.holders[holder]
    flow = w.flows[one.moving]
    for load in range(flow.load, flow.load_end):
        row = w.rows[one.row + w.loads[load].place]
        link = w.links[row.link]
        link.crossing -= 1
        crossing, last = w.crossings[row.at], w.crossings[link.first + link.crossing]
        crossing.row, crossing.holder, crossing.weight = last.row, last.holder, last.weight
        w.rows[last.row].at = row.at
        if full[row.link]:
            changed.append(row.link)
        link.used = link.used - w.loads[load].weight * one.tried if link.crossing else 0.0
    one.moving = -1
    if one.lands == np.inf:
        one.on_time = 0
    touch(w, heap, now)


@compiled
def solve(w: World, sums: Sums, heap: Heap, changed: list[int], now: float) -> None:
    """Bring the rates up to date, on the links that are known to be full and on those that this would overfill.

    Of thousands of links a hundred are full, and a solution that keeps within a limit stays when that limit is added.
    """
    holders, links, flows, counts = w.holders, w.links, w.flows, w.counts
    counts[DIRTY] = 0
    counts[SOLVES] += 1
    over = True
    while over:
        few, many = joined(w, sums, changed)
        rates = fair(holders, links, w.crossings, flows, sums, few, many)
        over = overfilled(w, sums, changed, few, rates)
    changed.clear()
    for place in range(few):
        settle(holders, flows, heap, counts, sums.found[place], now)
    for place in range(many):
        link = links[sums.wide[place]]
        sums.full[sums.wide[place]] = link.used > NEARLY_FULL * link.limit


@compiled
def overfilled(w: World, sums: Sums, changed: list[int], few: int, rates: Floats) -> bool:
    """Try rates, and return whether they overfill links that were not known to be full; these are changed too, then."""
    holders, links, loads, full = w.holders, w.links, w.loads, sums.full
    for place in range(few):
        one = holders[sums.found[place]]
        if rates[place] == one.tried:
            continue
        for load in range(w.flows[one.moving].load, w.flows[one.moving].load_end):
            links[loads[load].link].used += loads[load].weight * (rates[place] - one.tried)
    before = len(changed)
    for place in range(few):
        one = holders[sums.found[place]]
        if rates[place] != one.tried:
            for load in range(w.flows[one.moving].load, w.flows[one.moving].load_end):
                link = links[loads[load].link]
                if link.used > link.limit * (1 + SAME) and not full[loads[load].link]:
                    full[loads[load].link] = True
                    changed.append(loads[load].link)
            one.tried = rates[place]
    return len(changed) > before


@compiled
def joined(w: World, sums: Sums, changed: list[int]) -> tuple[int, int]:
    """Find the flows that chains of full links join to changes, and these links. Return how many both are.

    changed: links, and holders as negative numbers.
    """
    holders, links, crossings, flows, loads = w.holders, w.links, w.crossings, w.flows, w.loads
    full, seen, wide, found, start, of, weight = sums
    w.counts[STAMP] += 1
    stamp = w.counts[STAMP]
    many = few = size = done = gone = 0
    for one in changed:
        if one < 0 and holders[-1 - one].moving >= 0:
            holders[-1 - one].seen, found[few] = stamp, -1 - one
            few += 1
        elif one >= 0 and (seen[one] >= many or wide[seen[one]] != one):
            seen[one], wide[many] = many, one
            many += 1
    while done < many or gone < few:
        while done < many:
            link = links[wide[done]]
            done += 1
            for place in range(link.first, link.first + link.crossing):
                holder = crossings[place].holder
                if holders[holder].seen != stamp:
                    holders[holder].seen, found[few] = stamp, holder
                    few += 1
        if gone == few:
            break
        other = holders[found[gone]]
        other.place, start[gone] = gone, size
        gone += 1
        flow = flows[other.moving]
        for load in range(flow.load, flow.load_end):
            number = loads[load].link
            if full[number]:
                place = seen[number]
                if place >= many or wide[place] != number:
                    place = seen[number] = many
                    wide[many] = number
                    many += 1
                of[size], weight[size] = place, loads[load].weight
                size += 1
    start[gone] = size
    return few, many


@compiled
def settle(holders: Records, flows: Records, heap: Heap, counts: Ints, holder: int, now: float) -> None:
    """Give a flow its new rate from now on; what hardly changes stays."""
    one = holders[holder]
    rate = one.tried
    if abs(rate - one.rate) <= SAME * one.rate:
        return
    one.left -= one.rate * (now - one.since)
    one.rate, one.since = rate, now
    if rate < flows[one.moving].bound:
        one.lands = np.inf
    time = one.lands if one.lands < np.inf else now + max(one.left, 0.0) / rate
    one.version += 1
    push(heap, counts, max(time, now), AWAKE, LAND, holder, one.version)


@compiled
def stopping(holders: Records, link: Any, crossings: Records, rates: Floats, stop: list[int]) -> float:
    """Find the flows that still rise on a link; return the sum of their weights."""
    rising = 0.0
    for place in range(link.first, link.first + link.crossing):
        flow = holders[crossings[place].holder].place
        if rates[flow] < 0.0:
            rising += crossings[place].weight
            stop.append(flow)
    return rising


@compiled
def fair(
    holders: Records, links: Records, crossings: Records, flows: Records, sums: Sums, few: int, many: int
) -> Floats:
    """Return the max-min fair rates of the first few flows on the first many links, which no others cross.

    All rates rise together; a flow stops at its bound or when one of its links is full (Bertsekas & Gallager, Data
    Networks, 6.5.2).
    """
    _, _, wide, found, start, of, weight = sums
    free, total, left = np.empty(many), np.zeros(many), np.zeros(many, np.int64)
    rates = np.full(few, -1.0)
    for load in range(start[few]):
        total[of[load]] += weight[load]
        left[of[load]] += 1
    stops = [(flows[holders[found[place]].moving].bound, -1 - place) for place in range(few)]
    for place in range(many):
        free[place] = links[wide[place]].limit
        if left[place]:
            stops.append((free[place] / total[place], place))
    heapify(stops)  # when flows stop at their bounds and links are full, the first one first
    stop = [0 for _ in range(0)]
    while stops:
        level, place = heappop(stops)
        if place < 0:
            if rates[-1 - place] < 0.0:
                stop.append(-1 - place)
        elif left[place] and free[place] > level * total[place] * (1 + NEARLY):  # some have stopped since it was found
            heappush(stops, (free[place] / total[place] * (1 - NEARLY / 2), place))
        elif left[place]:
            share = free[place] / stopping(holders, links[wide[place]], crossings, rates, stop)
            if share > level:
                heappush(stops, (share, place))
                stop.clear()
        for flow in stop:
            rates[flow] = level
            for load in range(start[flow], start[flow + 1]):
                free[of[load]] = max(free[of[load]] - weight[load] * level, 0.0)
                total[of[load]] -= weight[load]
                left[of[load]] -= 1
        stop.clear()
    return rates


@compiled
def hold(holders: Records, rows: Records, links: Records, holder: int) -> bool:
    """Hold links; return whether one of them could be overfilled."""
    one = holders[holder]
    tight = False
    for place in range(one.row, one.row_end):
        row = rows[place]
        link = links[row.link]
        row.next_held, row.last_held = link.held, -1
        if link.held >= 0:
            rows[link.held].last_held = place
        link.held = place
        link.reserved += row.share
        tight |= link.reserved > FITS
    return tight


@compiled
def give(holders: Records, rows: Records, links: Records, holder: int) -> None:
    """Hold no links any more."""
    one = holders[holder]
    for place in range(one.row, one.row_end):
        row = rows[place]
        link = links[row.link]
        if row.last_held >= 0:
            rows[row.last_held].next_held = row.next_held
        else:
            link.held = row.next_held
        if row.next_held >= 0:
            rows[row.next_held].last_held = row.last_held
        link.reserved = link.reserved - row.share if link.held >= 0 else 0.0


@compiled
def asleep(holders: Records, rows: Records, links: Records, holder: int) -> list[int]:
    """Return who sleeps on links of a holder that could be overfilled; from now on they are awake."""
    found = [0 for _ in range(0)]
    for place in range(holders[holder].row, holders[holder].row_end):
        if links[rows[place].link].reserved > FITS:
            row = links[rows[place].link].held
            while row >= 0:
                if not holders[rows[row].holder].awake:
                    holders[rows[row].holder].awake = 1
                    found.append(rows[row].holder)
                row = rows[row].next_held
    found.sort()
    return found


@compiled
def follow(nodes: Records, after: Ints, holders: Records, heap: Heap, ended: list[int]) -> None:
    """Go on from the ends of nodes: what holds no links and waits for nothing else ends ahead of time."""
    while ended:
        one = nodes[ended.pop()]
        for place in range(one.after, one.after_end):
            number = after[place]
            node = nodes[number]
            node.missing -= 1
            if node.missing == 0:
                time = max(nodes[node.a].end, nodes[node.b].end)
                if node.holder < 0:
                    node.end = time + node.seconds
                    ended.append(number)
                else:
                    heappush(heap, (time, BEGIN, number, 0, node.holder + 0, 0))


@compiled
def awake(w: World, full: Mask, heap: Heap, log: Log, changed: list[int], holder: int, call: int, now: float) -> None:
    """Do what an awake holder waited for."""
    if call == MOVE:
        move(w, heap, changed, holder, now)
        return
    if call == LAND:
        land(w, full, heap, changed, holder, now)
    one = w.holders[holder]
    segment = w.segments[one.segment + one.index // 2]
    if call != END and segment.beside:
        time = alone(w, one, one.index, one.begun) if one.on_time else one.begun + over(segment, now - one.begun)
        push(heap, w.counts, max(time, now), AWAKE, END, holder, one.version)
    elif goes_on(w, heap, log, holder, now):
        enter(w, heap, log, changed, holder, now)


@compiled
def play(w: World, sums: Sums) -> tuple[Ints, Ints, Floats]:
    """Go through all events from the end of node 0. Return the columns of the log."""
    heap = [(0.0, 0, 0, 0, 0, 0) for _ in range(0)]
    log = [(0, 0, 0.0) for _ in range(0)]
    changed, ended = [0 for _ in range(0)], [0]
    full = sums.full
    nodes, after, holders, rows, links, counts = w.nodes, w.after, w.holders, w.rows, w.links, w.counts
    follow(nodes, after, holders, heap, ended)
    while heap:
        now, turn, _, call, holder, version = heappop(heap)
        if turn == SOLVE:
            counts[EVENTS] += 1
            solve(w, sums, heap, changed, now)
            continue
        one = holders[holder]
        if turn == BEGIN:
            one.started = one.begun = now
            if hold(holders, rows, links, holder):
                for other in asleep(holders, rows, links, holder):
                    wake(w, heap, log, changed, other, now)
            else:
                push(heap, counts, now + nodes[one.node].seconds, OVER, END, holder, one.version)
        elif version != one.version:
            continue
        elif turn == OVER:
            if one.index:
                reach(w, log, holder, np.inf)
                if one.index < 2 * (one.segment_end - one.segment):
                    log.append((holder, one.index, now))
            give(holders, rows, links, holder)
            nodes[one.node].end = now
            ended.append(one.node)
            follow(nodes, after, holders, heap, ended)
        else:
            counts[EVENTS] += 1
            awake(w, full, heap, log, changed, holder, call, now)
    owner, half, times = np.empty(len(log), np.int64), np.empty(len(log), np.int64), np.empty(len(log))
    for place in range(len(log)):
        owner[place], half[place], times[place] = log[place]
    return owner, half, times
