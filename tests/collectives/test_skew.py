"""Dispatch and combine with experts of unequal popularity: laws of the bytes, of the times, and of folding them."""

from pathlib import Path

import fabric_cases as cases
import numpy as np
import pytest
import simpy
from activities import activity_of
from chunk_sizes import fraction_of
from engine_cases import all_links, traffic
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.collectives import model, proof
from clustersim.collectives.algorithms import direct
from clustersim.collectives.model import Group
from clustersim.collectives.nccl import table
from clustersim.collectives.nccl.choose import choose, why
from clustersim.collectives.nccl.shape import shape
from clustersim.engine.compile import Activities
from clustersim.engine.fabric import Fabric, Segment
from clustersim.engine.network import Tenant
from clustersim.engine.traffic import Family
from clustersim.errors import InputError
from clustersim.model.operator import Collective
from clustersim.model.sharding import zipf_shares
from clustersim.topology.build import load

ROOT = Path(__file__).parents[2]
NODE, POD = (load(ROOT / "topologies" / f"{name}.yaml") for name in ("hgx_h100_8", "superpod_h100_128"))
MIB = 1 << 20
sizes = st.integers(2, 40)
shares = st.lists(st.integers(0, 9), min_size=2, max_size=12).filter(sum).map(lambda w: tuple(x / sum(w) for x in w))


@given(sizes, st.floats(0, 1))
@settings(max_examples=examples(200), deadline=None)
def test_zipf_shares_have_the_imbalance_and_are_zipf(n, part):
    imbalance = n**part
    found = np.array(zipf_shares(n, imbalance))
    assert abs(found.sum() - 1) < 1e-12
    assert found.max() * n == pytest.approx(imbalance, rel=1e-12)
    assert (np.diff(found) <= 0).all()
    if imbalance < n and n > 2:
        slope = np.diff(np.log(found)) / np.diff(np.log(np.arange(1, n + 1)))  # share_j ~ (j + 1)^-s
        np.testing.assert_allclose(slope, slope[0], rtol=1e-6, atol=1e-9)


def test_one_rank_has_all_and_all_have_as_much():
    assert zipf_shares(4, 4) == (1, 0, 0, 0)
    assert zipf_shares(4, 1) == (0.25,) * 4
    assert zipf_shares(1, 1) == (1,)


@pytest.mark.parametrize("imbalance", [0.9, 8.1, float("nan"), -1, float("inf")])
def test_an_imbalance_that_cannot_be(imbalance):
    with pytest.raises(InputError) as caught:
        zipf_shares(8, imbalance)
    assert str(caught.value) == (
        f"an imbalance of {imbalance:g} is not possible over 8 GPUs; it is the rows of the busiest over the mean, "
        "from 1 (all equal) to 8 (one gets all)"
    )


@pytest.mark.parametrize("given", [(0.5, 0.5, 0), (0.5, 0.6), (1.5, -0.5), (float("nan"), 1)])
def test_shares_that_are_none(given):
    for call in (
        lambda: model.phases("direct", "dispatch", Group(2, (2,), given)),
        lambda: shape(NODE, np.arange(2), given),
    ):
        with pytest.raises(
            InputError, match="are one number of 0 or more for each of its 2 ranks, with the sum 1; these are"
        ):
            call()


def bytes_of(op, group):
    """Return the bytes from position to position for each byte of the size, an (n, n) array."""
    (phase,) = model.phases("direct", op, group)
    phase = phase.pairs()
    total = np.zeros((group.n, group.n))
    np.add.at(total, (phase.source, phase.destination), phase.fraction)
    return total


@given(shares)
@settings(max_examples=examples(100), deadline=None)
def test_bytes_are_conserved_and_dispatch_is_combine_reversed(given):
    group = Group(len(given), (len(given),), given)
    there, back = bytes_of("dispatch", group), bytes_of("combine", group)
    own = np.array(given)
    assert (there == back.T).all()
    assert (bytes_of("all_to_all", group) == there).all()
    np.testing.assert_allclose(there.sum(axis=1), 1 - own, atol=1e-12)
    np.testing.assert_allclose(there.sum(axis=0), (group.n - 1) * own, atol=1e-12)


