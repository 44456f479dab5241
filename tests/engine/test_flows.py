"""Max-min rates: the defining property; those of transfers under way are those of the whole problem."""

import numpy as np
import pytest
import simpy
from examples import examples
from flows import flow as flow_of
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.arrays import distinct_rows
from clustersim.engine.fabric import Fabric, link_rates
from clustersim.engine.flows import solve


def rates_of(loads, bounds, capacity):
    """Call the product's solver with lists: loads[v] is a list of (link, weight)."""
    entries = [(v, link, weight) for v, pairs in enumerate(loads) for link, weight in pairs]
    variable, link, weight = (
        (np.array(column) for column in zip(*entries, strict=True)) if entries else (_NONE, _NONE, _NONE)
    )
    rates = np.array([capacity[link] for link in sorted(capacity)], float)
    return solve(variable, link, weight, np.array(bounds, float), rates).tolist()


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
    rates = rates_of(loads, bounds, capacity)
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
    assert rates_of(*problem) == pytest.approx(rising(*problem), rel=1e-9)


pairs = st.lists(st.tuples(st.integers(0, 5), st.floats(0.1, 4)), min_size=1, max_size=4, unique_by=lambda p: p[0])
transfers = st.tuples(st.floats(0, 20), st.floats(1, 500), st.floats(0.5, 200), pairs)


def whole(capacity, flows):
    """Solve for all flows at once, on all links."""
    variable = np.repeat(np.arange(len(flows)), [len(one.links) for one in flows])
    links, weights = np.concatenate([one.links for one in flows]), np.concatenate([one.weights for one in flows])
    return solve(variable, links, weights, np.array([one.bound for one in flows]), np.array(capacity))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.floats(1, 100), min_size=6, max_size=6), st.lists(transfers, min_size=1, max_size=12))
def test_at_any_time_rates_are_those_of_all_that_moves_on_all_links(capacity, began):
    env = simpy.Environment()
    fabric = Fabric(env, capacity)
    for at, size, bound, loads in began:
        flow = flow_of("p", 0.0, size, bound, *loads)
        env.timeout(at).callbacks.append(
            lambda _, flow=flow: fabric.move(flow, link_rates(flow), env.now + flow.idle, env.now)
        )
    while env.peek() < np.inf:
        if env.peek() > env.now and fabric.transfers:
            rates = [one.rate for one in fabric.transfers]
            assert rates == pytest.approx(whole(capacity, [one.flow for one in fabric.transfers]).tolist(), rel=1e-8)
        env.step()
    assert not fabric.transfers
    assert not any(fabric.crossing) and not any(fabric.demanded) and not any(fabric.short)


@pytest.mark.parametrize("largest", [1, 3, 1 << 62])
def test_distinct_rows_are_those_of_numpy(largest):
    rows = np.random.default_rng(largest % 7).integers(-largest, largest, (500, 3))
    rows = np.concatenate((rows, rows[:100]))
    _, first, of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    found = distinct_rows(rows)
    assert (found[0] == np.sort(first)).all()
    assert (found[0][found[1]] == first[of.reshape(-1)]).all()


def test_rows_of_one_sum_are_told_apart(monkeypatch):
    """Weights of 1 give two distinct rows one hash: kinds are numbered by their first rows, as with distinct hashes."""
    monkeypatch.setattr(np, "cumprod", lambda weights: weights * np.uint64(0) + np.uint64(1))
    first, kind_of = distinct_rows(np.array([[2, 1], [1, 2], [2, 1], [3, 3], [1, 2]]))
    assert (first.tolist(), kind_of.tolist()) == ([0, 1, 3], [0, 1, 0, 2, 1])
