"""Who contends for a link: those that use it at a moment at which all that do could overfill it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.engine.flows import FITS
from clustersim.engine.fold.saturation import LinkShares, Transfers, levels

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


def asked(rows, times):
    """Return by link who holds it at the moments at which it is overfilled; one row for each of its changes."""
    order = sorted((link, holder, share) for holder, link, share in rows)
    link, holder, share = (np.array(column) for column in zip(*order, strict=True))
    begun = np.array([begin for begin, _ in times], float)
    over = begun + np.array([length for _, length in times])
    transfers = Transfers.of(len(times), np.arange(len(times)), begun, over)
    shares = LinkShares(np.searchsorted(link, np.arange(LINKS + 1)), holder, share)
    found, now = set(), {number: set() for number in range(LINKS)}
    for row, change, level in zip(*levels(shares, transfers, np.arange(LINKS)), strict=True):
        now[row] ^= {abs(change) - 1}
        assert np.isclose(level, sum(share for link, holder, share in order if link == row and holder in now[row]))
        found |= {(holder, row) for holder in now[row]} if level > FITS else set()
    assert not any(now.values())
    return found


@given(held(), MOMENTS)
def test_who_contends_is_on_a_link_at_a_moment_at_which_it_is_overfilled(rows, times):
    assert asked(rows, times) == meeting(rows, times)


def test_what_ends_makes_room_for_what_begins_then():
    rows = [(0, 0, 0.75), (1, 0, 0.75)]
    assert len(asked(rows, [(0, 3), (2, 3)])) == 2
    assert not asked(rows, [(0, 2), (2, 3)])
