"""Who contends for a link: those that use it at a moment at which all that do could overfill it."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.engine.contention import LinkUse, StreamUse, contended
from clustersim.engine.fabric import Activity, Segment
from clustersim.engine.flows import Flow
from clustersim.engine.graph import Labels, Occurrences, StepGraph, Waits
from clustersim.engine.program import Task
from clustersim.engine.static import longest
from clustersim.engine.tasks import Tasks

LINKS, HOLDERS = 3, 6
MOMENTS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=HOLDERS, max_size=HOLDERS)


@st.composite
def held(draw):
    """Rows of (holder, link, share), none twice."""
    rows = draw(st.sets(st.tuples(st.integers(0, HOLDERS - 1), st.integers(0, LINKS - 1)), min_size=1))
    return [(*row, draw(st.sampled_from((0.25, 0.5, 0.75, 1.0)))) for row in sorted(rows)]


def meeting(rows, times):
    """Return by link the moments at which it is overfilled, with those who hold it then."""
    found = set()
    for link in range(LINKS):
        for moment in range(14):
            own = [(of, share) for of, at, share in rows if at == link]
            now = [(of, share) for of, share in own if times[of][0] <= moment < times[of][0] + times[of][1]]
            if sum(share for _, share in now) > 1:
                found |= {(of, link) for of, _ in now}
    return found


def asked(columns, times):
    begun = np.array([begin for begin, _ in times], float)
    over = begun + np.array([length for _, length in times])
    return contended(*columns, begun, over)


@given(held(), MOMENTS)
def test_who_contends_is_on_a_link_at_a_moment_at_which_it_is_overfilled(rows, times):
    found = asked([np.array(column) for column in zip(*rows, strict=True)], times)
    assert sorted(found.node.tolist()) == sorted(of for of, _ in meeting(rows, times))


@given(held(), MOMENTS)
def test_of_different_groups_none_contends_with_another(rows, times):
    """Two that are on one link at a moment at which it is overfilled are in one group."""
    groups = asked([np.array(column) for column in zip(*rows, strict=True)], times).groups()
    of = {node: number for number, own in enumerate(groups) for node in own.tolist()}
    assert len(of) == sum(map(len, groups))
    for link, moment in product(range(LINKS), range(14)):
        now = [(o, share) for o, at, share in rows if at == link and times[o][0] <= moment < sum(times[o])]
        if sum(share for _, share in now) > 1:
            assert len({of[o] for o, _ in now}) == 1


def test_what_ends_makes_room_for_what_begins_then():
    columns = np.array([0, 1]), np.zeros(2, np.int64), np.array([0.75, 0.75])
    assert len(asked(columns, [(0, 3), (2, 3)]).node) == 2
    assert not len(asked(columns, [(0, 2), (2, 3)]).node)


@st.composite
def streams(draw):
    """Return a graph whose nodes follow the one before them on a stream and another one, its tasks, and the links' capacity."""
    share = st.dictionaries(st.integers(0, LINKS - 1), st.sampled_from((0.25, 0.5, 0.75)), max_size=LINKS)
    done = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), share), min_size=2, max_size=6))
    rows, last = [(0, 0, -1)], {}
    for _ in range(draw(st.integers(1, 30))):
        slot = draw(st.integers(0, len(done) - 1))
        rows.append((last.get(slot % 4, 0), draw(st.integers(0, len(rows) - 1)), slot))
        last[slot % 4] = len(rows) - 1
    order = np.argsort(depths(rows), kind="stable")
    place = np.argsort(order)
    a, b, slot = np.array(rows)[order].T
    tasks = [
        Task(str(i % 4), "", -1, None, (), None, Activity([Segment(wait, Flow.of("f", 0.0, size, 1.0, *own.items()))]))
        for i, (wait, size, own) in enumerate(done)
    ]
    none = np.zeros(0, np.int64)
    graph = StepGraph(
        (place[a], place[b], slot),
        tuple((i,) for i in range(len(done))),
        tuple((i % 2, ("begin", None), i) for i in range(len(done))),
        Occurrences(*[none] * 6),
        Waits(*[none] * 8, ()),
        Labels(*[none] * 4),
        2,
    )
    return graph, Tasks(graph, tasks), np.ones(LINKS)


def depths(rows):
    """Return how many nodes are on the longest way to each."""
    found = [0]
    for a, b, _ in rows[1:]:
        found.append(1 + max(found[a], found[b]))
    return found


@given(streams())
def test_streams_that_leave_room_on_a_link_hide_none_who_contends_there(drawn):
    """The nodes and their groups are the same as if the times of all were looked at."""
    graph, tasks, capacity = drawn
    links, ends = LinkUse(graph, tasks.activities, capacity), longest(graph, tasks.seconds)
    starts = graph.starts(ends)
    found = links.contention(tasks.times, starts, ends, StreamUse.of(graph, tasks, links))
    every = contended(links.user, links.link, links.share, *links.under_way(tasks.times, starts, ends))
    every = every._replace(node=links.node[every.node])
    assert sorted(found.node.tolist()) == sorted(every.node.tolist())
    assert [group.tolist() for group in found.groups()] == [group.tolist() for group in every.groups()]
