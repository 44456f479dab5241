"""Context parallelism: the work of each rank, the bytes on the network, what hides, and what does not go together."""

import math
import re

import pytest
from engine_cases import cluster, job, simulate
from fsdp_cases import sent
from law_cases import free
from sweep_cases import parsed

from clustersim.errors import ConfigError
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective
from clustersim.model.sharding import documents
from clustersim.parallel.memory import at_rest
from clustersim.parallel.stages import stages
from clustersim.simulation import run

TYPES = ({"cp_type": "all_gather"}, {"cp_type": "p2p"}, {"cp_type": "a2a"}, {"cp_type": "a2a+p2p", "cp_inner": 2})
NAMES = ["all_gather", "p2p", "a2a", "a2a+p2p"]


def split(kind, cp=4, **more):
    return {f"parallelism__{key}": value for key, value in {"cp": cp, **kind, **more}.items()}


def flop(one, kind="flash_attention"):
    return sum(
        step.flop
        for stage in stages(one)
        for part in (stage.forward, stage.backward)
        for step in part
        if isinstance(step, Kernel) and step.kind == kind
    )


@pytest.mark.parametrize("kind", TYPES, ids=NAMES)
@pytest.mark.parametrize("causal", [True, False])
def test_each_rank_does_a_cp_th_of_attention_and_of_all_products(kind, causal):
    model = {"model__causal": causal, "model__kv_heads": 4}
    whole, part = job(**model).place(4, 4), job(**model, **split(kind)).place(4, 4)
    for which in ("flash_attention", "linear"):
        assert 4 * flop(part, which) == pytest.approx(flop(whole, which), rel=1e-12)


@pytest.mark.parametrize("release, repeated", [("torchtitan-2024", 4), ("torchtitan-2025", 4), ("torchtitan", 1)])
def test_torchtitan_repeats_keys_before_it_gathers_them_until_2026(release, repeated):
    """models/llama3/model/model.py: repeat_kv until its PR 2259."""
    options = {"model__heads": 16, "model__kv_heads": 4, **split(TYPES[0])}
    sizes = []
    for framework in (release, "megatron-core"):
        [stage] = stages(job(**options, training__framework=framework).place(4, 4))
        own = [step for step in stage.forward if isinstance(step, Collective) and step.group == "cp"]
        sizes.append(sum(step.size for step in own))
    assert sizes[0] == pytest.approx(repeated * sizes[1])


@pytest.mark.parametrize("kind", TYPES, ids=NAMES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cp", [8, 32])
@pytest.mark.parametrize("mean", [1, 15, 60, 100, 1000])
def test_documents_cut_over_ranks_lose_no_work(kind, causal, cp, mean):
    """Documents are padded to a multiple of 2·cp; an all-to-all leaves them whole."""
    words = {"training__packed": {"mean": mean, "spread": 0}, "training__seq": 2048}
    words |= {"model__causal": causal, "model__heads": 32}
    whole, part = job(**words).place(cp, 8), job(**words, **split(kind, cp)).place(cp, 8)
    _, length = documents(whole.training)
    padded = length if kind["cp_type"] == "a2a" else math.ceil(length / (2 * cp)) * 2 * cp
    assert cp * flop(part) == pytest.approx(flop(whole) * (padded / length) ** 2, rel=1e-12)


def test_an_all_to_all_of_short_documents_exchanges_all_tokens():
    words = {"model__heads": 32, "training__seq": 2048, **split({"cp_type": "a2a"}, 32)}
    one, packed = (job(**words, training__packed=kind).place(32, 8) for kind in (None, {"mean": 15, "spread": 0}))
    sizes = [
        [step.size for step in stages(case)[0].forward if isinstance(step, Collective) and step.op == "all_to_all"]
        for case in (one, packed)
    ]
    assert sizes[0] == sizes[1] != []


def test_a_cut_sequence_leaves_activations_of_a_cp_th_and_all_parameters():
    whole, part = job(parallelism__dp=1).place(8, 8), job(parallelism__dp=1, **split(TYPES[1], 8)).place(8, 8)
    [one], [other] = stages(whole), stages(part)
    assert 8 * other.saved_bytes == pytest.approx(one.saved_bytes)
    assert other.parameters == one.parameters
    assert other.output_bytes == one.output_bytes == 0
    assert at_rest(part, [other]).parameters == at_rest(whole, [one]).parameters


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        # keys and values (2 of 512 values) forward and backward, and their gradients; a2a: queries and output besides, of
        # which 3 of 4 parts leave a rank; both: 1 of 2 parts of these, and half of the heads on twice the tokens in rings of two
        ({"cp_type": "all_gather"}, 3 * 3 * 2),
        ({"cp_type": "p2p"}, (1 + 2) * 3 * 2),
        ({"cp_type": "a2a"}, 2 * 3 / 4 * 4),
        ({"cp_type": "a2a+p2p", "cp_inner": 2}, 2 * 1 / 2 * 4 + (1 + 2) * 1 * 2),
    ],
    ids=NAMES,
)
def test_bytes_on_nics_are_those_of_the_closed_form(kind, times):
    """With one GPU a node, all that attention exchanges crosses NICs, beside the gradients of all parameters."""
    options = {
        "training__global_batch": 2,
        "parallelism__algorithms__dp": "ring",
        "parallelism__algorithms__cp": "ring",
    }
    if "a2a" in kind["cp_type"]:
        options["parallelism__algorithms__cp"] = "direct"
    result = run(cluster(4, gpus=1, nics=1), job(**options, **split(kind)), ignore_memory=True)
    layers, microbatches, tokens = 8, 2, 256 // 4
    [stage] = stages(result.job)
    gradients = 2 * 3 / 4 * 4 * stage.parameters
    assert sent(result) == pytest.approx(times * layers * microbatches * tokens * 512 * 2 + gradients, rel=1e-12)


