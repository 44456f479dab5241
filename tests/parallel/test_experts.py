"""Experts on ranks of their own: what travels, what each rank holds, and how long it takes."""

import math
import re

import pytest
from engine_cases import cluster
from examples import examples
from expert_cases import SHARED, WIDE, job, kernels_of, played
from hypothesis import given, settings
from hypothesis import strategies as st
from script_cases import written
from sweep_cases import plain

from clustersim.errors import ClustersimError, ConfigError
from clustersim.model.kernel import Kernel, single_launch
from clustersim.model.operator import Awaited, Collective, Started
from clustersim.model.parameters import parameters
from clustersim.model.sharding import split, zipf_shares
from clustersim.parallel.flops import model_flop
from clustersim.parallel.memory import at_rest
from clustersim.parallel.optimizer import update
from clustersim.parallel.stages import stages
from clustersim.schedules.check import load as schedule
from clustersim.simulation import Simulator, run

PRODUCTS = ("linear", "grouped_gemm", "flash_attention")


def simulate(topology, fold=True, **overrides):
    return run(topology, job(**overrides), fold=fold, ignore_memory=True)


def exchanges(steps, group):
    return [step for step in steps if isinstance(step, Collective) and step.group == group]


SPLITS = [
    (1, 2, 1), (1, 4, 1), (1, 8, 1), (2, 2, 2), (2, 8, 2), (4, 4, 4), (2, 4, 1), (4, 8, 1), (4, 4, 2), (1, 2, 2),
    (2, 1, 1),
]  # fmt: skip
"""tp, ep and expert_tp."""
EXPERTS = 4 * 8 * 3 * 512 * 1024


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize(("tp", "ep", "slices"), SPLITS)
def test_the_rows_of_a_layer_travel_out_and_back_in_each_pass(tp, ep, slices, shared):
    """tokens / tp · topk rows of hidden bf16 values leave a rank and come back, and slices share what they received."""
    three = {"model__topk": 3, "training__micro_batch": 2, "model__shared_experts": shared}
    (stage,) = stages(job(tp=tp, ep=ep, expert_tp=slices, **three).place(32, 8))
    size = 2 * 256 / tp * 3 * 512 * 2
    whole = (
        [Collective("etp", op, slices * size) for op in ("all_gather", "reduce_scatter")]
        if slices not in (1, tp)
        else []
    )
    for steps in (stage.forward, stage.backward):
        travels = [Collective("ep", op, size) for op in ("dispatch", "combine")] if ep > 1 else []
        assert exchanges(steps, "ep") == travels * 4
        assert exchanges(steps, "etp") == whole * 4
        ways = [e.op for e in exchanges(steps, "tp") if e.size == slices * size]
        assert ways == (["all_gather", "reduce_scatter"] * 4 if slices == tp > 1 else [])
    counts = [Collective("tp_ep", "all_gather", 8 * 8 * ep * slices)] if ep * slices > 1 else []
    assert exchanges(stage.forward, "tp_ep") == counts * 4
    assert not exchanges(stage.backward, "tp_ep")


def test_whole_experts_on_every_rank_ask_nobody():
    """Neither ep nor slices: each rank has all experts and its own tokens; a collective of one rank was an error."""
    assert simulate(cluster(1), tp=2, ep=1, expert_tp=1).summary["breakdown_s"]["ep"] == 0


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize(("tp", "ep", "slices"), SPLITS)
def test_parameters_and_optimizer_state_are_conserved(tp, ep, slices, zero):
    one = job(tp=tp, ep=ep, expert_tp=slices, pp=2, dp=16, zero=zero, training__global_batch=64).place(tp * 32, 8)
    every, unspread = (stages(j) for j in (one, job(tp=tp, pp=2, dp=16).place(tp * 32, 8)))
    experts, dense = sum(s.experts for s in every), sum(s.held(expert=False) for s in every)
    assert experts * ep * slices == EXPERTS
    assert dense * tp + EXPERTS == sum(s.parameters for s in unspread) * tp
    state = sum(at_rest(one, [stage]).optimizer for stage in every) * tp * one.dp
    held = dense * tp + EXPERTS if zero else (dense + experts) * tp * one.dp
    assert state == pytest.approx(12 * held, rel=1e-12)


