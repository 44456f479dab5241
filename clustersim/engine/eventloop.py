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
"""What a holder waits for: to begin; asleep, to be over; awake, for the end of a half segment and what is in it; for a step to
begin, and to end."""
NUMBER, STAMP, SOLVES, EVENTS, WAITING, MOVED, CHANGED, WIDE, STOPS, DIRTY = range(10)
"""Counters: of all events, of tries and solutions, of events of tasks that met; how many there are to come; how many flows and
links have changed since rates were solved, how many links and stops a try has, and whether rates are to be solved."""
LATER = 1 << 56
"""More than all events: of one time, what ends makes room for what begins, and rates are solved when all has changed."""
FITS = 1 + 1e-9
SAME = 1e-12
"""A relative change of a rate that is none."""
NEARLY_FULL = 0.98
MOST_TAKEN, LEAST_TAKEN = 1 - 1 / 128, 1e-14
"""As in engine.slowing: the most of a rank that may be taken, and what is none."""
NEARLY = 1e-9
"""By so much a difference of sums may be off."""


@inlined
def rise(queue: Records, holders: Records, counts: Ints, place: int, time: float, order: int, holder: int) -> None:
    """Let an event stand in the queue where its place is free, or nearer to the front."""
    while place > 0:
        front = queue[(place - 1) // 2]
        if front.time < time or (front.time == time and front.order < order):
            break
        here = queue[place]
        here.time, here.order, here.holder = front.time, front.order, front.holder
        holders[front.holder].waits = place
        place = (place - 1) // 2
    here = queue[place]
    here.time, here.order, here.holder = time, order, holder
    holders[holder].waits = place


@inlined
def sink(queue: Records, holders: Records, counts: Ints, place: int, time: float, order: int, holder: int) -> None:
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
        here.time, here.order, here.holder = back.time, back.order, back.holder
        holders[back.holder].waits = place
        place = child
    here = queue[place]
    here.time, here.order, here.holder = time, order, holder
    holders[holder].waits = place


@inlined
def moved(queue: Records, holders: Records, counts: Ints, place: int, time: float, order: int, holder: int) -> None:
    """Let an event stand in the queue where a place in its midst is free."""
    there = queue[place]
    if time < there.time or (time == there.time and order < there.order):
        rise(queue, holders, counts, place, time, order, holder)
    else:
        sink(queue, holders, counts, place, time, order, holder)


@called
def wait(queue: Records, holders: Records, counts: Ints, holder: int, time: float, order: int) -> None:
    """Let a holder wait for an event, and for no other one."""
    place = holders[holder].waits
    if place >= 0:
        moved(queue, holders, counts, place, time, order, holder)
    else:
        counts[WAITING] += 1
        rise(queue, holders, counts, counts[WAITING] - 1, time, order, holder)


@inlined
def push(w: LoopState, holder: int, time: float) -> None:
    """Let a holder wait for what it says it waits for; of one time, what is pushed first comes first, but ends before all."""
    w.counts[NUMBER] += 1
    # what ends gives its links free before what begins at that time takes them: else they would seem to meet
    later = 0 if w.holders[holder].call == OVER else LATER
    wait(w.queue, w.holders, w.counts, holder, time, later + w.counts[NUMBER])


@called
def take(queue: Records, holders: Records, counts: Ints, holder: int) -> None:
    """Let a holder wait for nothing any more."""
    one = holders[holder]
    place = one.waits
    one.waits = -1
    counts[WAITING] -= 1
    last = queue[counts[WAITING]]
    if last.holder != holder:
        moved(queue, holders, counts, place, last.time, last.order, last.holder)


@inlined
def over(segment: Any, moving: float) -> float:
    """Return the seconds of a flow that moves so long, with what is computed beside it."""
    longer: float = max(moving, segment.beside + segment.taken * moving)
    return longer if segment.beside else moving


@inlined
def alone(w: LoopState, one: Any, index: int, begun: float) -> float:
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


@inlined
def reach(w: LoopState, holder: int, time: float) -> None:
    """Bring a sleeper to the half segment in which it is at a time, at most its last one."""
    one = w.holders[holder]
    # in the last one it waits for its end anyway, however sums are rounded
    last = 2 * (one.segment_end - one.segment) - 1
    while one.index < last:
        end = alone(w, one, one.index, one.begun)
        if end > time:
            return
        w.ends[one.half + one.index] = end
        one.index += 1
        one.begun = end


@inlined
def wake(w: LoopState, holder: int, now: float) -> None:
    """Let a holder go on event by event from where it is by now."""
    one = w.holders[holder]
    if one.waits >= 0:
        take(w.queue, w.holders, w.counts, holder)
    reach(w, holder, now)
    if one.index:
        before = w.segments[one.segment + (one.index - 1) // 2]
        one.on_time = one.begun == one.started + (before.computed if one.index % 2 else before.over)
    enter(w, holder, now)


@inlined
def enter(w: LoopState, holder: int, now: float) -> None:
    """Go on with a half segment that has begun before now or just now."""
    one = w.holders[holder]
    while True:
        if one.index % 2:
            transfer(w, holder, now)
            return
        time = alone(w, one, one.index, one.begun)
        if time > now:
            one.call = END
            push(w, holder, time)
            return
        if not goes_on(w, holder, now):
            return


@inlined
def transfer(w: LoopState, holder: int, now: float) -> None:
    """Go on with a flow, or with what is computed beside it."""
    one = w.holders[holder]
    number, begun = w.numbers[one.flow + one.index // 2], one.begun
    if (
        number < 0 or now >= begun + w.flows[number].idle
    ):  # nothing moves any more: what is computed beside it takes longer
        one.call = END
        push(w, holder, max(alone(w, one, one.index, begun), now))
        return
    flow = w.flows[number]
    if not flow.size:
        one.call = LANDED
        exact = one.on_time and not w.segments[one.segment + one.index // 2].beside
        push(w, holder, max(alone(w, one, one.index, begun), now) if exact else begun + flow.idle)
    elif now >= begun + flow.latency:
        move(w, holder, now)
    else:
        one.call = MOVE
        push(w, holder, begun + flow.latency)


@inlined
def goes_on(w: LoopState, holder: int, now: float) -> bool:
    """End a half segment. Return whether the next one is to be gone through awake; else the holder sleeps to its end."""
    one = w.holders[holder]
    w.ends[one.half + one.index] = now
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
    one.call = OVER
    push(w, holder, end)
    return False


@inlined
def move(w: LoopState, holder: int, now: float) -> None:
    """Let the bytes of a flow move, its latency being over."""
    one = w.holders[holder]
    number = w.numbers[one.flow + one.index // 2]
    flow = w.flows[number]
    lands = one.begun + flow.idle
    if one.on_time and not w.segments[one.segment + one.index // 2].beside:
        lands = alone(w, one, one.index, one.begun)
    if flow.load == flow.load_end:
        one.call = LANDED
        push(w, holder, max(lands, now))
        return
    one.moving, one.rate, one.tried, one.lands, one.full = number, 0.0, 0.0, lands, -1
    one.left, one.since = flow.size, one.begun + flow.latency
    for load in range(flow.load, flow.load_end):
        place = one.row + w.loads[load].place
        row = w.rows[place]
        link = w.links[row.link]
        row.at = link.first + link.crossing
        link.crossing += 1
        crossing = w.crossings[row.at]
        crossing.row, crossing.holder, crossing.weight = place, holder, w.loads[load].weight
        if w.full[row.link]:
            join_full(w.rows, one, place)
    w.moved[w.counts[MOVED]] = holder
    w.counts[MOVED] += 1
    w.counts[DIRTY] = 1


@inlined
def change(w: LoopState, number: int) -> None:
    """Let a link be one that is not as it was when last solved."""
    w.changed[w.counts[CHANGED]] = number
    w.counts[CHANGED] += 1


@inlined
def land(w: LoopState, holder: int) -> None:
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
        if w.full[row.link] and not link.changed:
            link.changed = 1
            change(w, row.link)
        w.used[row.link] = w.used[row.link] - w.loads[load].weight * one.tried if link.crossing else 0.0
    one.moving = -1
    if one.lands == np.inf:  # it was below its bound for a while
        one.on_time = 0
    w.counts[DIRTY] = 1


@called
def join_full(rows: Records, one: Any, place: int) -> None:
    """Let a row be one of those of a holder whose links are full, in their order."""
    if one.full < 0 or one.full > place:
        rows[place].next_full, one.full = one.full, place
        return
    row = rows[one.full]
    while row.next_full >= 0 and row.next_full < place:
        row = rows[row.next_full]
    rows[place].next_full, row.next_full = row.next_full, place


@called
def leave_full(rows: Records, one: Any, place: int) -> None:
    """Let a row be none of those of a holder whose links are full."""
    if one.full == place:
        one.full = rows[place].next_full
        return
    row = rows[one.full]
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
            join_full(w.rows, w.holders[crossing.holder], crossing.row)
        else:
            leave_full(w.rows, w.holders[crossing.holder], crossing.row)


@inlined
def solve(w: LoopState, now: float) -> None:
    """Bring the rates up to date, on the links that are known to be full and on those that this would overfill.

    Of thousands of links a hundred are full, and a solution that keeps within a limit stays when that limit is added.
    """
    w.counts[SOLVES] += 1
    more = True
    while more:
        few, many = joined(w)
        fair(w, few, many)
        more = overfilled(w, few)
    w.counts[CHANGED] = w.counts[MOVED] = w.counts[DIRTY] = 0
    for place in range(few):
        settle(w, w.found[place].holder, now)
    for place in range(many):
        number = w.wide[place]
        w.links[number].changed = 0
        fill(w, number, w.used[number] > NEARLY_FULL * w.limit[number])


@inlined
def overfilled(w: LoopState, few: int) -> bool:
    """Try rates, and return whether they overfill links that were not known to be full; these are changed too, then."""
    before, over = w.counts[CHANGED], False
    for place in range(few):
        found = w.found[place]
        one = w.holders[found.holder]
        more = found.rate - one.tried
        if more:
            for load in range(w.flows[one.moving].load, w.flows[one.moving].load_end):
                link = w.loads[load].link
                w.used[link] += w.loads[load].weight * more
                over |= w.used[link] > w.limit[link] * (1 + SAME) and not w.full[link]
    for place in range(few):
        found = w.found[place]
        one = w.holders[found.holder]
        if over and found.rate != one.tried:
            for load in range(w.flows[one.moving].load, w.flows[one.moving].load_end):
                link = w.loads[load].link
                if w.used[link] > w.limit[link] * (1 + SAME) and not w.full[link]:
                    fill(w, link, True)
                    change(w, link)
        one.tried = found.rate
    return bool(w.counts[CHANGED] > before)


@inlined
def joined(w: LoopState) -> tuple[int, int]:
    """Find the flows that chains of full links join to changes, and these links. Return how many both are."""
    holders, links, wide, found, loaded = w.holders, w.links, w.wide, w.found, w.loaded
    w.counts[STAMP] += 1
    stamp = w.counts[STAMP]
    few = size = done = gone = w.counts[WIDE] = 0
    for place in range(w.counts[CHANGED]):
        widen(links, wide, w.counts, stamp, w.changed[place])
    for place in range(w.counts[MOVED]):
        holders[w.moved[place]].seen, found[few].holder = stamp, w.moved[place]
        few += 1
    while done < w.counts[WIDE] or gone < few:
        while done < w.counts[WIDE]:
            link = links[wide[done]]
            done += 1
            for place in range(link.first, link.first + link.crossing):
                holder = w.crossings[place].holder
                if holders[holder].seen != stamp:
                    holders[holder].seen, found[few].holder = stamp, holder
                    few += 1
        if gone == few:
            break
        other = found[gone]
        one = holders[other.holder]
        one.place, other.load, other.bound = gone, size, w.flows[one.moving].bound
        gone += 1
        place = one.full
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
def settle(w: LoopState, holder: int, now: float) -> None:
    """Give a flow its new rate from now on; what hardly changes stays."""
    one = w.holders[holder]
    rate = one.tried
    # a rate that differs by rounding alone would move the end by some digits, and cost an event
    if abs(rate - one.rate) <= SAME * one.rate:
        return
    bound, time = w.flows[one.moving].bound, one.lands
    if rate < bound or time == np.inf:
        # what nothing has slowed so far has moved at its bound, awake or asleep
        one.left -= (one.rate if time == np.inf else bound) * (now - one.since)
        one.since, one.lands = now, np.inf
        time = now + max(one.left, 0.0) / rate
    one.rate = rate
    one.call = LAND
    push(w, holder, max(time, now))


@inlined
def fair(w: LoopState, few: int, many: int) -> None:
    """Find the max-min fair rates of the first few flows on the first many links, which no others cross.

    All rates rise together; a flow stops at its bound or when one of its links is full (Bertsekas & Gallager, Data
    Networks, 6.5.2).
    """
    links, found, loaded = w.links, w.found, w.loaded
    if not many:
        for place in range(few):
            found[place].rate = found[place].bound
        return
    rise_together(w, few, many)
    rising = few
    while rising:
        level, place = w.stops[0].level, w.stops[0].place
        take_stop(w.stops, w.counts)
        stopped = stopping(w, level, place)
        rising -= stopped
        for number in range(stopped):
            one = found[w.stop[number]]
            one.rate = level
            for load in range(one.load, one.load_end):
                link, weight = links[loaded[load].link], loaded[load].weight
                link.free = max(link.free - weight * level, 0.0)
                link.total -= weight
                link.left -= 1


@inlined
def rise_together(w: LoopState, few: int, many: int) -> None:
    """Let all flows begin to rise, and find when they would stop at their bounds, and when links would be full."""
    links, wide, found, loaded, stops = w.links, w.wide, w.found, w.loaded, w.stops
    for place in range(many):
        link = links[wide[place]]
        link.free, link.total, link.left = w.limit[wide[place]], 0.0, 0
    for load in range(found[few - 1].load_end if few else 0):
        links[loaded[load].link].total += loaded[load].weight
        links[loaded[load].link].left += 1
    for place in range(few):
        found[place].rate = -1.0
        stops[place].level, stops[place].place = found[place].bound, -1 - place
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
        return 1 if w.found[-1 - place].rate < 0.0 else 0
    link = w.links[w.wide[place]]
    if not link.left:
        return 0
    if link.free > level * link.total * (1 + NEARLY):  # some have stopped since it was found
        add_stop(w.stops, w.counts, link.free / link.total * (1 - NEARLY / 2), place)
        return 0
    count, rising = 0, 0.0
    for crossing in range(link.first, link.first + link.crossing):
        flow = w.holders[w.crossings[crossing].holder].place
        if w.found[flow].rate < 0.0:
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
def hold(w: LoopState, holder: int) -> bool:
    """Hold links; return whether one of them could be overfilled."""
    one = w.holders[holder]
    tight = False
    for place in range(one.row, one.row_end):
        row = w.rows[place]
        row.holder, row.link = holder, w.link[place]
        link = w.links[row.link]
        row.next_held, row.last_held = link.held, -1
        if link.held >= 0:
            w.rows[link.held].last_held = place
        link.held = place
        link.reserved += w.share[place]
        tight |= link.reserved > FITS
    return tight


@inlined
def give(w: LoopState, holder: int) -> None:
    """Hold no links any more."""
    one = w.holders[holder]
    for place in range(one.row, one.row_end):
        row = w.rows[place]
        link = w.links[row.link]
        if row.last_held >= 0:
            w.rows[row.last_held].next_held = row.next_held
        else:
            link.held = row.next_held
        if row.next_held >= 0:
            w.rows[row.next_held].last_held = row.last_held
        link.reserved = link.reserved - w.share[place] if link.held >= 0 else 0.0


@inlined
def asleep(w: LoopState, holder: int) -> int:
    """Find who sleeps on links of a holder that could be overfilled, and return how many; from now on they are awake."""
    count = 0
    for place in range(w.holders[holder].row, w.holders[holder].row_end):
        if w.links[w.rows[place].link].reserved > FITS:
            row = w.links[w.rows[place].link].held
            while row >= 0:
                other = w.rows[row].holder
                if not w.holders[other].awake:
                    w.holders[other].awake = 1
                    w.woken[count] = other
                    count += 1
                row = w.rows[row].next_held
    return count


@inlined
def begin(w: LoopState, holder: int, now: float) -> None:
    """Let a holder begin: with those it could slow, or asleep."""
    one = w.holders[holder]
    kind = w.kinds[w.kind[holder]]
    one.segment, one.segment_end, one.flow = kind.segment, kind.segment_end, kind.flow
    one.row, one.row_end, one.half = w.row[holder], w.row[holder + 1], w.half[holder]
    one.started = one.begun = now
    one.on_time = 1
    take_share(w, holder, 1.0, now)
    for place in range(w.loss[holder], w.loss[holder + 1]):
        loss = w.losses[place]
        rank = w.ranks[loss.rank]
        advance(w.losses, rank, now)
        loss.before, loss.before_most = rank.lost, rank.lost_most
    if not hold(w, holder):
        one.call = OVER
        push(w, holder, now + w.seconds[w.node[holder]])
        return
    count = asleep(w, holder)
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
def take_share(w: LoopState, holder: int, sign: float, now: float) -> None:
    """Take from ranks what a holder takes while it runs, or give it back (sign -1); who makes up for losses there ends anew."""
    for place in range(w.take[holder], w.take[holder + 1]):
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
                wait_late(w, loss.holder)
            row = loss.next


@inlined
def made_up(w: LoopState, loss: Any, now: float) -> None:
    """Find when a loss is made up for if nothing changes on its rank."""
    rank = w.ranks[loss.rank]
    loss.end = now + max(loss.left, 0.0) / (1.0 - loss.other * rank.taken - loss.memory * rank.taken_most)


@inlined
def wait_late(w: LoopState, holder: int) -> None:
    """Let a holder wait until its losses are made up for on all of its ranks."""
    end = 0.0
    for place in range(w.loss[holder], w.loss[holder + 1]):
        end = max(end, w.losses[place].end)
    push(w, holder, end)


@inlined
def loses(w: LoopState, holder: int, now: float) -> bool:
    """Begin to make up for what a holder has lost, which would be over now; return whether it has lost anything."""
    one, late = w.holders[holder], False
    for place in range(w.loss[holder], w.loss[holder + 1]):
        loss = w.losses[place]
        rank = w.ranks[loss.rank]
        advance(w.losses, rank, now)
        loss.left = loss.other * (rank.lost - loss.before) + loss.memory * (rank.lost_most - loss.before_most)
        loss.end = now
        if loss.left > 0.0:
            late = True
    if not late:
        return False
    for place in range(w.loss[holder], w.loss[holder + 1]):
        loss = w.losses[place]
        if loss.left > 0.0:
            made_up(w, loss, now)
        rank = w.ranks[loss.rank]
        # also where nothing was lost on this rank: the holder ends with the slowest of its ranks
        loss.last, loss.next = -1, rank.late
        if rank.late >= 0:
            w.losses[rank.late].last = place
        rank.late = place
    one.late, one.since, one.call = 1, now, OVER
    wait_late(w, holder)
    return True


@inlined
def no_longer_late(w: LoopState, holder: int, now: float) -> None:
    """Take a holder away that has made up for its losses."""
    w.longer[w.node[holder]] = now - w.holders[holder].since
    for place in range(w.loss[holder], w.loss[holder + 1]):
        loss = w.losses[place]
        advance(w.losses, w.ranks[loss.rank], now)
        if loss.next >= 0:
            w.losses[loss.next].last = loss.last
        if loss.last >= 0:
            w.losses[loss.last].next = loss.next
        else:
            w.ranks[loss.rank].late = loss.next


@inlined
def finish(w: LoopState, holder: int, now: float) -> None:
    """Let a sleeper end, and all that waited for it begin; first it makes up for what it has lost."""
    one = w.holders[holder]
    if one.late:
        no_longer_late(w, holder, now)
    else:
        if one.index:
            reach(w, holder, np.inf)
            if one.index < 2 * (one.segment_end - one.segment):
                w.ends[one.half + one.index] = now
        give(w, holder)
        take_share(w, holder, -1.0, now)
        if loses(w, holder, now):
            return
    w.end[w.node[holder]] = now
    w.stack[0] = w.node[holder]
    w.jobs[one.job].under_way -= 1
    follow(w)
    step_over(w, one.job)


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
    """Let the step of a job wait for its end if none of its holders is under way: all of its nodes have their ends."""
    job = w.jobs[number]
    if job.under_way:
        return
    # the ends of nodes that hold nothing lie ahead of this time, so that the last of all has to be waited for
    end = job.begin
    for node in range(job.first, job.last):
        end = max(end, w.end[node])
    w.holders[job.last_holder].call = LAST
    push(w, job.last_holder, end)


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
                holder = w.holder[number]
                # nothing can slow it: its end is known now, and takes no event
                if holder < 0:
                    w.end[number] = time + w.seconds[number]
                    w.stack[count] = number
                    count += 1
                else:
                    w.jobs[w.holders[holder].job].under_way += 1
                    wait(w.queue, w.holders, w.counts, holder, time, 2 * LATER + number)


@inlined
def awake(w: LoopState, holder: int, now: float) -> None:
    """Do what an awake holder waited for."""
    w.counts[EVENTS] += 1
    one = w.holders[holder]
    call = one.call
    if call == MOVE:
        move(w, holder, now)
        return
    if call == LAND:
        land(w, holder)
    segment = w.segments[one.segment + one.index // 2]
    if call != END and segment.beside:
        time = alone(w, one, one.index, one.begun) if one.on_time else one.begun + over(segment, now - one.begun)
        one.call = END
        push(w, holder, max(time, now))
    elif goes_on(w, holder, now):
        enter(w, holder, now)


def _borrowed(_: Any, array: Any) -> Any:
    def built(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = context.make_array(signature.return_type)(context, builder, arguments[0])
        found.meminfo = get_null_value(found.meminfo.type)  # type: ignore[no-untyped-call]
        return found._getvalue()

    return array(array), built


borrowed = cast("Callable[[Any], Any]", intrinsic(_borrowed))
"""Returns an array whose users nobody counts: who called the loop keeps it."""


@compiled
def play(owned: LoopState, now: float) -> int:
    """Go through all events from `now` on until a job ends a step, and return which one; before, idle jobs begin theirs."""
    w = LoopState(
        borrowed(owned.a),
        borrowed(owned.b),
        borrowed(owned.start),
        borrowed(owned.after),
        borrowed(owned.seconds),
        borrowed(owned.holder),
        borrowed(owned.missing),
        borrowed(owned.end),
        borrowed(owned.node),
        borrowed(owned.kind),
        borrowed(owned.row),
        borrowed(owned.take),
        borrowed(owned.loss),
        borrowed(owned.half),
        borrowed(owned.link),
        borrowed(owned.share),
        borrowed(owned.kinds),
        borrowed(owned.holders),
        borrowed(owned.rows),
        borrowed(owned.links),
        borrowed(owned.limit),
        borrowed(owned.used),
        borrowed(owned.full),
        borrowed(owned.crossings),
        borrowed(owned.ranks),
        borrowed(owned.takes),
        borrowed(owned.losses),
        borrowed(owned.longer),
        borrowed(owned.segments),
        borrowed(owned.numbers),
        borrowed(owned.flows),
        borrowed(owned.loads),
        borrowed(owned.jobs),
        borrowed(owned.counts),
        borrowed(owned.queue),
        borrowed(owned.ends),
        borrowed(owned.moved),
        borrowed(owned.changed),
        borrowed(owned.wide),
        borrowed(owned.found),
        borrowed(owned.loaded),
        borrowed(owned.stops),
        borrowed(owned.stop),
        borrowed(owned.woken),
        borrowed(owned.stack),
    )
    for number in range(len(w.jobs)):
        job = w.jobs[number]
        if job.idle:
            job.idle = 0
            w.holders[job.last_holder].call = FIRST
            push(w, job.last_holder, job.begin)
    while True:
        event = w.queue[0]
        # rates are solved once for all that changes at one time
        if w.counts[DIRTY] and (w.counts[WAITING] == 0 or event.time > now):
            w.counts[EVENTS] += 1
            solve(w, now)
            continue
        now, holder = event.time, event.holder
        take(w.queue, w.holders, w.counts, holder)
        call = w.holders[holder].call
        if call == BEGIN:
            begin(w, holder, now)
        elif call == OVER:
            finish(w, holder, now)
        elif call == FIRST:
            begin_step(w, w.holders[holder].job, now)
        elif call == LAST:
            w.jobs[w.holders[holder].job].end = now
            return int(w.holders[holder].job)
        else:
            awake(w, holder, now)