def test_gradients_are_reduced_over_dp_times_cp():
    options = {"training__global_batch": 16, "parallelism__algorithms__dp": "ring", "parallelism__zero": 1}
    result = run(cluster(4, gpus=2, nics=2), job(**options, **split(TYPES[1], 2)), ignore_memory=True)
    assert result.job.dp == 4
    assert result.job.copies(expert=False) == 8
    groups = result.plan.network.cells.groups
    assert len(groups["dp"].of) == 1
    assert len(groups["cp"].of) == 4


def test_on_a_network_that_costs_nothing_a_ring_takes_a_cp_th_and_the_merging_of_its_outputs():
    model = parsed("model.layers=2 seq=8192 model.hidden=1024 model.heads=8 global_batch=1")
    whole = run(free(1), job(**model), ignore_memory=True)
    part = run(free(4), job(**model, **split(TYPES[1])), ignore_memory=True)
    merged = 2 * 3 * 8192 // 4 * 1024 * 3 * 2 / whole.topology.gpu.memory_bandwidth
    ratio = (part.summary["breakdown_s"]["compute"] - merged) / whole.summary["breakdown_s"]["compute"]
    assert 1 / 4 <= ratio < 0.265  # sums of gradients into those of all parameters are not of the sequence
    plans = part.plan.network.plans.items()
    [forward, backward] = [(call, next(iter(own.values()))) for call, own in plans if call.op == "ring_exchange"]
    messages = math.fsum(own.latency + call.size / own.rate for call, own in (forward, backward))
    assert part.summary["breakdown_s"]["cp"] < 2 * messages  # of two layers: what NCCL's kernels take is what is left


def test_a_ring_hides_behind_attention_where_that_is_longer_and_shows_where_it_is_not():
    long = {"model__layers": 2, "model__hidden": 2048, "model__heads": 16, "training__global_batch": 1}
    exposed = {
        (seq, name): simulate(cluster(4, gpus=1, nics=1), training__seq=seq, **long, **split(kind)).summary[
            "breakdown_s"
        ]["cp"]
        for seq in (4096, 524288)
        for kind, name in zip(TYPES[:2], NAMES, strict=False)
    }
    assert exposed[524288, "p2p"] < 0.05 * exposed[524288, "all_gather"]
    assert exposed[4096, "p2p"] > 0.3 * exposed[4096, "all_gather"]


REFUSED = {
    "cp=512": "parallelism.cp: 512 ranks cannot share 256 tokens; use at most 256",
    "cp=3": "training.seq: 256 does not divide into the 6 chunks of cp 3; pad it",
    "cp=16 parallelism.cp_type=a2a": (
        "parallelism.cp: 16 ranks exchange heads, and tp 1 × 16 does not divide 8 attention heads; use 1, 2, 4, "
        "8 or cp_type p2p"
    ),
    "cp=8 parallelism.cp_type=a2a+p2p": (
        "parallelism.cp_type: a2a+p2p cuts cp 8 into groups that exchange heads; set parallelism.cp_inner to one "
        "of 2, 4"
    ),
    "cp=4 parallelism.cp_inner=2": "parallelism.cp_inner: 2 is for cp_type a2a+p2p, not p2p; leave it out",
    "cp=4 tp=2 pp=4 dp=2": "the cluster is too small: tp 2 × cp 4 × pp 4 × dp 2 needs 64 GPUs, there are 8",
    "cp=4 training.attention=unfused": "training.attention: unfused runs on whole sequences, not with cp 4; use flash",
    "cp=4 model.window=64": "parallelism.cp_type: p2p has no sliding windows; use all_gather or a2a",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_does_not_go_together_is_one_sentence(options):
    with pytest.raises(ConfigError, match=re.escape(REFUSED[options])):
        run(cluster(2), job(**parsed(options)), ignore_memory=True)