@given(shares, st.sampled_from(["dispatch", "combine"]))
@settings(max_examples=examples(50), deadline=None)
def test_the_steps_bring_every_chunk_and_the_phase_carries_them(given, op):
    group = Group(len(given), (len(given),), given)
    steps = list(direct.steps(op, group))
    proof.check(op, group.n, steps)
    total = np.zeros((group.n, group.n))
    for step in steps:
        total[step.source, step.destination] += fraction_of(op, group, group.n**2, step.chunk)
    np.testing.assert_allclose(bytes_of(op, group), total, rtol=1e-12)
    (phase,) = model.phases("direct", op, group)
    assert phase.rounds == len({step.round for step in steps})
    assert (phase.pairs().fraction > 0).all()


@pytest.mark.parametrize("given", [(), (0.25,) * 4])
@pytest.mark.parametrize("op", ["dispatch", "combine"])
def test_without_skew_both_are_all_to_all(op, given):
    one, other = (model.phases("direct", name, Group(4, (4,), given)) for name in (op, "all_to_all"))
    assert all(np.array_equal(a, b) for a, b in zip(one[0], other[0], strict=True))
    for cluster, gpus in ((NODE, np.arange(8)), (POD, np.arange(64)), (POD, np.arange(0, 1024, 32))):
        even = (1 / len(gpus),) * len(gpus) if given else ()
        for size in (1, 4096, MIB, 1 << 30):
            a, b = (table.line(cluster, gpus, name, size, shares=even) for name in (op, "all_to_all"))
            assert a == b


@given(
    st.sampled_from([(NODE, 8, 1), (NODE, 4, 2), (POD, 16, 1), (POD, 32, 8), (POD, 24, 4), (POD, 12, 3)]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["dispatch", "combine"]),
    st.sampled_from([1, 20_000, MIB, 1 << 28]),
)
@settings(max_examples=examples(60), deadline=None)
def test_more_skew_is_never_faster_and_no_endpoint_beats_its_links(where, low, high, op, size):
    cluster, n, stride = where
    gpus = np.arange(n) * stride
    even = table.line(cluster, gpus, "all_to_all", size)
    seconds = [even.time]
    for part in sorted((low, high)):
        given = zipf_shares(n, n**part)
        line = table.line(cluster, gpus, op, size, shares=given)
        seconds.append(line.time)
        assert line.time - line.choice.latency_s >= size * busiest(cluster, gpus, given) * (1 - 1e-9)
    # GPU 33 of every third one is alone on its node: with little skew it, and not the GPU with the most rows, is the busiest
    if stride != 3:
        assert seconds == sorted(seconds) or seconds == pytest.approx(sorted(seconds), rel=1e-9)


def busiest(cluster, gpus, given):
    """Return the seconds that the busiest GPU, or the busiest NIC, needs for each byte of the size."""
    node = cluster.numbering.node_of(gpus)
    same = node[:, None] == node
    rows = np.array(given)
    inside = ((same.sum(axis=1) - 1) * rows).max() / cluster.node.nvlink
    coming = (~same).sum(axis=1) * rows
    ports = np.bincount(cluster.numbering.nic[gpus], coming)
    return max(inside, ports.max() / cluster.node.nic if ports.any() else 0.0)


@pytest.mark.parametrize(("cluster", "gpus"), [(NODE, 8), (POD, 64)])
def test_a_hair_of_skew_is_next_to_none(cluster, gpus):
    for op in ("dispatch", "combine"):
        even, hair = (
            table.line(cluster, np.arange(gpus), op, MIB, shares=zipf_shares(gpus, x)).time for x in (1, 1 + 1e-9)
        )
        assert hair == pytest.approx(even, rel=1e-6)


