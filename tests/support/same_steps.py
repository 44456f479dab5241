"""What two engines must agree on about a step."""

from __future__ import annotations

import numpy as np
from columns import near

from clustersim.arrays import Floats, Ints
from clustersim.engine.record import Record
from clustersim.engine.shape import Shape
from clustersim.engine.times import LoopJob

TIMES = ("starts", "ends", "requested", "wait_begin")


def same(job: LoopJob, one: Record, other: Record, rel: float = 1e-11) -> None:
    """Assert that two engines executed a step of a job equally; times may differ by `rel` of the step's end."""
    least = rel * other.end
    assert near((one.begin, one.end), (other.begin, other.end), rel, least)
    for name in TIMES:
        assert near(getattr(one, name), getattr(other, name), rel, least), name
    assert np.array_equal(one.wait_event, other.wait_event)
    first = [_first_of_leader(step.leader) for step in (one, other)]
    assert np.array_equal(*first)
    # of events that end at one time either may be the cause
    assert near(_ends(one, one.cause), _ends(one, other.cause), rel, least)
    slowed = [np.zeros(len(step.ends)) if step.slowed is None else step.slowed for step in (one, other)]
    assert near(*slowed, rel, least)
    for leader in {
        int(found[event]) for step, found in zip((one, other), first, strict=True) for event in step.segment_ends
    }:
        mine, its = (segment_ends(job, step, leader) for step in (one, other))
        assert near(mine, its, rel, least)


def segment_ends(job: LoopJob, step: Record, event: int) -> list[float]:
    """Return when each half segment of an event ended: as if alone, unless the step says otherwise."""
    found = step.segment_ends.get(int(step.leader[event]))
    if found is not None:
        return found
    activity = job.tasks.activity(job.shape.slot(event))
    return [float(step.starts[event] + end) for end in activity.timing.ends]


def by_task(shape: Shape, column: Floats) -> dict[tuple[int, int, int], float]:
    """Return a column of events by rank, number of its pass and place of the task in the template."""
    number = shape.event_pass - shape.rank_pass[shape.event_rank]
    places = shape.event_task - shape.pass_task[shape.event_pass]
    events = zip(shape.event_rank.tolist(), number.tolist(), places.tolist(), strict=True)
    return dict(zip(events, column.tolist(), strict=True))


def _first_of_leader(leader: Ints) -> Ints:
    """Return, by event, the first of the events that start together with it."""
    first = np.full(len(leader), len(leader))
    np.minimum.at(first, leader, np.arange(len(leader)))
    found: Ints = first[leader]
    return found


def _ends(step: Record, cause: Ints) -> Floats:
    found: Floats = np.where(cause < 0, step.begin, step.ends[cause])
    return found
