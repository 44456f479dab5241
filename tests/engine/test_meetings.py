"""Who meets on a link: those that hold it at a moment at which all that do could overfill it, however often it is asked."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.engine.contention import Holdings

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


def asked(holdings, times):
    begun = np.array([begin for begin, _ in times], float)
    over = begun + np.array([length for _, length in times])
    return holdings.met(over, begun)


def groups(met):
    return [list(one) for one in met.together()]


@given(held(), st.lists(MOMENTS, min_size=1, max_size=5))
def test_who_meets_is_the_same_whatever_was_asked_before(rows, rounds):
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    kept = Holdings(*columns)
    for times in rounds:
        met, anew = asked(kept, times), asked(Holdings(*columns), times)
        wanted = sorted(of for of, _ in meeting(rows, times))
        assert sorted(met.node.tolist()) == wanted
        assert groups(met) == groups(anew)
        for one, other in zip(met, anew, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_ends_makes_room_for_what_begins_then():
    """Also where it was the other way round before."""
    one = np.array([0, 1])
    holdings = Holdings(one, np.zeros(2, np.int64), np.array([0.75, 0.75]))
    assert len(asked(holdings, [(0, 3), (2, 3)]).node) == 2
    assert not len(asked(holdings, [(0, 2), (2, 3)]).node)