DENSE = {"model__layers": 6, "model__dense_layers": 3, "model__dense_ffn": 2048}
"""A model of two kinds of layers: the first three have one wide MLP, the others experts."""


def _has_experts(layer):
    return any(op.name == "router" for op in layer.operators)


@pytest.mark.parametrize(("pp", "kinds"), [(1, ["ddd eee"]), (2, ["ddd", "eee"]), (4, ["dd", "d e", "e", "e"])])
def test_layers_of_two_kinds_stand_in_their_order(pp, kinds):
    found = stages(job(pp=pp, dp=1, **DENSE).place(pp, pp))
    runs = [[(_has_experts(layer), count) for layer, count in stage.layers if layer.name == "block"] for stage in found]
    counted = [6 // pp + (stage < 6 % pp) for stage in range(pp)]
    assert [sum(count for _, count in own) for own in runs] == counted
    assert [" ".join("de"[experts] * count for experts, count in own) for own in runs] == kinds


@pytest.mark.parametrize(("tp", "ep", "slices"), SPLITS)
def test_parameters_of_two_kinds_of_layers_are_those_of_the_closed_form(tp, ep, slices):
    one = job(tp=tp, ep=ep, expert_tp=slices, pp=2, dp=16, training__global_batch=64, **DENSE).place(tp * 32, 8)
    every = stages(one)
    copies = sum(op.replicated * count for s in every for layer, count in s.layers for op in layer.operators) * (tp - 1)
    held = sum(s.held(expert=False) for s in every) * tp + sum(s.experts for s in every) * ep * slices
    assert held - copies == parameters(one.model, vocab=one.vocab)
    narrow = job(dp=1, **(DENSE | {"model__dense_ffn": 1024})).model
    assert parameters(one.model) - parameters(narrow) == 3 * 3 * 512 * 1024  # layers, products of a gated MLP, shape


def test_half_of_the_layers_of_each_kind_are_half_of_the_work_of_each():
    kinds = ({"model__experts": None, "model__topk": 1}, {"model__dense_layers": 2}, {})
    dense, mixed, experts = (
        sum(step.flop for step in stages(job(dp=1, **kind).place(1, 1))[0].forward) for kind in kinds
    )
    assert mixed == pytest.approx((dense + experts) / 2, rel=1e-12)


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_the_optimizer_updates_a_share_of_each_kind(ep):
    one = job(ep=ep, dp=16, zero=1).place(16, 8)
    (stage,) = stages(one)
    step = next(kernel for kernel in update(one, stage.parameters, stage.experts) if kernel.op == "adam")
    dense = stage.parameters - stage.experts
    assert step.n == math.ceil(dense / 16) + math.ceil(stage.experts * ep / 16)


def calls(one, family):
    """Return the calls of a family in the scripts of all pipeline ranks, each as often as it is in them."""
    split_ = one.parallelism
    found = written(one, stages(one), schedule(split_.schedule, split_.pp, one.microbatches, split_.vpp))
    lines = (
        line for s in found for part in (s.layout.begin, *s.layout.special.values(), s.layout.finish) for line in part
    )
    return [line.collective for line in lines if line.collective and line.collective.group == family]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("ep", [1, 2, 8])
def test_each_gradient_is_reduced_once_with_those_who_hold_its_parameter(ep, zero, overlap):
    flags = {"parallelism__overlap__grad_reduce": overlap, "parallelism__bucket": 300_000}
    one = job(ep=ep, pp=2, dp=8, zero=zero, **flags).place(16, 8)
    every = stages(one)
    experts, dense = sum(s.experts for s in every), sum(s.held(expert=False) for s in every)
    op = "reduce_scatter" if zero else "all_reduce"
    sums = {family: sum(c.size for c in calls(one, family) if c.op == op) for family in ("dp", "edp")}
    assert sums["dp"] == 4 * dense
    assert sums["edp"] == (4 * experts if 1 < ep < 8 else 0)  # with ep 8 of dp 8 every rank has experts of its own
    gathered = {family: sum(c.size for c in calls(one, family) if c.op == "all_gather") for family in ("dp", "edp")}
    assert gathered == {"dp": 2 * dense * zero, "edp": sums["edp"] / 2 * zero}


@pytest.mark.parametrize("gather", [False, True])
def test_gathered_parameters_are_waited_for_where_they_are_read(gather):
    flags = {"parallelism__overlap__param_gather": gather, "parallelism__bucket": 300_000, "zero": 1, "dp": 8, "ep": 4}
    late = simulate(cluster(2), **flags)
    assert late.summary["step_time_s"] == max(span.end for span in late.record.spans)
    one = late.job
    assert sum(c.size for c in calls(one, "edp") if c.op == "all_gather") == 2 * stages(one)[0].experts


def test_the_chunk_that_runs_first_has_its_parameters_gathered_first():
    """Megatron begins with the first chunk of a rank (start_param_sync in its interleaved schedule)."""
    flags = {"parallelism__overlap__param_gather": True, "zero": 1, "dp": 2, "pp": 2, "parallelism__vpp": 2}
    one = job(**flags, parallelism__schedule="interleaved").place(4, 8)
    rows = schedule("interleaved", 2, one.microbatches, 2)
    for script, row in zip(written(one, stages(one), rows), rows, strict=True):
        gathered = [script.stages[line.chunk] for line in script.layout.begin if line.collective]
        assert list(dict.fromkeys(gathered)) == list(dict.fromkeys(a.stage for a in row if a.letter == "F"))


@given(st.integers(0, 100_000), st.integers(2, 64), st.floats(0, 1))
def test_rows_are_split_without_loss(rows, n, part):
    shares = zipf_shares(n, n**part)
    found = split(rows, shares)
    assert sum(found) == rows
    assert all(abs(count - rows * share) <= 1 for count, share in zip(found, shares, strict=True))


@pytest.mark.parametrize("imbalance", [1, 1.5, 3, 4])
@pytest.mark.parametrize("kinds", [{}, DENSE])
@pytest.mark.parametrize(("tp", "slices", "shared"), [(1, 1, 0), (2, 2, 1), (4, 1, 0), (4, 2, 1), (1, 2, 0)])
def test_all_ranks_together_run_the_model_flop_however_uneven(imbalance, kinds, tp, slices, shared):
    uneven = {"training__expert_imbalance": imbalance, "model__shared_experts": shared, **kinds}
    one = job(tp=tp, ep=4, expert_tp=slices, dp=8, **uneven).place(8 * tp, 8)
    lanes = [stages(one, position) for position in range(one.positions)]
    steps = [k for lane in lanes for s in lane for k in (*s.forward, *s.backward) if isinstance(k, Kernel)]
    run_ = sum(k.flop for k in steps if k.kind in PRODUCTS) / len(lanes) * tp * one.dp * one.microbatches
    backward = sum(k.flop for k in steps if (k.kind, k.op) == ("flash_attention", "backward")) / len(lanes)
    again = backward / 5 * tp * one.dp * one.microbatches  # a flash kernel computes the scores once more
    assert run_ - again == pytest.approx(model_flop(one), rel=1e-9)


def test_balanced_ranks_stay_one_class_and_uneven_ones_become_one_a_load():
    even, skewed = (simulate(cluster(1), ep=4, training__expert_imbalance=x) for x in (1, 2))
    assert even.summary["simulated"]["rank_classes"] == 1
    assert skewed.summary["simulated"]["rank_classes"] == 4


@pytest.mark.parametrize(("tp", "slices", "imbalance"), [(1, 1, 1), (2, 2, 1), (1, 1, 2.5), (2, 2, 4), (2, 1, 3)])
def test_links_carry_the_bytes_that_are_sent(tp, slices, imbalance):
    """(n-1)/n of the rows leave each rank in every dispatch and combine, however they are spread."""
    options = {"tp": tp, "expert_tp": slices, "ep": 4, "training__expert_imbalance": imbalance}
    result = simulate(cluster(1, gpus=8, nics=8), **options)
    ups = [tier for tier in result.topology.tiers if tier.name == "nvlink-up"]
    carried = sum(carried_on(result, tier, "ep") for tier in ups)
    one, size = result.job, 256 / tp * 2 * 512 * 2
    assert carried == pytest.approx(4 * 4 * one.microbatches * one.mesh.size * size * 3 / 4, rel=1e-12)


def carried_on(result, tier, family):
    """Return the bytes of a family over the links of a tier."""
    carried = result.plan.carried().items()
    crossed = result.plan.network.bytes_by_link({one: size for one, size in carried if one[0][0] == family})
    return crossed[tier.first : tier.first + tier.links].sum()


def test_experts_beyond_a_node_cost_more_than_inside_it():
    exposed = [simulate(cluster(4), ep=ep, **WIDE).parts[0]["ep"] for ep in (2, 4, 8)]
    assert exposed[1] < exposed[2] / 3  # 4 GPUs a node: from NVLink to a NIC each


@given(st.lists(st.floats(0, 1), min_size=2, max_size=2), st.sampled_from([1, 2]), st.sampled_from([0, 1]))
@settings(max_examples=examples(20), deadline=None)
def test_more_uneven_routing_is_never_faster(parts, tp, zero):
    low, high = (
        simulate(cluster(2), tp=tp, ep=4, zero=zero, training__expert_imbalance=4**p, **WIDE) for p in sorted(parts)
    )
    assert high.summary["step_time_s"] >= low.summary["step_time_s"] * (1 - 1e-9)
    assert high.summary["memory"]["peak_bytes"] >= low.summary["memory"]["peak_bytes"]


def test_one_rank_with_all_rows_computes_for_all():
    busy, even = (simulate(cluster(1), ep=4, training__expert_imbalance=x, **WIDE) for x in (4, 1))
    of = busy.plan.network.cells.ranks.of
    assert busy.parts[int(of[0])]["compute"] > 2 * even.parts[0]["compute"]
    assert busy.parts[int(of[1])]["compute"] < even.parts[0]["compute"]
    assert busy.parts[int(of[1])]["bubble"] > even.parts[0]["bubble"]


def test_dp_auto_is_a_multiple_of_ep():
    assert job(ep=8).place(31, 8).dp == 16
    assert job(ep=8, training__global_batch=24).place(32, 8).dp == 24
    assert job(tp=2, ep=8, expert_tp=1, training__global_batch=12).place(64, 8).dp == 12  # 4 and multiples are possible


def test_both_meshes_are_megatrons():
    one = job(tp=2, ep=4).place(64, 8)
    assert one.mesh.groups("dp")[0].tolist() == list(range(0, 64, 2))
    experts = one.expert_mesh
    assert (experts.tp, experts.ep, experts.dp) == (2, 4, 8)
    assert experts.groups("ep")[0].tolist() == [0, 2, 4, 6]
    assert experts.groups("dp")[0].tolist() == list(range(0, 64, 8))
    whole = job(tp=2, ep=8, expert_tp=1).place(64, 8)
    assert whole.mesh.groups("tp")[0].tolist() == [0, 1]
    assert whole.expert_mesh.groups("ep")[0].tolist() == list(range(8))
    assert whole.expert_mesh.groups("dp")[0].tolist() == list(range(0, 64, 8))


ERRORS = {
    "model__experts=null model__topk=1 ep=2": (
        "parallelism.ep: 2 needs a mixture of experts; set model.experts or leave it out"
    ),
    "ep=3": "parallelism.ep: 3 does not divide 8 experts; use 1, 2, 4, 8",
    "ep=4 dp=6": "parallelism.ep: 4 does not divide dp 6; use 1, 2",
    "ep=4 tp=2 dp=2": "parallelism.ep: 4 does not divide dp 2; use 1, 2, or expert_tp: 1",
    "ep=4 tp=2 parallelism__sequence_parallel=false": (
        "parallelism.sequence_parallel: ep 4 with tp 2 needs it, or tp ranks would send the same tokens; write true"
    ),
    "ep=4 training__expert_imbalance=4.5": (
        "training.expert_imbalance: 4.5 times the mean is more than all, with ep 4; use 1 to 4"
    ),
    "training__expert_imbalance=2": (
        "training.expert_imbalance: 2 times the mean is more than all, with ep 1; use 1, or set parallelism.ep above 1"
    ),
    "ep=8 tp=2": (
        "parallelism.ep: the cluster is too small: tp 2 × pp 1 × dp 8 for ep 8 needs 16 GPUs, there are 8; lower "
        "a degree or take a larger cluster"
    ),
    "ep=8 training__global_batch=12": (
        "parallelism.ep: 8 needs a dp of 8 or a multiple, which cannot divide the 12 microbatches of a step; use "
        "1, 2, 4"
    ),
    "ep=4 parallelism__algorithms__ep=ring": "parallelism.algorithms.ep: ring cannot do dispatch, only ",
    "model__experts=null model__topk=1 expert_tp=1": (
        "parallelism.expert_tp: 1 needs a mixture of experts; set model.experts or leave it out"
    ),
    "ep=8 dp=2 tp=2 expert_tp=1": "parallelism.ep: 8 × expert_tp 1 does not divide tp 2 × dp 2; use 1, 2, 4",
    "dp=2 tp=1 expert_tp=4": "parallelism.expert_tp: 4 does not divide tp 1 × dp 2; use 1, 2",
    "ep=2 dp=2 tp=1 expert_tp=4": "parallelism.ep: 2 × expert_tp 4 does not divide tp 1 × dp 2; use another dp",
    "model__experts=null model__topk=1 model__dense_layers=2": (
        "model.dense_layers: 2 needs a mixture of experts in the others; set model.experts"
    ),
    "model__dense_layers=4": "model.dense_layers: 4 leaves no layer with experts of 4; drop model.experts",
    "model__dense_ffn=2048": "model.dense_ffn: 2048 is the width of dense layers; set model.dense_layers or write ffn",
    "tp=2 dp=1 model__dense_layers=1 model__dense_ffn=1023": (
        "parallelism.tp: 2 does not divide the width 1023 of dense layers; use 1"
    ),
    "ep=2 expert_tp=3 dp=6": (
        "parallelism.expert_tp: 3 does not divide the width 1024 of an expert; use a divisor of it"
    ),
}


@pytest.mark.parametrize("words", ERRORS)
def test_what_is_wrong_is_said_with_its_place(words):
    with pytest.raises(ClustersimError, match=f"^{re.escape(f'w.yaml (command line): {ERRORS[words]}')}"):
        run(cluster(2), job(**plain(words)), ignore_memory=True)


def beside(result):
    """Return the seconds of what a microbatch computes between where exchanges are started and where they are waited for."""
    found, under, [stage] = [], False, stages(result.job)
    for step in (*stage.forward, *stage.backward):
        under = isinstance(step, Started) or (under and not isinstance(step, Awaited))
        found += [step] if under and isinstance(step, Kernel) else []
    seconds = Simulator(result.topology).preparation.seconds(result.job, found)
    return sum(seconds[kernel] for kernel in found)


def test_exchanges_that_are_longer_hide_all_that_shared_experts_compute_beside_them():
    apart, together = (played(mode, 10) for mode in ("none", "shared"))
    saved = apart.summary["step_time_s"] - together.summary["step_time_s"]
    assert saved == pytest.approx(together.job.microbatches * beside(together), rel=1e-6)


def test_exchanges_that_are_shorter_cost_nothing_beside_shared_experts():
    apart, together = (played(mode, 400, model__shared_ffn=65536) for mode in ("none", "shared"))
    counted = together.parts[0]["ep"]  # only how many rows there are is still waited for
    saved = apart.summary["step_time_s"] - together.summary["step_time_s"]
    assert saved == pytest.approx(apart.parts[0]["ep"] - counted, rel=1e-6)
    assert counted < 0.2 * apart.parts[0]["ep"]


@pytest.mark.parametrize("more", [{}, {"pp": 2, "ep": 4, "dp": 4}, {"tp": 2, "ep": 4, "dp": 4, "expert_tp": 1}])
def test_shared_experts_beside_exchanges_are_the_same_kernels(more):
    more = {**more, "parallelism__tp_across_nodes": True}
    reference = played("shared", 100, **more)
    apart = played("none", 100, **more)
    assert sorted(kernels_of(apart.job)) == sorted(kernels_of(reference.job))
    # as much is kept; what only lives while they run, lives beside the rows that travel
    kept, beside_rows = ([stage.saved_bytes for stage in stages(one.job)] for one in (apart, reference))
    assert kept == pytest.approx(beside_rows, rel=1e-12)
    assert apart.summary["memory"]["peak_bytes"] <= reference.summary["memory"]["peak_bytes"] * (1 + 1e-12)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model__shared_experts": 0}, "set model.shared_experts or write none"),
        ({"ep": 1}, "ep is 1; raise parallelism.ep or write none"),
        (
            {"training__recompute": "selective", "training__recompute_modules": ["shared_experts"]},
            "exclude each other; leave one of them out",
        ),
    ],
)
def test_what_cannot_run_beside_exchanges_is_said(change, said):
    with pytest.raises(ConfigError, match=f"overlap.ep: shared.*{said}"):
        job(parallelism__overlap__ep="shared", **{**SHARED, **change})


