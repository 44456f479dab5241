"""Folded = unfolded on every kind of fabric, with every kind of fault."""

from __future__ import annotations

import pytest
from engine_cases import simulate
from examples import examples
from fabric_cases import FABRICS, FAULTS, INSIDE, LARGE, cluster
from folding_cases import same
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from clustersim.errors import ConfigError

_HOSTS = ", ".join(f"{{a: 'node[{n}]', b: l{n // 2}, rate: 400Gb/s}}" for n in range(8))
_TRUNKS = ", ".join(
    f"{{a: l{leaf}, b: s{spine}, rate: {100 * (spine + 1)}Gb/s, latency: 300ns, count: 2}}"
    for leaf in range(4)
    for spine in range(3)
)
_GRAPH = f"{{kind: explicit, nodes: [l0, l1, l2, l3, s0, s1, s2], links: [{_HOSTS}, {_TRUNKS}]"
FABRICS |= {
    "explicit": f"{_GRAPH}}}",
    "hashed explicit": f"{_GRAPH}, routing: {{mode: ecmp, qps: 2, seed: 1}}}}",
    "first explicit": f"{_GRAPH}, routing: {{mode: first}}}}",
}


@settings(
    max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(
    fabric=st.sampled_from(sorted(FABRICS)),
    fault=st.sampled_from(sorted(FAULTS)),
    inside=st.sampled_from(sorted(INSIDE)),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    overlap=st.booleans(),
    algorithm=st.sampled_from(["ring", "tree", "hierarchical", "direct"]),
)
def test_folded_equals_unfolded(fabric, fault, inside, tp, pp, overlap, algorithm):
    assume(fabric != "switch" or "%" not in str(FAULTS[fault]))
    assume(fabric != "rail_only" or inside != "none")
    topology = cluster(fabric, fault, inside)
    assume(topology.gpus % (tp * pp) == 0)
    options = {
        "parallelism__tp": tp,
        "parallelism__pp": pp,
        "training__global_batch": topology.gpus,
        "parallelism__algorithms__dp": algorithm,
        "parallelism__overlap__grad_reduce": overlap,
        "parallelism__bucket": 1_000_000,
    }
    same(simulate(topology, **options), simulate(topology, fold=False, **options))


@pytest.mark.parametrize("fabric", sorted(FABRICS))
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_every_kind_takes_every_fault(fabric, fault):
    if fabric == "switch" and "%" in str(FAULTS[fault]):
        with pytest.raises(ConfigError, match="is not a link"):
            cluster(fabric, fault, "nvswitch")
        return
    cluster(fabric, fault, "nvswitch")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fabric", [f for f in sorted(FABRICS) if "radix: 16" in FABRICS[f] and f not in ("bundles", "static", "hashed")]
)
def test_folded_equals_unfolded_on_512_gpus(fabric, monkeypatch):
    monkeypatch.setitem(FABRICS, fabric, FABRICS[fabric].replace("radix: 16", "radix: 256"))
    topology = cluster(fabric, "slow GPU", "nvswitch", nodes=64, gpus=8)
    options = {"parallelism__tp": 4, "parallelism__pp": 4, "training__global_batch": 128}
    same(simulate(topology, **options), simulate(topology, fold=False, **options))


@pytest.mark.slow
@pytest.mark.parametrize("fabric", sorted(LARGE))
@pytest.mark.parametrize("fault", ["none", "dead and slow"])
def test_folded_equals_unfolded_on_512_gpus_without_tiers(fabric, fault, monkeypatch):
    monkeypatch.setitem(FABRICS, fabric, LARGE[fabric])
    topology = cluster(fabric, fault, "nvswitch", nodes=64, gpus=8)
    options = {"parallelism__tp": 4, "parallelism__pp": 4, "training__global_batch": 128}
    same(simulate(topology, **options), simulate(topology, fold=False, **options))
