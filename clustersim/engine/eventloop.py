"""The events of a step whose tasks slow each other, as one compiled loop.

Nodes begin when their predecessors are over. One that holds no link ends when its own time has passed; one that holds some
sleeps until it would end alone. When another one begins with which it could overfill a link, both wake: each is found in the
half segment that it has reached and goes on event by event, its bytes at max-min fair rates, until its links fit again. The
times are those that SimPy finds with `engine.fabric`, for the same reasons.

numba compiles what is here when it is first called, and keeps that for later processes: it compiles anew when this file has
changed, and looks at no other, so that all that is compiled stands here with its constants. Three things make it fast, each by
a factor: nothing is allocated in the loop, nobody counts who uses its arrays (`borrowed`), and most functions are a part of
those that call them, as handing over a state is work. Whole numbers have 32 bits in records and 64 elsewhere; literal ones as
arguments would be a function of their own each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba.core.cgutils import get_null_value
from numba.extending import intrinsic

from clustersim.arrays import Ints
from clustersim.engine.compiled import called, compiled, inlined
from clustersim.engine.loop_state import LoopState, Places, Records

BEGIN, OVER, END, LANDED, MOVE, LAND, FIRST, LAST = range(8)
"""What a task waits for: to begin; asleep, to be over; awake, for the end of a half segment and what is in it; for a step to
begin, and to end."""
NUMBER, STAMP, SOLVES, EVENTS, WAITING, MOVED, CHANGED, WIDE, STOPS, DIRTY = range(10)
"""Counters: of all events, of tries and solutions, of events of tasks that met; how many there are to come; how many flows and
links have changed since rates were solved, how many links and stops a try has, and whether rates are to be solved."""
LATER = 1 << 56
"""More than all events: of one time, what ends makes room for what begins, and rates are solved when all has changed."""
FITS = 1 + 1e-9
NEARLY = 1e-9
"""By so much a difference of sums may be off."""
SAME = 1e-12
"""A relative change of a rate that is none."""
NEARLY_FULL = 0.98
MOST_TAKEN, LEAST_TAKEN = 1 - 1 / 128, 1e-14
"""As in engine.slowing: the most of a rank that may be taken, and what is none."""


@inlined
def rise(queue: Records, tasks: Records, counts: Ints, place: int, time: float, order: int, task: int) -> None:
    """Let an event stand in the queue where its place is free, or nearer to the front."""
    while place > 0:
        front = queue[(place - 1) // 2]
        if front.time < time or (front.time == time and front.order < order):
            break
        here = queue[place]
        here.time, here.order, here.task = front.time, front.order, front.task
        tasks[front.task].waits = place
        place = (place - 1) // 2
    here = queue[place]
    here.time, here.order, here.task = time, order, task
    tasks[task].waits = place


@inlined
def sink(queue: Records, tasks: Records, counts: Ints, place: int, time: float, order: int, task: int) -> None:
    """Let an event stand in the queue where its place is free, or farther from the front."""
    count = counts[WAITING]
    while 2 * place + 1 < count:
        child = 2 * place + 1
        back = queue[child]
        if child + 1 < count:
            other = queue[child + 1]
            if other.time < back.time or (other.time == back.time and other.order < back.order):
                child += 1
                back = other
        if time < back.time or (time == back.time and order < back.order):
            break
        here = queue[place]
        here.time, here.order, here.task = back.time, back.order, back.task
        tasks[back.task].waits = place
        place = child
    here = queue[place]
    here.time, here.order, here.task = time, order, task
    tasks[task].waits = place


@inlined
def moved(queue: Records, tasks: Records, counts: Ints, place: int, time: float, order: int, task: int) -> None:
    """Let an event stand in the queue where a place in its midst is free."""
    there = queue[place]
    if time < there.time or (time == there.time and order < there.order):
        rise(queue, tasks, counts, place, time, order, task)
    else:
        sink(queue, tasks, counts, place, time, order, task)


@called
def wait(queue: Records, tasks: Records, counts: Ints, task: int, time: float, order: int) -> None:
    """Let a task wait for an event, and for no other state."""
    place = tasks[task].waits
    if place >= 0:
        moved(queue, tasks, counts, place, time, order, task)
    else:
        counts[WAITING] += 1
        rise(queue, tasks, counts, counts[WAITING] - 1, time, order, task)


@inlined
def push(w: LoopState, task: int, time: float) -> None:
    """Let a task wait for what it says it waits for; of one time, what is pushed first comes first, but ends before all."""
    w.counts[NUMBER] += 1
    # what ends gives its links free before what begins at that time takes them: else they would seem to meet
    later = 0 if w.tasks[task].call == OVER else LATER
    wait(w.queue, w.tasks, w.counts, task, time, later + w.counts[NUMBER])


@called
def take(queue: Records, tasks: Records, counts: Ints, task: int) -> None:
    """Let a task wait for nothing any more."""
    state = tasks[task]
    place = state.waits
    state.waits = -1
    counts[WAITING] -= 1
    last = queue[counts[WAITING]]
    if last.task != task:
        moved(queue, tasks, counts, place, last.time, last.order, last.task)


@inlined
def over(segment: Any, moving: float) -> float:
    """Return the seconds of a flow that moves so long, with what is computed beside it."""
    longer: float = max(moving, segment.beside + segment.taken * moving)
    return longer if segment.beside else moving


@inlined
def alone(w: LoopState, state: Any, index: int, begun: float) -> float:
    """Return when a half segment of a task ends that begun at a time, if nothing slows it from there on."""
    segment = w.segments[state.segment + index // 2]
    end = begun
    if state.on_time:
        end = state.started + (segment.over if index % 2 else segment.computed)
    elif index % 2 == 0:
        end = max(begun + segment.compute, state.started + segment.launched)
    elif w.numbers[state.flow + index // 2] >= 0:
        end += over(segment, w.flows[w.numbers[state.flow + index // 2]].idle)
    return end


@inlined
def reach(w: LoopState, task: int, time: float) -> None:
    """Bring a sleeper to the half segment in which it is at a time, at most its last state."""
    state = w.tasks[task]
    # in the last one it waits for its end anyway, however sums are rounded
    last = 2 * (state.segment_end - state.segment) - 1
    while state.index < last:
        end = alone(w, state, state.index, state.begun)
        if end > time:
            return
        w.ends[state.half + state.index] = end
        state.index += 1
        state.begun = end


@inlined
def wake(w: LoopState, task: int, now: float) -> None:
    """Let a task go on event by event from where it is by now."""
    state = w.tasks[task]
    if state.waits >= 0:
        take(w.queue, w.tasks, w.counts, task)
    reach(w, task, now)
    if state.index:
        before = w.segments[state.segment + (state.index - 1) // 2]
        state.on_time = state.begun == state.started + (before.computed if state.index % 2 else before.over)
    enter(w, task, now)


@inlined
def enter(w: LoopState, task: int, now: float) -> None:
    """Go on with a half segment that has begun before now or just now."""
    state = w.tasks[task]
    while True:
        if state.index % 2:
            transfer(w, task, now)
            return
        time = alone(w, state, state.index, state.begun)
        if time > now:
            state.call = END
            push(w, task, time)
            return
        if not goes_on(w, task, now):
            return


@inlined
def transfer(w: LoopState, task: int, now: float) -> None:
    """Go on with a flow, or with what is computed beside it."""
    state = w.tasks[task]
    number, begun = w.numbers[state.flow + state.index // 2], state.begun
    if (
        number < 0 or now >= begun + w.flows[number].idle
    ):  # nothing moves any more: what is computed beside it takes longer
        state.call = END
        push(w, task, max(alone(w, state, state.index, begun), now))
        return
    flow = w.flows[number]
    if not flow.size:
        state.call = LANDED
        exact = state.on_time and not w.segments[state.segment + state.index // 2].beside
        push(w, task, max(alone(w, state, state.index, begun), now) if exact else begun + flow.idle)
    elif now >= begun + flow.latency:
        move(w, task, now)
    else:
        state.call = MOVE
        push(w, task, begun + flow.latency)


@inlined
def goes_on(w: LoopState, task: int, now: float) -> bool:
    """End a half segment. Return whether the next one is to be gone through awake; else the task sleeps to its end."""
    state = w.tasks[task]
    w.ends[state.half + state.index] = now
    state.index += 1
    state.begun = now
    halves = 2 * (state.segment_end - state.segment)
    if state.index < halves:
        for row in range(state.row, state.row_end):
            if w.links[w.rows[row].link].reserved > FITS:
                return True
    end = now
    for index in range(max(state.index, halves - 1) if state.on_time else state.index, halves):
        end = alone(w, state, index, end)
    state.awake = 0
    state.call = OVER
    push(w, task, end)
    return False


@inlined
def move(w: LoopState, task: int, now: float) -> None:
    """Let the bytes of a flow move, its latency being over."""
    state = w.tasks[task]
    number = w.numbers[state.flow + state.index // 2]
    flow = w.flows[number]
    lands = state.begun + flow.idle
    if state.on_time and not w.segments[state.segment + state.index // 2].beside:
        lands = alone(w, state, state.index, state.begun)
    if flow.load == flow.load_end:
        state.call = LANDED
        push(w, task, max(lands, now))
        return
    state.moving, state.rate, state.tried, state.lands, state.full = number, 0.0, 0.0, lands, -1
    state.left, state.since = flow.size, state.begun + flow.latency
    for load in range(flow.load, flow.load_end):
        place = state.row + w.loads[load].place
        row = w.rows[place]
        link = w.links[row.link]
        row.at = link.first + link.crossing
        link.crossing += 1
        crossing = w.crossings[row.at]
        crossing.row, crossing.task, crossing.weight = place, task, w.loads[load].weight
        if w.full[row.link]:
            join_full(w.rows, state, place)
    # its rate is found with those of all that change at this time, not now
    w.moved[w.counts[MOVED]] = task
    w.counts[MOVED] += 1
    w.counts[DIRTY] = 1


@inlined
def change(w: LoopState, number: int) -> None:
    """Let a link be one that is not as it was when last solved."""
    w.changed[w.counts[CHANGED]] = number
    w.counts[CHANGED] += 1


@inlined
def land(w: LoopState, task: int) -> None:
    """Take away a flow that is over."""
    state = w.tasks[task]
    flow = w.flows[state.moving]
    for load in range(flow.load, flow.load_end):
        row = w.rows[state.row + w.loads[load].place]
        link = w.links[row.link]
        link.crossing -= 1
        crossing, last = w.crossings[row.at], w.crossings[link.first + link.crossing]
        crossing.row, crossing.task, crossing.weight = last.row, last.task, last.weight
        w.rows[last.row].at = row.at
        if w.full[row.link] and not link.changed:
            link.changed = 1
            change(w, row.link)
        # an idle link begins from zero again: else the rounding of all sums would stay
        w.used[row.link] = w.used[row.link] - w.loads[load].weight * state.tried if link.crossing else 0.0
    state.moving = -1
    if state.lands == np.inf:  # it was below its bound for a while
        state.on_time = 0
    w.counts[DIRTY] = 1


@called
def join_full(rows: Records, state: Any, place: int) -> None:
    """Let a row be one of those of a task whose links are full, in their order."""
    if state.full < 0 or state.full > place:
        rows[place].next_full, state.full = state.full, place
        return
    row = rows[state.full]
    while row.next_full >= 0 and row.next_full < place:
        row = rows[row.next_full]
    rows[place].next_full, row.next_full = row.next_full, place


@called
def leave_full(rows: Records, state: Any, place: int) -> None:
    """Let a row be none of those of a task whose links are full."""
    if state.full == place:
        state.full = rows[place].next_full
        return
    row = rows[state.full]
    while row.next_full != place:
        row = rows[row.next_full]
    row.next_full = rows[place].next_full


@inlined
def fill(w: LoopState, number: int, full: bool) -> None:
    """Say whether a link is full, also to those whose bytes cross it."""
    if w.full[number] == full:
        return
    w.full[number] = full
    link = w.links[number]
    for place in range(link.first, link.first + link.crossing):
        crossing = w.crossings[place]
        if full:
            join_full(w.rows, w.tasks[crossing.task], crossing.row)
        else:
            leave_full(w.rows, w.tasks[crossing.task], crossing.row)


@inlined
def solve(w: LoopState, now: float) -> None:
    """Bring the rates up to date, on the links that are known to be full and on those that this would overfill.

    Of thousands of links a hundred are full, and a solution that keeps within a limit stays when that limit is added.
    """
    w.counts[SOLVES] += 1
    # full links cannot be known before rates are: those that a try would overfill join, until none is overfilled
    more = True
    while more:
        few, many = joined(w)
        fair(w, few, many)
        more = overfilled(w, few)
    w.counts[CHANGED] = w.counts[MOVED] = w.counts[DIRTY] = 0
    for place in range(few):
        settle(w, w.trial[place].task, now)
    for place in range(many):
        number = w.wide[place]
        w.links[number].changed = 0
        fill(w, number, w.used[number] > NEARLY_FULL * w.limit[number])


@inlined
def overfilled(w: LoopState, few: int) -> bool:
    """Try rates, and return whether they overfill links that were not known to be full; these are changed too, then."""
    before, over = w.counts[CHANGED], False
    for place in range(few):
        found = w.trial[place]
        state = w.tasks[found.task]
        more = found.rate - state.tried
        if more:
            for load in range(w.flows[state.moving].load, w.flows[state.moving].load_end):
                link = w.loads[load].link
                w.used[link] += w.loads[load].weight * more
                over |= w.used[link] > w.limit[link] * (1 + SAME) and not w.full[link]
    for place in range(few):
        found = w.trial[place]
        state = w.tasks[found.task]
        if over and found.rate != state.tried:
            for load in range(w.flows[state.moving].load, w.flows[state.moving].load_end):
                link = w.loads[load].link
                if w.used[link] > w.limit[link] * (1 + SAME) and not w.full[link]:
                    fill(w, link, True)
                    change(w, link)
        state.tried = found.rate
    return bool(w.counts[CHANGED] > before)


@inlined
def joined(w: LoopState) -> tuple[int, int]:
    """Find the flows that chains of full links join to changes, and these links. Return how many both are."""
    tasks, links, wide, trial, loaded = w.tasks, w.links, w.wide, w.trial, w.loaded
    w.counts[STAMP] += 1
    stamp = w.counts[STAMP]
    few = size = done = gone = w.counts[WIDE] = 0
    for place in range(w.counts[CHANGED]):
        widen(links, wide, w.counts, stamp, w.changed[place])
    for place in range(w.counts[MOVED]):
        tasks[w.moved[place]].seen, trial[few].task = stamp, w.moved[place]
        few += 1
    while done < w.counts[WIDE] or gone < few:
        while done < w.counts[WIDE]:
            link = links[wide[done]]
            done += 1
            for place in range(link.first, link.first + link.crossing):
                task = w.crossings[place].task
                if tasks[task].seen != stamp:
                    tasks[task].seen, trial[few].task = stamp, task
                    few += 1
        if gone == few:
            break
        other = trial[gone]
        state = tasks[other.task]
        state.place, other.load, other.bound = gone, size, w.flows[state.moving].bound
        gone += 1
        place = state.full
        while place >= 0:
            row = w.rows[place]
            widen(links, wide, w.counts, stamp, row.link)
            loaded[size].link, loaded[size].weight = row.link, w.crossings[row.at].weight
            size += 1
            place = row.next_full
        other.load_end = size
    return few, w.counts[WIDE]


@inlined
def widen(links: Records, wide: Places, counts: Ints, stamp: int, number: int) -> None:
    """Add a link to those of a try if it is not there."""
    link = links[number]
    if link.seen != stamp:
        link.seen, wide[counts[WIDE]] = stamp, number
        counts[WIDE] += 1


@inlined
def settle(w: LoopState, task: int, now: float) -> None:
    """Give a flow its new rate from now on; what hardly changes stays."""
    state = w.tasks[task]
    rate = state.tried
    # a rate that differs by rounding alone would move the end by some digits, and cost an event
    if abs(rate - state.rate) <= SAME * state.rate:
        return
    bound, time = w.flows[state.moving].bound, state.lands
    if rate < bound or time == np.inf:
        # what nothing has slowed so far has moved at its bound, awake or asleep
        state.left -= (state.rate if time == np.inf else bound) * (now - state.since)
        state.since, state.lands = now, np.inf
        time = now + max(state.left, 0.0) / rate
    state.rate = rate
    state.call = LAND
    push(w, task, max(time, now))


@inlined
def fair(w: LoopState, few: int, many: int) -> None:
    """Find the max-min fair rates of the first few flows on the first many links, which no others cross.

    All rates rise together; a flow stops at its bound or when one of its links is full (Bertsekas & Gallager, Data
    Networks, 6.5.2).
    """
    links, trial, loaded = w.links, w.trial, w.loaded
    if not many:
        for place in range(few):
            trial[place].rate = trial[place].bound
        return
    rise_together(w, few, many)
    rising = few
    while rising:
        level, place = w.stops[0].level, w.stops[0].place
        take_stop(w.stops, w.counts)
        stopped = stopping(w, level, place)
        rising -= stopped
        for number in range(stopped):
            flow = trial[w.stop[number]]
            flow.rate = level
            for load in range(flow.load, flow.load_end):
                link, weight = links[loaded[load].link], loaded[load].weight
                link.free = max(link.free - weight * level, 0.0)
                link.total -= weight
                link.left -= 1


@inlined
def rise_together(w: LoopState, few: int, many: int) -> None:
    """Let all flows begin to rise, and find when they would stop at their bounds, and when links would be full."""
    links, wide, trial, loaded, stops = w.links, w.wide, w.trial, w.loaded, w.stops
    for place in range(many):
        link = links[wide[place]]
        link.free, link.total, link.left = w.limit[wide[place]], 0.0, 0
    for load in range(trial[few - 1].load_end if few else 0):
        links[loaded[load].link].total += loaded[load].weight
        links[loaded[load].link].left += 1
    for place in range(few):
        trial[place].rate = -1.0
        stops[place].level, stops[place].place = trial[place].bound, -1 - place
    count = few
    for place in range(many):
        link = links[wide[place]]
        if link.left:
            stops[count].level, stops[count].place = link.free / link.total, place
            count += 1
    for place in range(count // 2 - 1, -1, -1):
        sink_stop(stops, count, place, stops[place].level, stops[place].place)
    w.counts[STOPS] = count


@inlined
def stopping(w: LoopState, level: float, place: int) -> int:
    """Find who stops at a rate, a flow (a negative number) or all on a link; return how many they are."""
    if place < 0:
        w.stop[0] = -1 - place
        return 1 if w.trial[-1 - place].rate < 0.0 else 0
    link = w.links[w.wide[place]]
    if not link.left:
        return 0
    if link.free > level * link.total * (1 + NEARLY):  # some have stopped since it was found
        add_stop(w.stops, w.counts, link.free / link.total * (1 - NEARLY / 2), place)
        return 0
    count, rising = 0, 0.0
    for crossing in range(link.first, link.first + link.crossing):
        flow = w.tasks[w.crossings[crossing].task].place
        if w.trial[flow].rate < 0.0:
            rising += w.crossings[crossing].weight
            w.stop[count] = flow
            count += 1
    if link.free / rising > level:
        add_stop(w.stops, w.counts, link.free / rising, place)
        return 0
    return count


@called
def add_stop(stops: Records, counts: Ints, level: float, place: int) -> None:
    """Add a stop to the heap: a rate at which a link is full, or a flow (a negative number) at its bound."""
    at = counts[STOPS]
    counts[STOPS] += 1
    while at > 0:
        above = stops[(at - 1) // 2]
        if above.level < level or (above.level == level and above.place < place):
            break
        stops[at].level, stops[at].place = above.level, above.place
        at = (at - 1) // 2
    stops[at].level, stops[at].place = level, place


@called
def take_stop(stops: Records, counts: Ints) -> None:
    """Take the first stop from the heap."""
    counts[STOPS] -= 1
    last = stops[counts[STOPS]]
    sink_stop(stops, counts[STOPS], 0, last.level, last.place)


@called
def sink_stop(stops: Records, count: int, at: int, level: float, place: int) -> None:
    """Let a stop stand in the heap where its place is free, or farther from the front."""
    while 2 * at + 1 < count:
        child = 2 * at + 1
        below = stops[child]
        if child + 1 < count:
            other = stops[child + 1]
            if other.level < below.level or (other.level == below.level and other.place < below.place):
                child += 1
                below = other
        if level < below.level or (level == below.level and place < below.place):
            break
        stops[at].level, stops[at].place = below.level, below.place
        at = child
    stops[at].level, stops[at].place = level, place


@inlined
def reserve(w: LoopState, task: int) -> bool:
    """Hold links; return whether one of them could be overfilled."""
    state = w.tasks[task]
    tight = False
    for place in range(state.row, state.row_end):
        row = w.rows[place]
        row.task, row.link = task, w.link[place]
        link = w.links[row.link]
        row.next_held, row.last_held = link.held, -1
        if link.held >= 0:
            w.rows[link.held].last_held = place
        link.held = place
        link.reserved += w.share[place]
        tight |= link.reserved > FITS
    return tight


@inlined
def release(w: LoopState, task: int) -> None:
    """Hold no links any more."""
    state = w.tasks[task]
    for place in range(state.row, state.row_end):
        row = w.rows[place]
        link = w.links[row.link]
        if row.last_held >= 0:
            w.rows[row.last_held].next_held = row.next_held
        else:
            link.held = row.next_held
        if row.next_held >= 0:
            w.rows[row.next_held].last_held = row.last_held
        # from zero again, as in `land`: a link that seems tight by rounding wakes all that use it
        link.reserved = link.reserved - w.share[place] if link.held >= 0 else 0.0


@inlined
def asleep(w: LoopState, task: int) -> int:
    """Find who sleeps on links of a task that could be overfilled, and return how many; from now on they are awake."""
    count = 0
    for place in range(w.tasks[task].row, w.tasks[task].row_end):
        if w.links[w.rows[place].link].reserved > FITS:
            row = w.links[w.rows[place].link].held
            while row >= 0:
                other = w.rows[row].task
                if not w.tasks[other].awake:
                    w.tasks[other].awake = 1
                    w.woken[count] = other
                    count += 1
                row = w.rows[row].next_held
    return count


@inlined
def begin(w: LoopState, task: int, now: float) -> None:
    """Let a task begin: with those it could slow, or asleep."""
    state = w.tasks[task]
    kind = w.kinds[w.kind[task]]
    state.segment, state.segment_end, state.flow = kind.segment, kind.segment_end, kind.flow
    state.row, state.row_end, state.half = w.row[task], w.row[task + 1], w.half[task]
    state.started = state.begun = now
    state.on_time = 1
    take_share(w, task, 1.0, now)
    for place in range(w.loss[task], w.loss[task + 1]):
        loss = w.losses[place]
        rank = w.ranks[loss.rank]
        advance(w.losses, rank, now)
        loss.before, loss.before_most = rank.lost, rank.lost_most
    if not reserve(w, task):
        state.call = OVER
        push(w, task, now + w.seconds[w.node[task]])
        return
    count = asleep(w, task)
    # rows stand in the order in which tasks began and ended, which differs between equal steps: the order of tasks does not
    w.woken[:count].sort()
    for place in range(count):
        wake(w, w.woken[place], now)


@called
def advance(losses: Records, rank: Any, now: float) -> None:
    """Bring the integrals of a rank to a time, and what is left of the losses that are made up for on it."""
    past = now - rank.since
    if past == 0.0:  # several begin and end at one time
        return
    rank.since = now
    rank.lost += rank.taken * past
    rank.lost_most += rank.taken_most * past
    place = rank.late
    while place >= 0:
        loss = losses[place]
        loss.left -= (1.0 - loss.other * rank.taken - loss.memory * rank.taken_most) * past
        place = loss.next


@inlined
def take_share(w: LoopState, task: int, sign: float, now: float) -> None:
    """Take from ranks what a task takes while it runs, or give it back (sign -1); who makes up for losses there ends anew."""
    for place in range(w.take[task], w.take[task + 1]):
        take = w.takes[place]
        rank = w.ranks[take.rank]
        advance(w.losses, rank, now)
        rank.sms += sign * take.sms
        rank.memory += sign * take.memory
        # kernels that memory bounds lose the larger of both shares; of neither can all be taken
        asked = max(rank.sms, rank.memory)
        rank.taken = min(rank.sms, MOST_TAKEN) if rank.sms > LEAST_TAKEN else 0.0
        rank.taken_most = min(asked, MOST_TAKEN) if asked > LEAST_TAKEN else 0.0
        row = rank.late
        while row >= 0:
            loss = w.losses[row]
            if loss.end > now:  # else it is over on this rank, and waits for others
                made_up(w, loss, now)
                wait_late(w, loss.task)
            row = loss.next


@inlined
def made_up(w: LoopState, loss: Any, now: float) -> None:
    """Find when a loss is made up for if nothing changes on its rank."""
    rank = w.ranks[loss.rank]
    loss.end = now + max(loss.left, 0.0) / (1.0 - loss.other * rank.taken - loss.memory * rank.taken_most)


@inlined
def wait_late(w: LoopState, task: int) -> None:
    """Let a task wait until its losses are made up for on all of its ranks."""
    end = 0.0
    for place in range(w.loss[task], w.loss[task + 1]):
        end = max(end, w.losses[place].end)
    push(w, task, end)


@inlined
def loses(w: LoopState, task: int, now: float) -> bool:
    """Begin to make up for what a task has lost, which would be over now; return whether it has lost anything."""
    state, late = w.tasks[task], False
    for place in range(w.loss[task], w.loss[task + 1]):
        loss = w.losses[place]
        rank = w.ranks[loss.rank]
        advance(w.losses, rank, now)
        loss.left = loss.other * (rank.lost - loss.before) + loss.memory * (rank.lost_most - loss.before_most)
        loss.end = now
        if loss.left > 0.0:
            late = True
    if not late:
        return False
    for place in range(w.loss[task], w.loss[task + 1]):
        loss = w.losses[place]
        if loss.left > 0.0:
            made_up(w, loss, now)
        rank = w.ranks[loss.rank]
        # also where nothing was lost on this rank: the task ends with the slowest of its ranks
        loss.last, loss.next = -1, rank.late
        if rank.late >= 0:
            w.losses[rank.late].last = place
        rank.late = place
    state.late, state.since, state.call = 1, now, OVER
    wait_late(w, task)
    return True


@inlined
def no_longer_late(w: LoopState, task: int, now: float) -> None:
    """Take a task away that has made up for its losses."""
    w.longer[w.node[task]] = now - w.tasks[task].since
    for place in range(w.loss[task], w.loss[task + 1]):
        loss = w.losses[place]
        advance(w.losses, w.ranks[loss.rank], now)
        if loss.next >= 0:
            w.losses[loss.next].last = loss.last
        if loss.last >= 0:
            w.losses[loss.last].next = loss.next
        else:
            w.ranks[loss.rank].late = loss.next


@inlined
def finish(w: LoopState, task: int, now: float) -> None:
    """Let a sleeper end, and all that waited for it begin; first it makes up for what it has lost."""
    state = w.tasks[task]
    if state.late:
        no_longer_late(w, task, now)
    else:
        if state.index:
            reach(w, task, np.inf)
            if state.index < 2 * (state.segment_end - state.segment):
                w.ends[state.half + state.index] = now
        release(w, task)
        take_share(w, task, -1.0, now)
        if loses(w, task, now):
            return
    w.end[w.node[task]] = now
    w.stack[0] = w.node[task]
    w.jobs[state.job].under_way -= 1
    follow(w)
    step_over(w, state.job)


@inlined
def begin_step(w: LoopState, number: int, now: float) -> None:
    """Let the step of a job begin."""
    job = w.jobs[number]
    w.end[job.first] = now
    w.stack[0] = job.first
    follow(w)
    step_over(w, number)


@inlined
def step_over(w: LoopState, number: int) -> None:
    """Let the step of a job wait for its end if none of its tasks is under way: all of its nodes have their ends."""
    job = w.jobs[number]
    if job.under_way:
        return
    # the ends of nodes that hold nothing lie ahead of this time, so that the last of all has to be waited for
    end = job.begin
    for node in range(job.first, job.last):
        end = max(end, w.end[node])
    w.tasks[job.last_task].call = LAST
    push(w, job.last_task, end)


@inlined
def follow(w: LoopState) -> None:
    """Go on from the end of the first node of the stack: what holds no links and waits for nothing else ends ahead of time."""
    count = 1
    while count:
        count -= 1
        ended = w.stack[count]
        for place in range(w.start[ended], w.start[ended + 1]):
            number = w.after[place]
            w.missing[number] -= 1
            if w.missing[number] == 0:
                time = max(w.end[w.a[number]], w.end[w.b[number]])
                task = w.task[number]
                # nothing can slow it: its end is known now, and takes no event
                if task < 0:
                    w.end[number] = time + w.seconds[number]
                    w.stack[count] = number
                    count += 1
                else:
                    w.jobs[w.tasks[task].job].under_way += 1
                    wait(w.queue, w.tasks, w.counts, task, time, 2 * LATER + number)


@inlined
def awake(w: LoopState, task: int, now: float) -> None:
    """Do what an awake task waited for."""
    w.counts[EVENTS] += 1
    state = w.tasks[task]
    call = state.call
    if call == MOVE:
        move(w, task, now)
        return
    if call == LAND:
        land(w, task)
    segment = w.segments[state.segment + state.index // 2]
    if call != END and segment.beside:
        time = (
            alone(w, state, state.index, state.begun)
            if state.on_time
            else state.begun + over(segment, now - state.begun)
        )
        state.call = END
        push(w, task, max(time, now))
    elif goes_on(w, task, now):
        enter(w, task, now)


def _borrowed(_: Any, state: Any) -> Any:
    def built(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        [found] = arguments
        for place, kind in enumerate(signature.return_type):
            array = context.make_array(kind)(context, builder, builder.extract_value(found, place))
            array.meminfo = get_null_value(array.meminfo.type)  # type: ignore[no-untyped-call]
            found = builder.insert_value(found, array._getvalue(), place)
        return found

    return state(state), built


borrowed = cast("Callable[[LoopState], LoopState]", intrinsic(_borrowed))
"""Returns arrays whose users nobody counts: the caller of the loop keeps them."""


@compiled
def play(owned: LoopState, now: float) -> int:
    """Go through all events from `now` on until a job ends a step, and return which one; before, idle jobs begin theirs."""
    w = borrowed(owned)
    for number in range(len(w.jobs)):
        job = w.jobs[number]
        if job.idle:
            job.idle = 0
            w.tasks[job.last_task].call = FIRST
            push(w, job.last_task, job.begin)
    while True:
        event = w.queue[0]
        # rates are solved once for all that changes at one time
        if w.counts[DIRTY] and (w.counts[WAITING] == 0 or event.time > now):
            w.counts[EVENTS] += 1
            solve(w, now)
            continue
        now, task = event.time, event.task
        take(w.queue, w.tasks, w.counts, task)
        call = w.tasks[task].call
        if call == BEGIN:
            begin(w, task, now)
        elif call == OVER:
            finish(w, task, now)
        elif call == FIRST:
            begin_step(w, w.tasks[task].job, now)
        elif call == LAST:
            w.jobs[w.tasks[task].job].end = now
            return int(w.tasks[task].job)
        else:
            awake(w, task, now)
