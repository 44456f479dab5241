"""An exchange among all is loaded on links without a route for each pair, and exactly as with one."""

from dataclasses import replace
from pathlib import Path

import fabric_cases as cases
import numpy as np
import pytest
from engine_cases import traffic
from examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from clustersim.collectives import all_to_all
from clustersim.collectives.all_to_all import all_pairs_loads
from clustersim.collectives.loads import PhaseLoads, bounds, pair_loads
from clustersim.collectives.model import AllPairs
from clustersim.config.yaml import parse
from clustersim.engine.network import Tenant, demand, folded
from clustersim.engine.traffic import Family
from clustersim.model.operator import Collective
from clustersim.model.sharding import zipf_shares
from clustersim.topology.build import build, load
from clustersim.topology.model import Topology

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
LARGE = (TOPOLOGIES / "fattree_3840.yaml").read_text(encoding="utf-8")
WEIGHTS = {
    "even": lambda n: (np.ones(n), np.full(n, 1 / n)),
    "dispatch": lambda n: (np.ones(n), np.array(zipf_shares(n, n**0.5))),
    "combine": lambda n: (np.array(zipf_shares(n, 1 + 0.2 * (n - 1))), np.ones(n)),
    "all to one": lambda n: (np.ones(n), np.array(zipf_shares(n, n))),
    "some to some": lambda n: (np.arange(n) % 3 / n, np.arange(n) // 2 % 2 / n),
}
GROUPS = {
    "all": lambda gpus, rng: np.arange(gpus)[None],
    "halves in disorder": lambda gpus, rng: rng.permutation(gpus // 2 * 2).reshape(2, -1),
    "across": lambda gpus, rng: np.arange(gpus).reshape(4, -1).T,
    "few anywhere": lambda gpus, rng: np.sort(rng.permutation(gpus)[:9]).reshape(3, 3),
}


def same(topology: Topology, ranks: np.ndarray, exchange: AllPairs) -> PhaseLoads:
    """Compare with the route of every pair: loads, latency and bound of every group, at once and segment by segment."""
    one, other = pair_loads(topology, ranks, exchange.pairs()), all_pairs_loads(topology, ranks, exchange)
    equal(topology, ranks, one, other)
    if topology.endpoint_classes().segments():
        for tried in (1 << 12, 1):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(all_to_all, "MANY", -1)
                patch.setattr(all_to_all, "SAMPLE", tried)
                equal(topology, ranks, one, all_pairs_loads(topology, ranks, exchange))
    return other


def equal(topology: Topology, ranks: np.ndarray, one: PhaseLoads, other: PhaseLoads) -> None:
    links = len(topology.capacity)
    a, b = (
        np.bincount(x.group * links + x.link, x.weight, len(ranks) * links).reshape(len(ranks), links)
        for x in (one, other)
    )
    np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-13)
    assert ((a > 0) == (b > 0)).all()
    np.testing.assert_allclose(other.latency, one.latency, rtol=1e-9)
    assert (np.diff(other.group) >= 0).all()
    rates = [bounds(topology, len(ranks), x.group, x.link, x.weight) for x in (one, other)]
    np.testing.assert_allclose(rates[0], rates[1], rtol=1e-9)


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(
    st.sampled_from(sorted(cases.FABRICS)),
    st.sampled_from(sorted(cases.FAULTS)),
    st.sampled_from(sorted(cases.INSIDE)),
    st.sampled_from(sorted(GROUPS)),
    st.sampled_from(sorted(WEIGHTS)),
    st.integers(0, 99),
)
def test_it_equals_the_routes_of_all_pairs(fabric, fault, inside, group, weight, seed):
    assume(fabric != "switch" or "%" not in str(cases.FAULTS[fault]))
    assume(fabric != "rail_only" or inside != "none")
    topology = cases.cluster(fabric, fault, inside)
    ranks = GROUPS[group](topology.gpus, np.random.default_rng(seed))
    n = ranks.shape[1]
    same(topology, ranks, AllPairs(n - 1, *WEIGHTS[weight](n)))


@pytest.mark.parametrize("fabric", sorted(cases.FABRICS))
def test_neither_blocks_nor_the_order_of_summing_matter(fabric, monkeypatch):
    topology = cases.cluster(fabric, "dead NIC", "nvswitch")
    monkeypatch.setattr(all_to_all, "BLOCK", 7)
    monkeypatch.setattr(all_to_all, "_DENSE", 0)
    same(topology, np.arange(32).reshape(2, 16), AllPairs(15, *WEIGHTS["dispatch"](16)))


def test_a_router_that_says_nothing_is_asked_for_every_pair():
    topology = cases.cluster("static", "none", "nvswitch")
    mute = replace(topology, router=topology.router.__call__)
    found = same(mute, np.arange(32)[None], AllPairs(31, *WEIGHTS["even"](32)))
    assert all(
        (feeder == len(topology.capacity)).all() for _, feeder in found.feeders
    )  # nothing is known to come through


@pytest.mark.parametrize("fabric", sorted(cases.FABRICS))
@pytest.mark.parametrize("fault", ["none", "dead NIC", "dead and slow"])
def test_all_bytes_of_a_link_come_through_its_feeders(fabric, fault):
    if fabric == "switch" and "%" in str(cases.FAULTS[fault]):
        return
    topology = cases.cluster(fabric, fault, "nvswitch")
    ranks = np.arange(32)[None]
    found = all_pairs_loads(topology, ranks, AllPairs(31, *WEIGHTS["even"](32)))
    pairs = AllPairs(31, *WEIGHTS["even"](32)).pairs()
    routes = topology.route(pairs.source, pairs.destination)
    all_to_all = [set(part.tolist()) for part in np.split(routes.links, routes.start[1:-1])]
    for link, feeder in found.feeders:
        assert np.array_equal(np.unique(link), np.unique(found.link))
        of: dict[int, set[int]] = {}
        for a, b in zip(link.tolist(), feeder.tolist(), strict=True):
            of.setdefault(a, set()).add(b)
        for way in all_to_all:
            for crossed in way:
                assert of[crossed] & way or len(topology.capacity) in of[crossed]


VARIANTS = {
    "adaptive": LARGE,
    "static": LARGE.replace("mode: adaptive", "mode: dmodk"),
    "no rails": LARGE.replace("rails: optimized", "rails: none").replace("  scalable_unit: 32 ", "  # "),
}
VARIANTS["static, no rails"] = VARIANTS["no rails"].replace("mode: adaptive", "mode: dmodk")


@pytest.mark.parametrize("name", VARIANTS)
def test_all_gpus_of_a_large_cluster(name):
    """(n-8)/n of S leaves by each NIC and arrives by each; what leaves on all NICs is what leaves all leaves and stays."""
    topology = build(parse(VARIANTS[name], "large.yaml"))
    n = topology.gpus
    assert n == 30720
    [found] = traffic(topology, Family("ep", np.arange(n)[None], (n,), "direct"), "all_to_all")
    load = np.bincount(found.link, found.weight, len(topology.capacity))
    tiers = {tier.name: load[tier.first : tier.first + tier.links] for tier in topology.tiers}
    np.testing.assert_allclose(tiers["nic-up"], (n - 8) / n, rtol=1e-9)
    np.testing.assert_allclose(tiers["nic-down"], (n - 8) / n, rtol=1e-9)
    assert tiers["leaf-up"].sum() == pytest.approx(tiers["leaf-down"].sum())
    under = 4 if "no rails" in name else 32  # nodes of a leaf
    assert tiers["leaf-up"].sum() == pytest.approx(n * (3840 - under) * 8 / n)
    beside = 0 if "no rails" in name else 7 / 8  # PXN to 7 of 8 rails
    np.testing.assert_allclose(tiers["nvlink-up"], 7 / n + beside * (n - 8) / n, rtol=1e-9)


def test_all_gpus_of_a_large_torus():
    """Each of 16 x 16 x 16 nodes sends (n-1)/n of S on; a ring of 16 carries 2 bytes a node and way for each of 16² · 16."""
    topology = load(TOPOLOGIES / "torus_4096.yaml")
    n = topology.gpus
    assert topology.nodes == n == 4096
    [found] = traffic(topology, Family("ep", np.arange(n)[None], (n,), "direct"), "all_to_all")
    load_ = np.bincount(found.link, found.weight, len(topology.capacity))
    rings = [tier for tier in topology.tiers if tier.name[0] in "xyz" and tier.name[1] == "-"]
    assert len(rings) == 6
    for ring in rings:  # the mean way in a ring of 16 is 4 links, half of them each way
        np.testing.assert_allclose(load_[ring.first : ring.first + ring.links], 2, rtol=1e-9)
    far = topology.route(np.array([0]), np.array([8 + 8 * 16 + 8 * 256]))
    assert found.latency[0] == pytest.approx((n - 1) * far.latency[0])


def test_a_large_group_folds():
    topology = build(parse(LARGE, "large.yaml"))
    n = topology.gpus
    family = Family("ep", np.arange(n)[None], (n,), "direct")
    tenant = Tenant([(family, [Collective("ep", "all_to_all", 1e9)])], np.arange(n), np.zeros(n, np.int64))
    found = demand(topology, [tenant])
    assert len(folded(found).ranks.first) == 1


@pytest.mark.parametrize(("groups", "n"), [(3840, 8), (480, 64), (15, 2048)])
def test_many_groups(groups, n):
    """Groups that fill whole nodes: (n-8)/n of S on every NIC, whichever way they are loaded."""
    topology = build(parse(LARGE, "large.yaml"))
    [found] = traffic(topology, Family("ep", np.arange(30720).reshape(groups, n), (n,), "direct"), "all_to_all")
    nics = next(tier for tier in topology.tiers if tier.name == "nic-up")
    load = np.bincount(found.link, found.weight, len(topology.capacity))[nics.first : nics.first + nics.links]
    np.testing.assert_allclose(load, (n - 8) / n, atol=1e-9)
    assert len(found.link) < 1_000_000
