"""Rates of transfers under way are those of the whole problem."""

import numpy as np
import pytest
import simpy
from examples import examples
from flows import flow as flow_of
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.arrays import distinct, distinct_rows, entries
from clustersim.engine.fabric import Fabric
from clustersim.engine.flows import solve

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
        env.timeout(at).callbacks.append(lambda _, flow=flow: fabric.move(flow, env.now + flow.idle))
    while env.peek() < np.inf:
        if env.peek() > env.now and fabric.moving:
            rates = [one.rate for one in fabric.moving]
            assert rates == pytest.approx(whole(capacity, [one.flow for one in fabric.moving]).tolist(), rel=1e-8)
        env.step()
    assert not fabric.moving


def test_a_transfer_lands_when_its_bytes_are_over():
    env, ends = simpy.Environment(), []
    fabric = Fabric(env, [10.0])
    for at, size in ((0.0, 30.0), (1.0, 10.0)):  # at 1 s 20 bytes are left of the first: both move at 5 bytes/s
        flow = flow_of("p", 0.0, size, 10.0, (0, 1.0))
        env.timeout(at).callbacks.append(
            lambda _, flow=flow: fabric.move(flow, env.now + flow.idle).over.callbacks.append(
                lambda _: ends.append(env.now)
            )
        )
    env.run()
    assert ends == [3.0, 4.0]


@pytest.mark.parametrize("largest", [1, 3, 1 << 62])
def test_distinct_rows_are_those_of_numpy(largest):
    rows = np.random.default_rng(largest % 7).integers(-largest, largest, (500, 3))
    rows = np.concatenate((rows, rows[:100]))
    _, first, of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    found = distinct_rows(rows)
    assert (found[0] == first).all()
    assert (found[1] == of.reshape(-1)).all()


def test_rows_of_one_sum_are_told_apart(monkeypatch):
    monkeypatch.setattr(np, "cumprod", lambda weights: weights * np.uint64(0) + np.uint64(1))
    first, of = distinct_rows(np.array([[1, 2], [2, 1], [1, 2]]))
    assert (first.tolist(), of.tolist()) == ([0, 1], [0, 1, 0])


def test_entries_and_distinct():
    assert entries(np.array([0, 2, 2, 5]), np.array([2, 0, 1])).tolist() == [2, 3, 4, 0, 1]
    assert distinct(np.array([3, 1, 3, 2, 1])).tolist() == [1, 2, 3]
    assert distinct(np.empty(0, np.int64)).tolist() == []
