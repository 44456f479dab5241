"""DeepEP sends a token once to each node that has experts of it: by enumeration, closed forms, and what its authors measured."""

from itertools import combinations
from math import comb

import pytest
from engine_cases import job

from clustersim import simulate as forecast
from clustersim.collectives.model import Group, phases
from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.model.router import ExpertRouter, visited
from clustersim.simulation import run
from clustersim.topology import build as topologies

MEASURED = [(2, 43, 43), (4, 58, 57), (8, 51, 50)]
"""Nodes of 8 H800 with 400 Gb/s each, GB/s of dispatch in fp8 and of combine in bf16, a token counted once for each of its nodes,
its own too (deepseek-ai/DeepEP, docs/legacy.md: 4096 tokens a GPU, hidden 7168, 8 of 256 experts, at most 4 nodes a token)."""
PRETRAINING = 14.8e12 / (2.664e6 * 3600)
"""Tokens a second and GPU: 14.8T in 2.664 million hours of H800, lost time included (DeepSeek-V3, arXiv 2412.19437, table 1)."""
SMALL = [
    ExpertRouter(8, 2),
    ExpertRouter(8, 3, 4, 2),
    ExpertRouter(8, 2, 2, 1),
    ExpertRouter(12, 4, 4, 2),
    ExpertRouter(12, 3, 6, 3),
    ExpertRouter(6, 6),
]


