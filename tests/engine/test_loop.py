"""The step that the compiled loop plays is the one that SimPy plays, also where computation is slowed."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
import simpy
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.engine.compiled import EVENT_LOOP, SMALL_LOOP, Loop, called, compiled, compiling_told
from clustersim.engine.contention import LinkUse
from clustersim.engine.fabric import Activity, Fabric, Segment
from clustersim.engine.flows import Flow
from clustersim.engine.graph import StepGraph
from clustersim.engine.loop import loop
from clustersim.engine.loop_state import LoopJob, slot_flows
from clustersim.engine.slowing import NO_SLOWING, BesideRows, SlowedFabric, Slowing
from clustersim.engine.tasks import SlotKinds

LINKS, RANKS = 6, 3
CAPACITY = np.full(LINKS, 10.0)


def graph(nodes):
    """Return a graph from its nodes as (predecessor, other predecessor, slot), the begin of the step being node 0."""
    a, b, slot = ([0, *column] for column in zip(*nodes, strict=True))
    return StepGraph(tuple(map(np.array, (a, b, [-1, *slot[1:]]))), (), (), None, None, None, RANKS)


def steps_of(env, fabric, slowed, graph, activities):
    """Yield until a step is over in which every task is a process of its own; return when each node ended."""
    over = [env.event() for _ in graph.slot]
    ends = [env.now] * len(graph.slot)

    def run(node):
        yield over[graph.a[node]] & over[graph.b[node]]
        if graph.slot[node] >= 0:
            done = env.event()
            over_alone = slowed.begin(node, lambda _: done.succeed())
            fabric.start(activities[graph.slot[node]], over_alone)
            yield done
        ends[node] = env.now
        over[node].succeed()

    for node in range(1, len(graph.slot)):
        env.process(run(node))
    over[0].succeed()
    yield env.all_of(over)
    return ends


def played(jobs, steps=1, starts=(0.0,)):
    """Return the steps of jobs until each has so many that began when all had started, as the ends of all nodes."""
    env = simpy.Environment()
    fabric, stop = Fabric(env, CAPACITY.tolist()), env.event()
    lines, left = [[] for _ in jobs], [steps] * len(jobs)

    def repeat(number, graph, activities, slowing):
        slowed = SlowedFabric(env, slowing)
        yield env.timeout(starts[number])
        while max(left) > 0:
            begin = env.now
            ends = yield from steps_of(env, fabric, slowed, graph, activities)
            lines[number].append(ends)
            left[number] -= begin >= max(starts)
        if not stop.triggered:
            stop.succeed()

    for number, job in enumerate(jobs):
        env.process(repeat(number, *job))
    env.run(until=stop)
    return lines


def loop_job(graph, activities, slowing=NO_SLOWING):
    seconds = np.append([one.idle for one in activities], 0.0)[graph.arrays[2]]
    links = LinkUse(graph, activities, CAPACITY)
    return LoopJob(graph, SlotKinds.found(activities), slot_flows(activities), links, seconds, slowing)


def simulated(graph, activities, slowing=NO_SLOWING):
    """Return when each node ends, and what was done for those that slowed each other."""
    [[found]] = loop(CAPACITY, [loop_job(graph, activities, slowing)])
    return found.ends.tolist(), found


def moving(links, size, bound, compute=0.0, latency=0.0, weight=1.0):
    return Activity([Segment(compute, Flow.of("p", latency, size, bound, *((link, weight) for link in links)))])


flows = st.builds(
    lambda links, size, bound, latency: Flow.of("p", latency, size, bound, *((link, 1.0) for link in links)),
    st.sets(st.integers(0, LINKS - 1), max_size=LINKS),  # up to four are counted one by one
    st.one_of(st.just(0.0), st.floats(1, 50)),
    st.sampled_from([2.5, 5.0, 10.0, 14.0]),  # the last one could overfill a link alone
    st.floats(0, 1),
)
times = st.one_of(st.just(0.0), st.floats(0, 5))
segments = st.one_of(
    st.tuples(times, st.none(), times).map(lambda one: Segment(*one)),
    st.tuples(times, flows, times, times, st.sampled_from([0.0, 0.1, 0.5])).map(lambda one: Segment(*one)),
)
activities = st.lists(segments, min_size=1, max_size=4).map(Activity)


@st.composite
def steps(draw):
    """Return (graph, activities) in which nodes follow others at random."""
    done = draw(st.lists(activities, min_size=1, max_size=5))
    count = draw(st.integers(1, 24))
    nodes = [
        (draw(st.integers(0, n)), draw(st.integers(max(0, n - 3), n)), draw(st.integers(-1, len(done) - 1)))
        for n in range(count)
    ]
    return graph(nodes), done


shares = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9])


@st.composite
def losses(draw, nodes):
    """Return what some of so many nodes take on ranks, and what others lose there."""
    takers, slowed = [], []
    for node in nodes:
        for rank in draw(st.sets(st.integers(0, RANKS - 1))):
            sms, memory = draw(shares), draw(shares)
            if draw(st.booleans()):
                takers.append((rank, node, (sms, memory)))
            else:
                slowed.append((rank, node, (sms * (1 - memory), memory)))
    return Slowing(*(beside_rows(rows) for rows in (takers, slowed)))


def beside_rows(rows):
    ranks, nodes, parts = zip(*rows, strict=True) if rows else ((), (), np.zeros((0, 2)))
    return BesideRows(np.array(ranks, np.int64), np.array(nodes, np.int64), np.array(parts))


@settings(max_examples=examples(300), deadline=None)
@given(steps(), st.data())
def test_the_step_is_the_one_that_simpy_plays(step, data):
    one, done = step
    busy = [node for node, slot in enumerate(one.slot) if slot >= 0]
    for slowing in (NO_SLOWING, data.draw(losses(busy))):
        ends, _ = simulated(one, done, slowing)
        [[wanted]] = played([(one, done, slowing)])
        assert ends == pytest.approx(wanted, rel=1e-11, abs=1e-11)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(steps(), st.sampled_from([0.0, 0.5, 3.0])), min_size=1, max_size=3), st.data())
def test_steps_of_several_jobs_are_those_that_simpy_plays(jobs, data):
    """Each begins at a time of its own, and repeats its step on the links that all use, while others have steps to do."""
    count, own = data.draw(st.integers(1, 3)), []
    for (one, done), _ in jobs:
        one.arrays[2][1] = len(done)  # so that a step takes some time
        busy = [node for node, slot in enumerate(one.slot) if slot >= 0]
        own.append((one, [*done, Activity([Segment(20.0, None)])], data.draw(losses(busy))))
    starts = [start for _, start in jobs]
    found = loop(CAPACITY, [loop_job(*one) for one in own], count, starts)
    for line, wanted, start in zip(found, played(own, count, starts), starts, strict=True):
        assert len(line) >= count
        for mine, its in zip(line, wanted, strict=False):
            assert mine.ends.tolist() == pytest.approx(its, rel=1e-11, abs=1e-11)
        assert [step.begin for step in line] == [start, *(max(step.ends) for step in line[:-1])]


def test_two_messages_meet_and_what_was_found_ahead_of_the_first_is_taken_back():
    send, compute = moving([0], 10.0, 10.0), Activity([Segment(0.5, None)])
    # 1 sends at 0, 3 at 0.5: the first ends at 1.5 instead of 1, the second at 2; 4 and 5 follow the first
    one = graph([(0, 0, 0), (0, 0, 1), (2, 2, 0), (1, 1, 1), (4, 4, 0)])
    ends, found = simulated(one, [send, compute])
    assert ends == pytest.approx([0.0, 1.5, 0.5, 2.0, 2.0, 3.0])
    assert sorted(found.segment_ends) == [1, 3]


def test_who_meets_another_while_it_only_computes_beside_a_flow_that_is_over_is_not_slowed():
    """Slowed once before, so that its times are no longer those of its idle ones."""
    send, half, wait = moving([0], 10.0, 10.0), moving([0], 5.0, 10.0), Activity([Segment(4.0, None)])
    beside = Segment(0.0, Flow.of("p", 1.0, 0.0, 10.0), beside=4.0, share=0.5)
    first = Activity([*send.segments, beside, *send.segments])
    ends, found = simulated(graph([(0, 0, 0), (0, 0, 1), (0, 0, 2), (3, 3, 3)]), [first, half, wait, send])
    assert ends == pytest.approx([0.0, 7.0, 1.0, 4.0, 5.0])
    assert found.segment_ends[1] == pytest.approx([0.0, 1.5, 1.5, 6.0, 6.0, 7.0])


def test_what_ends_makes_room_for_what_begins_then():
    send = moving([0], 10.0, 10.0)
    one = graph([(0, 0, 0), (1, 1, 0)])
    ends, found = simulated(one, [send])
    assert ends == [0.0, 1.0, 2.0]
    assert found.segment_ends == {}
    assert found.events == 0


def test_what_is_compiled_is_told_once_with_the_remedy_where_nothing_can_keep_it():
    made: dict[str, object] = {}
    exec("def more(x): return x + 1", made)  # of no file, so that numba has no folder for it
    one, told = compiled(made["more"]), []
    with compiling_told(told.append):
        assert [one(2), one(3)] == [3, 4]
    assert told == [EVENT_LOOP.unkept]
    assert "NUMBA_CACHE_DIR" in EVENT_LOOP.unkept
    one(2.0)
    assert told == [EVENT_LOOP.unkept], "whoever asked is gone"


NO_CACHE = """
import sys
from numba.core import caching
caching.CacheImpl._locator_classes = []
if __name__ == "__main__":
    from clustersim.cli.main import main
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_without_a_cache_the_wait_is_said_at_once_also_quietly(workers, tmp_path):
    """On a cluster whose meetings the event loop plays; each process of a sweep compiles it, and one of them says so."""
    (tmp_path / "no_cache.py").write_text(NO_CACHE)
    options = ("sweep", "--recompute", "none,full", *workers) if workers else ("run", "--engine", "auto")
    words = [options[0], "oversubscribed_roce_1152", "llama3_70b", *options[1:]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("CLUSTERSIM_PROGRESS")  # as a person calls it
    done = subprocess.run(
        [sys.executable, "no_cache.py", *words, "--out", "x", "-q"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [EVENT_LOOP.unkept]


def test_of_a_small_loop_no_seconds_are_told_and_what_it_calls_is_a_part_of_it():
    made: dict[str, object] = {"inner": called(lambda x: x + 1)}
    exec("def small(x): return inner(x)", made)
    loop, told = Loop(made["small"]), []
    with compiling_told(told.append):
        assert loop.fast(2) == 3
    assert told == [SMALL_LOOP.unkept] * 2
    assert not any("event loop" in text or "about" in text for text in SMALL_LOOP)
    assert "NUMBA_CACHE_DIR" in SMALL_LOOP.unkept


def test_what_others_compile_is_not_ours_to_tell():
    """A plugin may use numba, too."""
    made: dict[str, object] = {}
    exec("def ours(x): return x + 1", made)
    ours, theirs, told = compiled(made["ours"]), numba.njit(lambda x: x + 2), []
    ours(1)
    with compiling_told(told.append):
        assert theirs(2) == 4
    assert told == []
