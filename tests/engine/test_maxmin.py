"""Max-min fairness: the defining property, and closed forms."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.engine import flows


def solve(loads, bounds, capacity):
    """Call the product's solver with lists: loads[v] is a list of (link, weight)."""
    entries = [(v, link, weight) for v, pairs in enumerate(loads) for link, weight in pairs]
    variable, link, weight = (
        (np.array(column) for column in zip(*entries, strict=True)) if entries else (_NONE, _NONE, _NONE)
    )
    rates = np.array([capacity[link] for link in sorted(capacity)], float)
    return flows.solve(variable, link, weight, np.array(bounds, float), rates).tolist()


def rising(loads, bounds, capacity):
    """The definition, step by step: all rates rise together, and stop one by one."""
    rates, active, level = [0.0] * len(loads), set(range(len(loads))), 0.0
    free = dict(capacity)
    while active:
        use = {link: sum(w for v in active for at, w in loads[v] if at == link) for link in free}
        steps = [free[link] / weight for link, weight in use.items() if weight]
        rise = max(min([bounds[v] - level for v in active] + steps), 0.0)
        level += rise
        free = {link: free[link] - rise * use[link] for link in free}
        full = {link for link in free if use[link] and free[link] <= 1e-12 * capacity[link]}
        stopped = {v for v in active if bounds[v] <= level * (1 + 1e-12) or any(link in full for link, _ in loads[v])}
        for v in stopped:
            rates[v] = min(level, bounds[v])
        active -= stopped
    return rates


_NONE = np.empty(0, int)


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


@settings(max_examples=examples(1000), deadline=None)
@given(problems())
def test_the_solver_equals_the_definition(problem):
    assert solve(*problem) == pytest.approx(rising(*problem), rel=1e-9)


def test_two_share_a_link_and_the_third_takes_what_is_left():
    rates = solve([[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 2.0)]], [1e9] * 3, {0: 10.0, 1: 9.0})
    assert rates == pytest.approx([7, 3, 3])


@given(st.integers(1, 50), st.floats(1, 1e12))
def test_equals_share_equally(count, capacity):
    assert solve([[(0, 1.0)]] * count, [1e15] * count, {0: capacity}) == pytest.approx([capacity / count] * count)