@pytest.mark.parametrize("router", SMALL)
@pytest.mark.parametrize("places", [1, 2, 3, 4, 6])
def test_visits_are_the_mean_over_all_choices_of_a_router(router, places):
    size, bounds = router.experts // router.groups, [round(i * router.experts / places) for i in range(places + 1)]
    place = [next(i for i in range(places) if bounds[i] <= one < bounds[i + 1]) for one in range(router.experts)]
    met = []
    for groups in combinations(range(router.groups), router.group_topk):
        known = [one for one in range(router.experts) if one // size in groups]
        met += [len({place[one] for one in chosen}) for chosen in combinations(known, router.topk)]
    assert visited(router, places) == pytest.approx(sum(met) / len(met), rel=1e-12)


def test_without_groups_visits_have_the_closed_form():
    missed = comb(256 - 32, 8) / comb(256, 8)
    assert visited(ExpertRouter(256, 8), 8) == pytest.approx(8 * (1 - missed), rel=1e-12)
    assert visited(ExpertRouter(256, 8, 8, 4), 8) <= 4


@pytest.mark.parametrize("op", ["dispatch", "combine"])
def test_a_nic_carries_a_token_once_a_node_and_nvlink_once_a_gpu(op):
    router = ExpertRouter(256, 8, 8, 4)
    [phase] = phases("deepep", op, Group(64, (8, 8), router=router))
    own, across = phase.source == 0, phase.source // 8 != phase.destination // 8
    assert phase.fraction[own & across].sum() == pytest.approx(7 / 8 * visited(router, 8) / 8)
    assert phase.fraction[own & ~across].sum() == pytest.approx(7 / 8 * visited(router, 64) / 8)
    assert set(phase.source[across] % 8 - phase.destination[across] % 8) == {0}


def nodes(count, kind="hgx-h800"):
    """Return so many nodes of 8 GPUs on one switch."""
    fabric = (
        "fabric: {kind: fat_tree, rails: none, tiers: [{radix: 64}], link: {rate: 400Gb/s}, routing: {mode: adaptive}}"
    )
    return topologies.build(parse(f"cluster: {{name: t, nodes: {count}, node: {kind}}}\n{fabric}", "test.yaml"))


def step(count, kind="hgx-h800", **options):
    """Simulate a step in which all GPUs of those nodes share 256 experts, 8 a token."""
    ranks = 8 * count
    asked = {
        "model": {"hidden": 7168, "heads": 64, "ffn": 256, "experts": 256, "topk": 8},
        "training": {"seq": 4096, "precision": "fp8", "global_batch": ranks},
        "parallelism": {"ep": ranks, "dp": ranks, "algorithms.ep": "deepep"},
    }
    flat = {f"{room}__{key}": value for room, own in asked.items() for key, value in own.items()}
    return run(nodes(count, kind), job(model__layers=1, **{**flat, **options}), ignore_memory=True)


def seconds(result, op):
    """Return what the exchange takes on an idle fabric."""
    network = result.plan.network
    [call] = [one for one in network.plans if one.op == op]
    return sum(flow.idle for flow in network.flows(call)[0])


@pytest.mark.parametrize(("count", "dispatch", "combine"), MEASURED)
def test_rates_are_those_that_were_measured(count, dispatch, combine):
    groups = {"model__router_groups": count, "model__router_group_topk": min(count, 4), "training__dispatch": "fp8"}
    result = step(count, **groups)
    tokens = 4096 * visited(ExpertRouter(256, 8, count, min(count, 4)), count)
    for op, rate, each in (("dispatch", dispatch, 1 + 4 / 128), ("combine", combine, 2)):
        assert tokens * 7168 * each / seconds(result, op) / 1e9 == pytest.approx(
            rate, rel=0.12 if count > 2 else 0.35
        ), op


HYBRID = [
    ("hgx-b200", 1, 595, 601),
    ("hgx-h100", 2, 2149, 2195),
    ("hgx-h100", 4, 4481, 4040),
    ("hgx-h100", 8, 7508, 6648),
]
"""Type and number of nodes of 8, and microseconds of a dispatch and a combine in bf16 through PyTorch with 16 SMs: 4096 tokens a
GPU, hidden 7168, 8 of as many experts as there are, 8 a GPU. From GB/s of docs/README_Hybrid-EP.md (deepseek-ai/DeepEP, branch
hybrid-ep), which count a token once for each of its nodes, on one node for each of its GPUs."""


@pytest.mark.parametrize(("node", "count", "dispatch", "combine"), HYBRID)
def test_hybridep_takes_as_long_as_was_measured(node, count, dispatch, combine):
    options = {"model__experts": 64 * count, "training__precision": "bf16", "parallelism__algorithms.ep": "hybridep"}
    result = step(count, node, **options)
    for op, measured in (("dispatch", dispatch), ("combine", combine)):
        assert 1e6 * seconds(result, op) == pytest.approx(measured, rel=0.12), op


def test_copies_are_of_tokens_that_arrived_and_a_row_travels_where_nothing_is_saved():
    deep, plain = step(2), step(2, **{"parallelism__algorithms.ep": "nccl"})
    assert seconds(deep, "combine") < seconds(plain, "combine")
    assert deep.summary["step_time_s"] < plain.summary["step_time_s"]


def test_rows_that_nobody_sends_have_no_data_type():
    with pytest.raises(ConfigError, match=r"training\.dispatch: fp8 needs a mixture of experts; set model\.experts"):
        job(training__dispatch="fp8").place(16, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training__expert_imbalance": 2.0}, r"parallelism\.algorithms\.ep: deepep takes rows that fall evenly"),
        ({"model__router_groups": 3}, r"model\.router_groups: 3 does not divide 256 experts"),
        ({"model__router_groups": 4, "model__router_group_topk": 5}, r"router_group_topk: 5 is more than the 4 groups"),
        ({"model__router_groups": 64, "model__router_group_topk": 1}, r"1 groups? hold 4 experts and a token visits 8"),
        (
            {"parallelism__algorithms.dp": "deepep", "parallelism__ep": 8},
            r"algorithms\.dp: deepep cannot do all_reduce",
        ),
    ],
)
def test_what_a_router_or_deepep_cannot_do_is_said_at_its_place(changes, message):
    with pytest.raises(ConfigError, match=message):
        step(2, **changes)


@pytest.mark.slow
def test_deepseek_v3_is_forecast_within_a_tenth_of_its_own_pretraining():
    """On 2,048 H800; the shipped workload is the step of the paper's section 3."""
    found = forecast("superpod_h100_128", "deepseek_v3", ignore_memory=True, nodes=256, gpu="h800-sxm").summary
    # the simulated step: DeepSeek's software is not that of a typical trainer, which the expected step has
    tokens_per_s = found["tokens_per_s"] * found["expected_step_time_s"] / found["step_time_s"]
    assert tokens_per_s / 2048 == pytest.approx(PRETRAINING, rel=0.1)
