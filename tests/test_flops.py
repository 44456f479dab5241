"""Parameters and FLOP against published counts and closed forms."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.model.kernel import Kernel
from clustersim.model.parameters import parameters
from clustersim.model.sharding import padded_vocab
from clustersim.parallel.flops import hardware_flop, model_flop
from clustersim.parallel.load import load
from clustersim.parallel.stages import stages

FOLDER = Path(__file__).parents[1] / "workloads"
PRODUCTS = ("linear", "bmm", "grouped_gemm", "flash_attention")

PUBLISHED = {
    "gpt3": (175.0e9, 0.005),  # Brown et al. 2020; the 175.0e9 is rounded, the table sums to 174.6e9
    "gpt3_xl": (1.3157e9, 0.001),
    "gpt3_2.7b": (2.6516e9, 0.001),
    "gpt2_large": (774.03e6, 0.001),  # Hugging Face model card, openai-community/gpt2-large
    "bert_large": (335.17e6, 0.002),  # Hugging Face BertForMaskedLM, large uncased
    "opt_1.3b": (1.3158e9, 0.001),  # Hugging Face model card, facebook/opt-1.3b
    "llama3_8b": (8.030e9, 0.001),  # Hugging Face model cards, meta-llama
    "llama3_70b": (70.554e9, 0.001),
    "llama3_405b": (405.85e9, 0.001),
    "mixtral_8x7b": (46.703e9, 0.001),  # Hugging Face model card; Jiang et al. 2024 say 47B
    "mixtral_8x22b": (140.63e9, 0.001),  # Hugging Face model card, mistralai/Mixtral-8x22B-v0.1
    "neusight_gpt3_xl": (2.8796e9, 0.001),
    "neusight_gpt3_xl_4": (2.8796e9, 0.001),
    "neusight_gpt2_large_4": (774.0e6, 0.002),
}


def job(name, **overrides):
    one = load(FOLDER / f"{name}.yaml", {key.replace("__", "."): value for key, value in overrides.items()})
    return one.place(4096, 8)


def executed(one):
    """FLOP of all products that the kernels of a step run, over all ranks."""
    per_lane = sum(
        k.flop
        for stage in stages(one)
        for k in (*stage.forward, *stage.backward)
        if isinstance(k, Kernel) and k.kind in PRODUCTS
    )
    return per_lane * one.parallelism.tp * one.dp * one.microbatches


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    count, tolerance = PUBLISHED[name]
    assert parameters(job(name).model) == pytest.approx(count, rel=tolerance)


def test_every_shipped_workload_has_a_published_count():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(PUBLISHED)


def test_mixtral_activates_twelve_point_nine_billion():
    assert parameters(job("mixtral_8x7b").model, active=True) == pytest.approx(12.88e9, rel=0.001)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_operators_hold_the_parameters_of_the_closed_form(name, tp):
    ep = job(name).parallelism.ep
    sp = {"parallelism__sequence_parallel": ep > 1 and tp > 1}
    whole_model = {"parallelism__pp": 1, "parallelism__vpp": 1, "parallelism__schedule": "1f1b"}
    ends = {"parallelism__account_for_embedding": False, "parallelism__account_for_loss": False}
    one = job(name, parallelism__tp=tp, parallelism__shard_all_parameters=False, **whole_model, **ends, **sp)
    (stage,) = stages(one)
    dense = stage.parameters - stage.experts
    whole = (dense - stage.replicated) * tp + stage.replicated + stage.experts * tp * ep
    assert whole == parameters(one.model, vocab=padded_vocab(one.model, tp))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_kernels_run_the_flop_of_the_closed_form(name, recompute):
    split = job(name).parallelism
    sp = {"parallelism__sequence_parallel": split.ep > 1 and split.tp > 1}
    one = job(name, training__attention="unfused", training__recompute=recompute, **sp)
    router = one.parallelism.tp if one.model.experts else 1
    tolerance = 2e-3 if router > 1 or one.model.head_transform else 1e-12  # every tp rank repeats the router
    assert executed(one) == pytest.approx(hardware_flop(one, full=True), rel=tolerance)


@pytest.mark.parametrize("recompute, factor, logits", [("full", 96, 16), ("none", 72, 12)])
def test_narayanan_et_al_sc21_equation_3(recompute, factor, logits):
    one = job("gpt3", training__recompute=recompute)
    B, s, layers, h, V = 3840, 2048, 96, 12288, one.vocab
    formula = factor * B * s * layers * h**2 * (1 + s / (6 * h) + V / (logits * layers * h))
    assert hardware_flop(one, full=True) == pytest.approx(formula, rel=1e-12)
    assert V == 51200


def test_flash_attention_counts_half_when_causal_and_its_backward_two_and_a_half():
    one = job("gpt3")
    kernels = [k for s in stages(one) for k in (*s.forward, *s.backward) if isinstance(k, Kernel)]
    flash = {k.op: k.flop for k in kernels if k.kind == "flash_attention"}
    assert flash["forward"] == 2 * 2048 * 2048 * 12288 / 8
    assert flash["backward"] == 2.5 * flash["forward"]


def test_causal_attention_halves_only_the_attention():
    one = job("gpt3")
    assert model_flop(one, full=True) - model_flop(one) == 3 * 2 * 3840 * 2048**2 * 12288 * 96
    bert = job("bert_large")
    assert model_flop(bert, full=True) == model_flop(bert)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["gpt3", "llama3_70b", "gpt2_large", "opt_1.3b"]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 9),
    st.booleans(),
)
def test_tp_and_pp_move_flop_but_neither_add_nor_lose(name, tp, pp, sequence_parallel):
    base = {"training__attention": "unfused", "model__vocab_multiple": 512}
    whole = job(name, parallelism__tp=1, parallelism__pp=1, parallelism__sequence_parallel=False, **base)
    split = job(
        name,
        parallelism__tp=tp,
        parallelism__pp=pp,
        parallelism__sequence_parallel=sequence_parallel and tp > 1,
        **base | {"model__vocab_multiple": 512 // tp},
    )
    assert executed(split) == pytest.approx(executed(whole), rel=1e-12)
