"""A job on the links that prove to be short is the job on all links."""

import numpy as np
import pytest
from engine_cases import cluster, simulate
from examples import examples
from folding_cases import FABRICS, FAULTS, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustersim.engine.fold import adaptive
from clustersim.engine.fold.saturation import saturated_links

MANY = "parallelism__overlap__p2p"


@pytest.fixture(autouse=True)
def leave_links_out(monkeypatch):
    """Leave links out for as long as none proves to be short, however few classes there are and however little is gained."""
    monkeypatch.setattr(adaptive, "MIN_CLASSES_TO_FOLD", 0)
    monkeypatch.setattr(adaptive, "MIN_FOLDING_GAIN", 0)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    nodes=st.sampled_from([4, 8]),
    fabric=st.sampled_from(["static", "4 to 1", "hashed", "leaf-spine"]),
    fault=st.sampled_from(sorted(FAULTS)),
    split=st.sampled_from([(1, 4), (2, 2), (4, 2), (1, 2), (2, 4)]),
    schedule=st.sampled_from(["1f1b", "gpipe"]),
    zero=st.sampled_from([0, 1]),
    overlap=st.booleans(),
    wait=st.booleans(),
    algorithm=st.sampled_from(["ring", "nccl", "hierarchical"]),
)
def test_leaving_links_out_changes_nothing(nodes, fabric, fault, split, schedule, zero, overlap, wait, algorithm):
    topology = cluster(nodes, fabric=FABRICS[fabric], extra=FAULTS[fault])
    options = {
        "parallelism__tp": split[0],
        "parallelism__pp": split[1],
        "parallelism__schedule": schedule,
        "parallelism__zero": zero,
        "parallelism__algorithms__dp": algorithm,
        "parallelism__overlap__grad_reduce": overlap,
        MANY: not wait,
        "parallelism__bucket": 1_000_000,
    }
    same(simulate(topology, **options), simulate(topology, fold=False, **options))


def test_links_that_are_never_short_cost_no_classes(monkeypatch):
    """Static routes part alike ranks; where they never meet at one time, these are alike again."""
    topology = cluster(16, fabric=FABRICS["static"].replace("radix: 16", "radix: 64"))
    options = {"parallelism__tp": 2, "parallelism__pp": 4, "training__global_batch": 32}
    few = simulate(topology, **options)
    monkeypatch.setattr(adaptive, "MIN_CLASSES_TO_FOLD", 1 << 20)
    every = simulate(topology, **options)
    counts = [one.summary["simulated"] for one in (few, every)]
    assert counts[0]["links_that_can_be_short"] < counts[1]["links_that_can_be_short"]
    assert 2 * counts[0]["rank_classes"] <= counts[1]["rank_classes"]
    assert few.summary["step_time_s"] == pytest.approx(every.summary["step_time_s"], rel=1e-12)


@pytest.mark.parametrize("fabric", ["static", "4 to 1", "hashed"])
def test_overfull_finds_every_link_that_could_be_short(fabric, monkeypatch):
    """Against the definition: at the beginning of each transfer, add up what all that is under way asks for."""
    seen = []

    def look(demand, nets, records):
        seen.append((demand, nets[0], records[0][0]))
        return saturated_links(demand, nets, records)

    monkeypatch.setattr(adaptive, "saturated_links", look)
    options = {"parallelism__tp": 2, "parallelism__pp": 2, MANY: True}
    simulate(cluster(8, fabric=FABRICS[fabric]), **options)
    assert seen
    for demand, net, record in seen:
        found = saturated_links(demand, [net], [[record]])
        asked = largest(demand, net, record) / demand.topology.capacity[demand.links]
        assert (found == (asked > 1 + 1e-9)).all()


def largest(demand, net, record):
    """Return the most bytes/s that are asked of each link at one time."""
    ask = {}
    parts = [(variant[0], t) for variant, ts in net.traffic.items() for t in ts]
    for (family, t), loads in zip(parts, demand.loads, strict=True):
        cell = net.cells.groups[family].of[loads.group]
        for c in set(cell.tolist()):
            of = cell == c
            own = np.bincount(loads.link[of], (loads.weight * t.bound[loads.group])[of], len(demand.links))
            ask[family, c] = np.maximum(ask.get((family, c), 0.0), own)
    spans = [s for s in record.spans if s.activity is not None]
    under_way = {(v[0], c, s.start, s.end) for s in spans for v, c in s.carried if (v[0], c) in ask}
    peak = np.zeros(len(demand.links))
    for moment in {start for *_, start, _ in under_way}:
        now = [ask[family, c] for family, c, start, end in under_way if start <= moment < end]
        peak = np.maximum(peak, np.sum([np.zeros(len(peak)), *now], axis=0))
    return peak
