"""Rates that are kept up to date are those of the whole problem, solved anew."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.arrays import distinct, distinct_rows, entries
from clustersim.engine.flows import Flow, Flows, solve

pairs = st.lists(st.tuples(st.integers(0, 5), st.floats(0.1, 4)), min_size=1, max_size=4, unique_by=lambda p: p[0])
transfers = st.tuples(pairs, st.floats(0.5, 200))


@st.composite
def histories(draw):
    """Links, and what happens on them: at each time some transfers come, and some of those that are there go."""
    capacity = [draw(st.floats(1, 100)) for _ in range(6)]
    step = st.tuples(st.lists(transfers, max_size=4), st.sets(st.integers(0, 12), max_size=3))
    return capacity, draw(st.lists(step, min_size=1, max_size=8))


def flow(bound, *loads):
    return Flow.of("p", 0.0, 0.0, bound, *loads)


def whole(capacity, moving):
    """Solve for all transfers at once, on all links."""
    flows = [flow(bound, *pairs) for pairs, bound in moving]
    variable = np.repeat(np.arange(len(flows)), [len(one.links) for one in flows])
    links, weights = np.concatenate([one.links for one in flows]), np.concatenate([one.weights for one in flows])
    return solve(variable, links, weights, np.array([bound for _, bound in moving]), np.array(capacity))


@settings(max_examples=examples(1000), deadline=None)
@given(histories())
def test_rates_after_any_change_are_those_of_the_whole(history):
    capacity, steps = history
    flows = Flows(np.array(capacity))
    moving = {}
    for time, (come, go) in enumerate(steps):
        for slot in [slot for place, slot in enumerate(moving) if place in go]:
            flows.remove(slot)
            del moving[slot]
        for one in come:
            moving[flows.add(flow(one[1], *one[0]), 1e6, float(time))] = one
        flows.solve(float(time))
        if moving:
            assert flows.rate[list(moving)] == pytest.approx(whole(capacity, list(moving.values())), rel=1e-9)
    for slot in moving:
        flows.remove(slot)
    assert not flows.used.any() and not flows.weight.any() and not flows.crossing.any()


def test_a_transfer_lands_when_its_bytes_are_over():
    flows = Flows(np.array([10.0]))
    first = flows.add(flow(10.0, (0, 1.0)), 30.0, 0.0)
    assert flows.solve(0.0) == 3.0
    second = flows.add(flow(10.0, (0, 1.0)), 10.0, 1.0)  # 20 bytes and 10 at 5 bytes/s each
    assert flows.solve(1.0) == 3.0
    assert flows.due(3.0) == [second]
    flows.remove(second)
    assert flows.solve(3.0) == 4.0
    flows.remove(first)
    assert flows.solve(4.0) == np.inf


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