def test_the_busiest_gpu_of_a_node_sets_the_pace():
    """Twice the mean: 7 · 2/8 of S come in over NVLink, and 2/8 of S stay."""
    given = zipf_shares(8, 2)
    found = choose("dispatch", 1 << 30, shape(NODE, np.arange(8), given), NODE.node)
    even = choose("dispatch", 1 << 30, shape(NODE, np.arange(8)), NODE.node)
    assert found.rate_bytes_per_s == pytest.approx(even.rate_bytes_per_s / 2)
    assert why("dispatch", 1 << 30, shape(NODE, np.arange(8), given), NODE.node).endswith(
        "no tuner decides; the busiest GPU has 2 times the mean of the rows"
    )


def test_the_busiest_nic_sets_the_pace_between_nodes():
    """64 GPUs on 8 nodes: 56 others send their share of S to the NIC of the busiest."""
    given = zipf_shares(64, 3)
    for op in ("dispatch", "combine"):
        found = table.line(POD, np.arange(64), op, 1 << 30, shares=given)
        assert found.time - found.choice.latency_s == pytest.approx((1 << 30) * 56 * 3 / 64 / POD.node.nic)


def test_the_largest_message_decides_the_protocol():
    gpus, size = np.arange(8), 8 * 12_000
    assert table.line(NODE, gpus, "dispatch", size).choice.protocol == "LL"
    assert table.line(NODE, gpus, "dispatch", size, shares=zipf_shares(8, 2)).choice.protocol == "Simple"


def test_a_family_carries_its_shares_to_the_links():
    given = zipf_shares(8, 4)
    (there,), (back,) = (
        traffic(NODE, Family("ep", np.arange(8).reshape(1, 8), (8,), "direct", shares=given), op)
        for op in ("dispatch", "combine")
    )
    assert there.bound[0] == pytest.approx(NODE.node.nvlink / (7 * given[0]))
    assert back.bound[0] == pytest.approx(there.bound[0])


def played(topology, ranks, given, fold):
    """Return when dispatch, experts and combine end in each group, beside rings over everything else."""
    slowdown = topology.slowdown
    seeds = np.unique(slowdown, return_inverse=True)[1]
    ep = Family("ep", ranks, (ranks.shape[1],), "direct", shares=given)
    dp = Family("dp", ranks.T.copy(), (len(ranks),), "ring")
    calls = Collective("ep", "dispatch", 3e6), Collective("ep", "combine", 6e6), Collective("dp", "all_gather", 4e6)
    families = [(ep, calls[:2]), (dp, calls[2:])]
    [net] = all_links(topology, [Tenant(families, np.arange(ranks.size), seeds)], fold)
    env = simpy.Environment()
    fabric = Fabric(env, net.capacity)
    ends = {}
    for name in ("ep", "dp"):
        for cell, first in enumerate(net.cells.groups[name].first.tolist()):
            flows = [flow for call in calls if call.group == name for flow in net.flows(call)[cell]]
            if name == "ep":  # experts compute as long as the slowest has rows for
                rows = (np.array(given) * slowdown[ranks[first]]).max() * 1e-3
                activity = activity_of([Segment(0.0, flows[0]), Segment(rows, flows[1])])
            else:
                made = Activities({}, net)
                activity = made.activities[made.transfers(calls[2], [cell])[0]]
            fabric.start(activity, lambda _, key=(name, cell): ends.__setitem__(key, env.now))
    env.run()
    return net, {name: [ends[name, cell] for cell in net.cells.groups[name].of.tolist()] for name in ("ep", "dp")}


def test_a_slow_gpu_with_many_rows_is_not_like_one_with_few():
    topology = cases.cluster("switch", "none", "nvswitch", nodes=4, gpus=4)
    topology.slowdown[[0, 7]] = 1.3  # the first of its group, and the last of its group
    ranks = np.arange(16).reshape(4, 4)
    folded, ends = played(topology, ranks, zipf_shares(4, 2), True)
    assert len(set(folded.cells.groups["ep"].of[:2].tolist())) == 2
    assert ends["ep"][0] > ends["ep"][1]
    even, ends = played(topology, ranks, (0.25,) * 4, True)
    assert len(set(even.cells.groups["ep"].of[:2].tolist())) == 1
    assert ends["ep"][0] == ends["ep"][1]
