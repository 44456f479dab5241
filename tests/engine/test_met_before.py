"""A job that a cluster met before is answered from the cluster's cache: the answers are those of a cluster that knows nothing."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import cluster, job
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.engine.compile import demand_of
from clustersim.engine.network import folded, networks
from clustersim.errors import ConfigError
from clustersim.simulation import Simulator, run

SLOW = "faults: [{gpu: 3, slowdown: 1.5}]"
SPLITS = st.fixed_dictionaries(
    {
        "parallelism__tp": st.sampled_from([1, 2, 4]),
        "parallelism__pp": st.sampled_from([1, 2, 4]),
        "parallelism__schedule": st.sampled_from(["1f1b", "dualpipe", "dualpipev"]),
        "parallelism__zero": st.sampled_from([0, 1]),
        "parallelism__algorithms": st.sampled_from([{}, {"dp": "ring"}, {"tp": "hierarchical", "model": "tree"}]),
        "training__micro_batch": st.sampled_from([1, 2]),
        "training__seq": st.sampled_from([128, 4096]),
    }
)


def _steps(topology, fold, splits):
    found = []
    for split in splits:
        chunks = 2 if split["parallelism__schedule"] == "dualpipev" else 1
        try:
            result = run(topology, job(**split, parallelism__vpp=chunks), fold=fold, ignore_memory=True)
        except ConfigError as error:
            found.append(str(error))
            continue
        own = result.summary
        found.append((own["step_time_s"], own["breakdown_s"], own["busiest_links"], own["simulated"]["rank_classes"]))
    return found


@settings(max_examples=examples(8), deadline=None)
@given(splits=st.lists(SPLITS, min_size=2, max_size=4), extra=st.sampled_from(["", SLOW]), fold=st.booleans())
def test_a_job_met_before_takes_what_it_takes_on_a_new_cluster(splits, extra, fold):
    def fresh():
        return cluster(4, extra=extra)

    known = fresh()
    _steps(known, fold, splits)
    assert _steps(known, fold, splits) == [one for split in splits for one in _steps(fresh(), fold, [split])]


def _drafted(topology, **split):
    work, _, _ = Simulator(topology).prepare(job(**split).place(16, 4), np.arange(16))
    return demand_of([work], topology)


def test_other_sizes_find_the_same_traffic_and_cells():
    topology, split = cluster(4), {"parallelism__tp": 2, "parallelism__pp": 2, "training__seq": 4096}
    one = _drafted(topology, **split)  # whose messages are large enough for all of NCCL's channels
    other = _drafted(topology, **split, training__micro_batch=2)
    assert one.plans[0].keys() != other.plans[0].keys()
    assert one.loads is other.loads
    assert folded(one).ranks.of is folded(other).ranks.of
    assert networks(one, folded(one))[0].loads is networks(other, folded(other))[0].loads


def test_other_splits_and_other_places_are_other_questions():
    topology = cluster(4)
    kinds = [{"tp": 2, "pp": 2}, {"tp": 4, "pp": 1}, {"tp": 2, "pp": 4}, {"tp": 2, "pp": 2, "zero": 1}]
    keys = {_drafted(topology, **{f"parallelism__{k}": v for k, v in one.items()}).key for one in kinds}
    assert len(keys) == len(kinds)
    small = job(parallelism__tp=2, parallelism__dp=2)
    for gpus in ([0, 1, 2, 3], [0, 1, 4, 5]):
        work, _, _ = Simulator(topology).prepare(small.place(4, 4), np.array(gpus))
        keys.add(demand_of([work], topology).key)
    assert len(keys) == len(kinds) + 2


def test_what_is_shared_cannot_be_written_to():
    demand = _drafted(cluster(4), parallelism__tp=2, parallelism__pp=2)
    with pytest.raises(ValueError, match="read-only"):
        demand.links[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        demand.loads[0].weight[:] = 0.0
