"""Parameters and FLOP against published counts and closed forms."""

from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.model.kernel import Kernel
from clustersim.model.parameters import parameters
from clustersim.model.sharding import padded_vocab
from clustersim.parallel.flops import hardware_flop, model_flop
from clustersim.parallel.load import load
from clustersim.parallel.stages import stages

FOLDER = Path(__file__).parents[2] / "workloads"
PRODUCTS = ("linear", "bmm", "grouped_gemm", "flash_attention")

PUBLISHED = {
    "gpt3": (175.0e9, 0.005),  # Brown et al. 2020; the 175.0e9 is rounded, the table sums to 174.6e9
    "gpt3_xl": (1.3157e9, 0.001),
    "gpt3_2.7b": (2.6516e9, 0.001),
    "gpt2_large": (774.03e6, 0.001),  # Hugging Face model card, openai-community/gpt2-large
    "bert_large": (335.17e6, 0.002),  # Hugging Face BertForMaskedLM, large uncased
    "opt_1.3b": (1.3158e9, 0.001),  # Hugging Face model card, facebook/opt-1.3b
    "llama2_70b_lora": (68.977e9, 0.001),
    "llama3_8b": (8.030e9, 0.001),  # Hugging Face model cards, meta-llama
    "llama3_70b": (70.554e9, 0.001),
    "llama3_405b": (405.85e9, 0.001),
    "mixtral_8x7b": (46.703e9, 0.001),  # Hugging Face model card; Jiang et al. 2024 say 47B
    "mixtral_8x22b": (140.63e9, 0.001),  # Hugging Face model card, mistralai/Mixtral-8x22B-v0.1
    "llama4_scout": (108.64e9 - 0.87e9, 0.005),  # model card's tensors, less the vision encoder of 34 layers
    "llama4_maverick": (401.58e9 - 0.87e9, 0.005),  # the same
    "qwen2.5_7b": (7.61e9, 0.005),  # Hugging Face model cards, Qwen
    "qwen2.5_72b": (72.7e9, 0.005),
    "qwen3_8b": (8.2e9, 0.005),
    "qwen3_32b": (32.8e9, 0.005),
    "qwen3_30b_a3b": (30.5e9, 0.005),
    "qwen3_235b_a22b": (235e9, 0.005),
    "deepseek_v3": (671e9, 0.005),  # arXiv 2412.19437, section 4.2, without the further prediction
    "kimi_k2": (1026.4e9, 0.005),  # tensors of moonshotai/Kimi-K2-Instruct without the scales of fp8
    "grok_1": (314e9 + 131072 * 6144, 0.005),  # xai-org/grok-1, README: 314B, which is all but the embedding
    "nemotron4_340b": (9.4e9 + 331.6e9, 0.005),  # arXiv 2406.11704, table 1
    "gpt_oss_20b": (20.91e9, 0.005),  # arXiv 2508.10925, table 1
    "gpt_oss_120b": (116.83e9, 0.005),
    "t5_large": (737.67e6, 0.005),  # Hugging Face model card, google-t5/t5-large; Raffel et al. say 770M
    "t5_11b": (11.307e9, 0.005),  # google-t5/t5-11b; Raffel et al. say 11B
    "neusight_gpt3_xl": (2.8796e9, 0.001),
    "neusight_gpt3_xl_4": (2.8796e9, 0.001),
    "neusight_gpt2_large_4": (774.0e6, 0.002),
}


ACTIVE = {
    "mixtral_8x7b": (12.88e9, True),  # Jiang et al. 2024: 12.9B
    "mixtral_8x22b": (39e9, True),  # Mistral AI, April 2024
    "llama4_scout": (17.2e9, True),  # model card: 17B
    "llama4_maverick": (17.2e9, True),
    "qwen3_30b_a3b": (3.34e9, True),  # model card: 3.3B
    "qwen3_235b_a22b": (22.2e9, True),  # model card: 22B
    "deepseek_v3": (36.7e9, False),  # arXiv 2412.19437: 37B
    "kimi_k2": (31.7e9, False),  # model card: 32B
    "gpt_oss_20b": (3.61e9, False),  # arXiv 2508.10925, table 1
    "gpt_oss_120b": (5.13e9, False),
}
"""Parameters that a token visits, to a digit more than they are published, and whether those of the embedding count."""


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


@pytest.mark.parametrize("name", ACTIVE)
def test_tokens_visit_the_published_number_of_parameters(name):
    (count, embedding), model = ACTIVE[name], job(name).model
    table = 0 if embedding else model.vocab * model.hidden
    assert parameters(model, active=True) - table == pytest.approx(count, rel=0.005)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_operators_hold_the_parameters_of_the_closed_form(name, tp):
    ep = job(name).parallelism.ep
    sp = {"parallelism__sequence_parallel": ep > 1 and tp > 1}
    whole_model = {"parallelism__pp": 1, "parallelism__vpp": 1, "parallelism__schedule": "1f1b"}
    ends = {"parallelism__account_for_embedding": False, "parallelism__account_for_loss": False}
    ends |= {"parallelism__layout": None, "parallelism__last_layers": None}
    sp["training__lora"] = None
    one = job(name, parallelism__tp=tp, parallelism__shard_all_parameters=False, **whole_model, **ends, **sp)
    (stage,) = stages(one)
    dense = stage.parameters - stage.experts
    replicated = sum(op.replicated * count for layer, count in stage.layers for op in layer.operators)
    whole = (dense - replicated) * tp + replicated + stage.experts * one.parallelism.etp * ep
    assert whole == parameters(one.model, vocab=padded_vocab(one.model, tp), mtp=True)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_kernels_run_the_flop_of_the_closed_form(name, recompute):
    split = job(name).parallelism
    changes = {
        "parallelism__sequence_parallel": split.ep > 1 and split.tp > 1,
        "parallelism__overlap__ep": "none",
        "parallelism__schedule": "1f1b" if split.vpp == 1 else "interleaved",  # DualPipe keeps every stage twice
        "training__attention": "unfused",
        "training__recompute_modules": [],
    }
    one = job(name, training__recompute=recompute, **changes)
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


@settings(max_examples=examples(40), deadline=None)
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
