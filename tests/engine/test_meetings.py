"""Who contends for a link: those that use it at a moment at which all that do could overfill it."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.engine.contention import contended, peaks

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


def test_the_peak_of_what_is_taken_leaves_room_for_what_begins_as_something_ends():
    rows, begun, over = np.array([0, 0, 0, 1]), np.array([0.0, 1.0, 1.5, 0.0]), np.array([1.0, 2.0, 3.0, 9.0])
    assert peaks(rows, begun, over, np.array([0.6, 0.6, 0.3, 0.5]), 3).tolist() == pytest.approx([0.9, 0.5, 0.0])