def test_inputs_of_experts_activation_are_limited_before_the_fused_kernel_and_autograd_goes_back():
    """Megatron's weighted_bias_quick_geglu_impl: clamps and a concatenation, 16 bytes an output forward, 30 backward in bf16."""

    def activation(**more):
        one = job(model__activation="swiglu", parallelism__tp=1, parallelism__pp=1, parallelism__ep=1, **more)
        [stage] = stages(one)
        [found] = {op for layer, _ in stage.layers for op in layer.operators if op.name == "experts_activation"}
        return found

    plain, limited = activation(), activation(model__activation_clamp=7.0)
    more = [
        step
        for step in (*limited.forward, *limited.backward_input)
        if step not in (*plain.forward, *plain.backward_input)
    ]
    assert [(step.op, step.bytes / (step.m * step.n)) for step in more] == [("clamp", 16.0), ("clamp_backward", 30.0)]
    assert limited.saved == 2 * plain.saved
    eager = {"training__kernels": "eager"}
    assert activation(model__activation_clamp=7.0, **eager) == activation(**eager)


def rows_of_experts(tp, ep, slices, dispatcher):
    """Return the options of a split whose experts receive rows through a dispatcher."""
    split = {"tp": tp, "ep": ep, "expert_tp": slices, "dp": max(1, ep * slices // tp), "pp": 1}
    options = {f"parallelism__{name}": value for name, value in split.items()}
    return options | {"parallelism__algorithms__ep": dispatcher, "parallelism__sequence_parallel": tp > 1}


@pytest.mark.parametrize("dispatcher", ["nccl", "deepep"])
@pytest.mark.parametrize(("tp", "ep", "slices"), SPLITS)
def test_rows_that_no_fused_kernel_sums_are_added_once_in_each_pass(tp, ep, slices, dispatcher):
    """Megatron without --moe-permute-fusion: scatter_add_ forward, index_select and so index_add_ backward."""
    options = rows_of_experts(tp, ep, slices, dispatcher)
    fused = [one for one in kernels_of(job(**options)) if one.op in ("unpermute", "permute_backward")]
    eager = kernels_of(job(training__permute_kernels="eager", **options))
    added, cleared = ([one for one in eager if one.op == op] for op in ("scatter_rows", "clear"))
    assert len(added) == len(cleared) == len(fused) > 0
    moved = sum(one.bytes / 3 for one in added) + sum(one.bytes for one in cleared)
    assert moved == pytest.approx(sum(one.bytes for one in fused), rel=0.01)  # DeepEP: whole tokens arrive


@pytest.mark.parametrize("dispatcher", ["nccl", "deepep"])
@pytest.mark.parametrize(("tp", "ep", "slices"), SPLITS)
def test_rows_are_weighed_where_they_are_added(tp, ep, slices, dispatcher):
    """Megatron-Core up to 0.12: every row of a sum is multiplied by its weight, and gradients come back for both."""
    options = rows_of_experts(tp, ep, slices, dispatcher)
    found = kernels_of(job(training__permute_kernels="weighed", **options))
    added, ahead, behind = (
        sum(one.m * one.n for one in found if one.op == op)
        for op in ("scatter_rows", "weigh_rows", "weigh_rows_backward")
    )
    assert 2 * ahead == 2 * behind == added > 0  # rows are added forward and backward


def test_fused_products_of_experts_leave_no_kernel_between_them():
    """Transformer Engine's op fuser: what arrives is cast, both ways; activation, biases and other casts are taken in."""
    narrow = {"training__precision": "mxfp8", "parallelism__tp": 1, "parallelism__pp": 1, "parallelism__ep": 1}
    shape = {"model__activation": "swiglu", "model__activation_clamp": 7.0, "model__bias": True}

    def between(**more):
        ops = {op.name: op for layer, _ in stages(job(**narrow, **shape, **more))[0].layers for op in layer.operators}
        own = [ops[name] for name in ("experts_fc1", "experts_activation", "experts_fc2")]
        return [
            [step.op for one in ways for step in one if step.kind != "grouped_gemm"]
            for ways in zip(*((one.forward, one.backward_input) for one in own), strict=True)
        ]

    assert between() == [
        ["cast", "clamp", "swiglu", "cast", "expert_bias"],
        ["cast", "swiglu_backward", "clamp_backward", "expert_bias_backward", "cast"],
    ]
    assert between(training__fused_experts=True) == [["cast"], ["cast"]]


@pytest.mark.parametrize(
    ("precision", "scaling", "apart"), [("fp8", "delayed", 1), ("fp8", "current", 4), ("mxfp8", None, 4)]
)
def test_operands_with_scales_of_their_own_are_cast_expert_by_expert(precision, scaling, apart):
    """Transformer Engine, split_quantize: only delayed scaling has one kernel for all; what is moved is the same."""
    kinds = {"training__fp8_scaling": scaling} if scaling else {}
    one = job(training__precision=precision, parallelism__tp=1, parallelism__pp=1, parallelism__ep=2, **kinds)
    ops = {op.name: op for layer, _ in stages(one)[0].layers for op in layer.operators}
    found = [step for step in (*ops["experts_fc1"].forward, *ops["experts_fc2"].backward_input) if step.op == "cast"]
    assert [single_launch(step)[1] for step in found] == [apart, apart]
    assert all(single_launch(step)[0].kind == "memory" for step in found)
    assert all(single_launch(step)[0].bytes * apart == pytest.approx(step.bytes) for step in found)


def test_biases_of_experts_are_added_to_rows_in_fp32_and_back():
    """megatron/core/transformer/moe/experts.py, _apply_bias: 28 bytes a value forward, 40 backward (counted in bf16)."""

    def passes(bias):
        [stage] = stages(job(model__bias=bias, parallelism__tp=1, parallelism__pp=1, parallelism__ep=1))
        found = [
            step for step in (*stage.forward, *stage.backward) if isinstance(step, Kernel) and "expert_bias" in step.op
        ]
        return {step.op: step.bytes / (step.m * step.n) for step in found}

    assert passes(False) == {}
    assert passes(True) == {"expert_bias": 28.0, "expert_bias_backward": 40.0}
