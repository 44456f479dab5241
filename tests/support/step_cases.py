"""Jobs of all kinds on clusters of all kinds, and what their steps have that two engines or two folds must agree on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_cases import cluster, job
from folding_cases import FABRICS, FAULTS
from hypothesis import reject
from hypothesis import strategies as st
from sweep_cases import each_of, keywords

from clustersim.errors import InputError
from clustersim.parallel.job import Job
from clustersim.topology.model import Topology

CHUNKS = {"interleaved": 2, "dualpipev": 2, "zbv": 2, "v_min": 2}
SPLITS = [
    {"tp": 1, "pp": 1}, {"tp": 2, "pp": 2}, {"tp": 4, "pp": 2}, {"tp": 1, "pp": 2}, {"tp": 1, "pp": 4},
    {"tp": 2, "pp": 4}, {"tp": 1, "pp": 2, "cp": 2}, {"tp": 2, "pp": 1, "cp": 2}, {"tp": 1, "pp": 1, "cp": 4},
]  # fmt: skip
SCHEDULES = ["1f1b", "gpipe", "zero_bubble", "interleaved", "dualpipe", "dualpipev", "zbv", "v_min"]
OPTIONS = keywords(
    "parallelism.overlap__grad_reduce=[false,true] parallelism.overlap__param_gather=[false,true] "
    "parallelism.overlap__p2p=[false,true] parallelism.overlap__tp=[none,none,bulk,ring,async] "
    "parallelism.scatter_gather=[false,false,true] parallelism.cp_type=[all_gather,p2p,a2a,a2a+p2p] "
    "parallelism.algorithms__dp=[nccl,nccl,ring,tree,hierarchical,neusight_hierarchical] "
    "parallelism.bucket=[1000000] recompute=[none,none,selective,full] model.layers=[8,16] training.precision=[bf16,bf16,fp8] "
    "model.tied_embeddings=[true,false] training.clip_gradients=[true,false]"
)
EXPERTS = keywords(
    "model.experts=[4] model.topk=[2] model.shared_experts=[0,1] model.dense_layers=[0,0,1] ep=[1,2,2,4,4] "
    "parallelism.expert_tp=[null,null,1,2] parallelism.overlap__ep=[none,shared,microbatch,microbatch] "
    "parallelism.algorithms__ep=[nccl,nccl,deepep] training.expert_imbalance=[1,1.7]"
)
FSDP = keywords(
    "shard=[null,2] forward_prefetch=[0,1,2] backward_prefetch=[0,1] reshard_after_forward=[null,true,false] "
    "no_sync=[null,true,false] reduce_in_flight=[0,1,2]"
)
LORA = [
    {"rank": 8, "targets": targets, "base": base, "dropout": 0.1, "a2a": True}
    for targets in (
        ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
        ["linear_proj"],
        ["linear_qkv", "linear_fc1"],
    )
    for base in (None, "nf4")
]
POLICIES = [{"recompute_saves": ["op"]}, {"recompute_saves": ["minimal"]}, {"recompute_every": 2}]
LOSSES = keywords("parallelism.overlap__sms=[0,24,100,nccl] parallelism.overlap__memory=[0,0.5,nccl] seq=[256,2048]")
FRAMEWORKS = ["megatron-core", "megatron-deepspeed", "fsdp"]


@st.composite
def clusters(draw: Any, nodes: tuple[int, ...] = (2, 4)) -> Topology:
    """Return a cluster of a few nodes of four GPUs, healthy or not, with one NIC a node or four, and hosts of any speed."""
    nics, attach = draw(st.sampled_from([(4, "per_gpu"), (1, "shared")]))
    fabric, fault = draw(st.sampled_from(sorted(FABRICS))), draw(st.sampled_from(sorted(FAULTS)))
    try:
        found = cluster(draw(st.sampled_from(nodes)), 4, nics, attach, FABRICS[fabric], FAULTS[fault])
    except InputError:  # rails need a NIC each
        reject()
    return replace(found, host_slowdown=draw(st.sampled_from([1.0, 1.0, 0.05, 0.3, 3.0])))


def fit(asked: dict[str, Any], split: dict[str, int], zero: int) -> None:
    """Change what does not go together with a split or with ZeRO."""
    asked["parallelism__overlap__param_gather"] &= zero == 1
    if zero and asked["parallelism__algorithms__dp"] in ("tree", "neusight_hierarchical"):
        asked["parallelism__algorithms__dp"] = "ring"  # the others have no all-gather
    if split["tp"] == 1:
        asked["parallelism__overlap__tp"] = "none"
    if split.get("cp", 1) == 1:
        del asked["parallelism__cp_type"]
    elif asked["parallelism__cp_type"] == "a2a+p2p":
        asked |= {"parallelism__cp_inner": 2} if split["cp"] == 4 else {"parallelism__cp_type": "p2p"}


def spread(asked: dict[str, Any], schedule: str) -> dict[str, Any]:
    """Return options of experts that go together with each other and a schedule."""
    overlap = asked["parallelism__overlap__ep"]
    exchanged = asked["parallelism__ep"] > 1
    paired = schedule.startswith("dualpipe") or schedule == "interleaved" or asked["parallelism__pp"] == 1
    beside = {"shared": exchanged and asked["model__shared_experts"], "microbatch": exchanged and paired}
    asked["training__expert_imbalance"] = asked["training__expert_imbalance"] if exchanged else 1
    even = asked["training__expert_imbalance"] == 1
    asked["parallelism__algorithms__ep"] = asked["parallelism__algorithms__ep"] if exchanged and even else "nccl"
    return asked | {"parallelism__overlap__ep": overlap if beside.get(overlap) else "none"}


@st.composite
def jobs(draw: Any, gpus: int, microbatches: tuple[int, int] = (4, 12), losses: bool = True) -> Job:
    """Return a job on some GPUs. microbatches: fewest and most. losses: whether something may slow computation."""

    def drawn(choices: dict[str, list[Any]]) -> dict[str, Any]:
        return draw(each_of(choices))

    split, schedule = draw(st.sampled_from(SPLITS)), draw(st.sampled_from(SCHEDULES))
    if split["pp"] == 1:
        schedule = "1f1b"
    zero = draw(st.sampled_from([0, 1, 3]))
    asked = {f"parallelism__{name}": size for name, size in split.items()} | drawn(OPTIONS)
    if draw(st.booleans()):
        asked |= spread(asked | drawn(EXPERTS), schedule)
    if losses and draw(st.booleans()):
        asked |= drawn(LOSSES)
    if losses and draw(st.integers(0, 2)) == 0:
        asked["training__framework"] = draw(st.sampled_from(FRAMEWORKS))
    if zero == 3 and draw(st.booleans()):
        asked |= {f"parallelism__fsdp__{name}": value for name, value in drawn(FSDP).items()}
        if schedule not in ("1f1b", "gpipe", "interleaved"):
            asked["parallelism__fsdp__no_sync"] = None  # false needs whole backward passes
    if "model__experts" not in asked and draw(st.integers(0, 3)) == 0:
        asked |= {"training__lora": draw(st.sampled_from(LORA)), "training__precision": "bf16"}
    if asked["training__recompute"] == "full" and draw(st.booleans()):
        asked |= {f"training__{name}": value for name, value in draw(st.sampled_from(POLICIES)).items()}
    asked |= {"parallelism__schedule": schedule, "parallelism__vpp": CHUNKS.get(schedule, 1), "parallelism__zero": zero}
    fit(asked, split, zero)
    whole = asked["parallelism__scatter_gather"] and asked["parallelism__overlap__tp"] == "none"
    asked["parallelism__sequence_parallel"] = (
        split["tp"] > 1 and asked["parallelism__overlap__tp"] != "bulk" and not whole
    )
    copies = gpus // (split["tp"] * split["pp"] * split.get("cp", 1)) or 1
    asked["training__global_batch"] = copies * split["pp"] * draw(st.integers(*microbatches))
    try:
        return job(**asked)
    except InputError:  # not all of these go together
        reject()


def same(one: dict[str, Any], other: dict[str, Any], rel: float = 1e-11) -> None:
    """Assert that two summaries have the same step and parts of it."""
    assert one["step_time_s"] == pytest.approx(other["step_time_s"], rel=rel)
    scale = other["step_time_s"]
    for key in ("breakdown_s", "critical_path_s"):
        for part, seconds in other.get(key, {}).items():
            assert one[key][part] == pytest.approx(seconds, rel=rel, abs=rel * scale), (key, part)
