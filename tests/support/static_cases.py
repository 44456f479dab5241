"""Jobs whose steps the longest path and SimPy both play."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import job
from folding_cases import FABRICS, FAULTS
from hypothesis import strategies as st

from clustersim.engine.fabric import Activity, Segment

OPTIONS = {
    "nodes": st.sampled_from([2, 4]),
    "fabric": st.sampled_from(sorted(FABRICS)),
    "fault": st.sampled_from(sorted(FAULTS)),
    "split": st.sampled_from([(1, 1), (1, 4), (2, 2), (4, 2), (1, 2), (2, 4)]),
    "schedule": st.sampled_from(
        ["1f1b", "gpipe", "zero_bubble", "interleaved", "dualpipe", "dualpipev", "zbv", "v_min"]
    ),
    "zero": st.sampled_from([0, 1]),
    "reduce": st.booleans(),
    "gather": st.booleans(),
    "p2p": st.booleans(),
    "layers": st.sampled_from([8, 16]),
}


def asked(split, schedule, zero, reduce, gather, p2p, layers, batch, clocks=0.8, **other):
    chunks = 2 if schedule in ("interleaved", "dualpipev", "zbv", "v_min") else 1
    if split[1] == 1 and (chunks > 1 or schedule == "dualpipe"):
        schedule, chunks = "1f1b", 1
    return job(
        clocks=clocks,
        model__layers=layers,
        training__global_batch=batch,
        parallelism__tp=split[0],
        parallelism__pp=split[1],
        parallelism__vpp=chunks,
        parallelism__schedule=schedule,
        parallelism__zero=zero,
        parallelism__overlap__grad_reduce=reduce,
        parallelism__overlap__param_gather=bool(gather and zero),
        parallelism__overlap__p2p=p2p,
        parallelism__bucket=1_000_000,
        **other,
    )


def same(one, other, rel=1e-12):
    assert one["step_time_s"] == pytest.approx(other["step_time_s"], rel=rel)
    scale = other["step_time_s"]
    for key in ("breakdown_s", "critical_path_s"):
        for part, seconds in other.get(key, {}).items():
            assert one[key][part] == pytest.approx(seconds, rel=rel, abs=rel * scale), (key, part)


def by_label(record):
    """The begins and ends of nodes in the order of what tells them from each other."""
    order = np.lexsort(record.graph.labels)
    return record.starts[order], record.ends[order]


TWO_LEAVES = FABRICS["leaf-spine"].replace("down: 4, up: 4", "down: 16, up: 16")


def seconds(value):
    return Activity([Segment(value, None)])
