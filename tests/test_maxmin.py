"""Max-min fairness: the defining property, and closed forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.engine.maxmin import solve


@st.composite
def problems(draw):
    links = draw(st.integers(1, 6))
    capacity = {link: draw(st.floats(1, 100)) for link in range(links)}
    pairs = st.lists(st.tuples(st.integers(0, links - 1), st.floats(0.1, 4)), max_size=4, unique_by=lambda p: p[0])
    loads = draw(st.lists(pairs, min_size=1, max_size=8))
    bounds = [draw(st.floats(0.5, 200)) for _ in loads]
    return loads, bounds, capacity


@given(problems())
def test_every_rate_is_at_its_bound_or_at_a_full_link_where_none_is_faster(problem):
    loads, bounds, capacity = problem
    rates = solve(loads, bounds, capacity)
    used = dict.fromkeys(capacity, 0.0)
    for rate, pairs in zip(rates, loads, strict=True):
        for link, weight in pairs:
            used[link] += rate * weight
    assert all(used[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
    for v, pairs in enumerate(loads):
        at_bound = rates[v] >= bounds[v] * (1 - 1e-9)
        full = [link for link, _ in pairs if used[link] >= capacity[link] * (1 - 1e-9)]
        fastest = any(
            all(rates[v] >= rates[o] * (1 - 1e-9) for o, other in enumerate(loads) if link in dict(other))
            for link in full
        )
        assert at_bound or fastest


def test_two_share_a_link_and_the_third_takes_what_is_left():
    rates = solve([[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 2.0)]], [1e9] * 3, {0: 10.0, 1: 9.0})
    assert rates == pytest.approx([7, 3, 3])


@given(st.integers(1, 50), st.floats(1, 1e12))
def test_equals_share_equally(count, capacity):
    assert solve([[(0, 1.0)]] * count, [1e15] * count, {0: capacity}) == pytest.approx([capacity / count] * count)
