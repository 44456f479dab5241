"""Transfers on shared links: idle closed forms, and sharing."""

import pytest
import simpy
from activities import activity_of
from examples import examples
from flows import flow as flow_of
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.engine.fabric import Fabric, Segment


def flow(size, bound=10.0, latency=0.0, loads=((0, 1.0),)):
    return flow_of("p", latency, size, bound, *loads)


def play(capacity, starts):
    """Return the end of every (time, activity), and the ends of its half segments."""
    env = simpy.Environment()
    fabric = Fabric(env, capacity)
    ends = {}

    def begin(number, at, activity):
        yield env.timeout(at)
        fabric.start(activity, lambda marks: ends.__setitem__(number, (env.now, marks)))

    for number, (at, activity) in enumerate(starts):
        env.process(begin(number, at, activity))
    env.run()
    assert not fabric.transfers
    assert not any(fabric.crossing) and not any(fabric.demanded) and not any(fabric.short)
    return [ends[number][0] for number in range(len(starts))]


def test_a_newcomer_slows_a_sleeper_from_then_on():
    # 10 of 30 bytes are over at 1 s; both then move at 5 until the newcomer's 10 are over at 3 s
    first, second = activity_of([Segment(0.0, flow(30.0))]), activity_of([Segment(0.0, flow(10.0))])
    assert play([10.0], [(0.0, first), (1.0, second)]) == pytest.approx([4.0, 3.0])


def test_a_newcomer_meets_a_sleeper_in_its_computation_and_in_its_latency():
    sleeper = activity_of([Segment(1.0, flow(10.0, latency=1.0)), Segment(1.0, None)])
    newcomer = activity_of([Segment(0.0, flow(10.0))])
    for at in (0.5, 1.5):  # 0.5 s into the computation; 0.5 s into the latency
        ends = play([10.0], [(0.0, sleeper), (at, newcomer)])
        shared = 2 * (at + 1 - 2)  # they overlap from 2 s until the newcomer has sent the rest at half rate
        assert ends == pytest.approx([4 + shared / 2, at + 1 + shared / 2] if shared > 0 else [4.0, at + 1])


moves = st.builds(
    lambda size, latency, loads: (size, latency, loads),
    st.floats(0.1, 50),
    st.floats(0, 2),
    st.lists(st.tuples(st.integers(0, 2), st.floats(0.2, 2)), min_size=1, max_size=3, unique_by=lambda p: p[0]),
)
segments = st.lists(st.tuples(st.floats(0, 3), moves), min_size=1, max_size=4)


def activity(parts):
    def bound(loads):
        return min(10.0 / weight for _, weight in loads)

    return activity_of(Segment(c, flow_of("p", lat, size, bound(loads), *loads)) for c, (size, lat, loads) in parts)


@settings(max_examples=examples(100), deadline=None)
@given(segments)
def test_alone_an_activity_ends_as_told_without_a_fabric(parts):
    one = activity(parts)
    assert play([10.0] * 3, [(0.0, one)]) == pytest.approx(one.timing.ends[-1:], rel=1e-12)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=8))
def test_a_shared_link_is_never_idle_while_bytes_are_left(sizes):
    """Work conservation: transfers that start together end when the link has carried all bytes."""
    ends = play([10.0], [(0.0, activity_of([Segment(0.0, flow(size))])) for size in sizes])
    assert max(ends) == pytest.approx(sum(sizes) / 10)
    assert [e for _, e in sorted(zip(sizes, ends, strict=True))] == sorted(ends)
