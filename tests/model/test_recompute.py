"""Recomputation by number of layers and by module: what runs again, what is not kept, and what that costs."""

import re
from itertools import pairwise

import pytest
from sweep_cases import parsed

from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective
from clustersim.model.recompute import POLICIES
from clustersim.parallel.flops import attention_flop, hardware_flop, linear_flop, model_flop
from clustersim.parallel.load import build
from clustersim.parallel.memory import gathered
from clustersim.parallel.stages import stages
from clustersim.simulation import simulate

DEEP = """\
name: deep
model:
  layers: 8
  hidden: 512
  heads: 8
  ffn: 256
  vocab: 1024
  norm: rmsnorm
  activation: swiglu
  positions: rotary
  bias: false
  tied_embeddings: false
  experts: 8
  topk: 2
  shared_experts: 1
  dense_layers: 2
  dense_ffn: 1024
  mla: {q_lora_rank: 96, kv_lora_rank: 64, qk_head_dim: 32, qk_pos_emb_head_dim: 16, v_head_dim: 24}
training: {global_batch: 8, micro_batch: 2, seq: 256}
"""
TOKENS, Z = 512, 2


def job(text=DEEP, gpus=1, **overrides):
    given = {key.replace("__", ".", 1): value for key, value in overrides.items()}
    return build(parse(text, "w.yaml"), given).place(gpus, 8)


def only(**overrides):
    [stage] = stages(job(**overrides))
    return stage


def recomputed(stage):
    return max(layer.recomputed for layer, _ in stage.layers)


def products(steps):
    return sum(
        s.flop for s in steps if isinstance(s, Kernel) and s.kind in ("linear", "grouped_gemm", "flash_attention")
    )


def seconds(stage):
    """Of the backward pass, all kernels taken to be bound by memory or by products of one speed."""
    return sum(s.bytes / 2e12 + s.flop / 5e14 for s in stage.backward if isinstance(s, Kernel))


MODULES = {
    # what one block of experts no longer keeps, in values a token
    "core_attn": 4 * 8 / Z,  # the statistics: queries, keys and values stay, as its input
    "layernorm": 2 * 512,
    "mla_up_proj": 8 * (48 + 48 + 24),
    "moe_act": 2 * 256,
    "shared_experts": 3 * 256,
    "moe": 4 * 8 / Z + 2 * (512 + 3 * 256) + 3 * 256,  # not the experts' outputs: weights go into the activation before
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_keeps_its_input_or_drops_its_output(module):
    layers = {"model__layers": 1, "model__dense_layers": 0, "model__dense_ffn": None}
    kept = only(**layers).saved_bytes
    again = only(**layers, training__recompute="selective", training__recompute_modules=[module]).saved_bytes
    assert kept - again == Z * TOKENS * MODULES[module]


@pytest.mark.parametrize(
    "modules", [["mlp"], ["moe"], ["shared_experts"], ["mla_up_proj"], ["mlp", "moe", "core_attn"]]
)
def test_what_modules_run_again_is_the_closed_form(modules):
    one = job(training__recompute="selective", training__recompute_modules=modules)
    [stage], [plain] = stages(one), stages(job())
    more = products(stage.backward) - products(plain.backward)
    assert one.microbatches * more == pytest.approx(hardware_flop(one) - model_flop(one), rel=1e-12)


def test_a_module_inside_another_runs_again_once():
    both = only(training__recompute="selective", training__recompute_modules=["moe", "moe_act", "shared_experts"])
    moe = only(training__recompute="selective", training__recompute_modules=["moe"])
    assert both.backward == moe.backward
    assert both.saved_bytes == moe.saved_bytes


def test_experts_that_run_again_send_their_rows_again():
    split = {"parallelism__ep": 4, "parallelism__dp": 4, "gpus": 4}
    again = {"training__recompute": "selective", "training__recompute_modules": ["moe"]}
    counts = [
        sum(isinstance(step, Collective) and step.op == "dispatch" for step in stages(job(**split, **how))[0].backward)
        for how in ({}, again)
    ]
    assert counts == [6, 12]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_first_blocks_of_each_stage_run_again(number):
    how = {"training__recompute": "full", "training__recompute_method": "block", "training__recompute_layers": number}
    split = {"parallelism__pp": 2, "parallelism__dp": 1, "gpus": 2}
    again, plain, full = (
        [stage.saved_bytes for stage in stages(job(**split, **one))]
        for one in ({**how}, {}, {"training__recompute": "full"})
    )
    second = [plain[1] - again[1], plain[1] - full[1]]
    assert second[0] == pytest.approx(second[1] * number / 4)
    one = job(**split, **how)
    more = sum(
        products(a.backward) - products(b.backward) for a, b in zip(stages(one), stages(job(**split)), strict=True)
    )
    assert one.microbatches * more == pytest.approx(hardware_flop(one) - model_flop(one), rel=1e-12)


def test_all_first_blocks_are_all_blocks():
    how = {"training__recompute": "full", "training__recompute_method": "block", "training__recompute_layers": 8}
    assert only(**how).backward == only(training__recompute="full").backward
    assert hardware_flop(job(**how)) == pytest.approx(hardware_flop(job(training__recompute="full")), rel=1e-12)
    one = job(training__recompute="full")
    assert hardware_flop(one) - model_flop(one) == linear_flop(one) + attention_flop(one)


@pytest.mark.parametrize("together", [1, 2, 3, 8, 100])
def test_blocks_that_run_again_together_keep_one_input(together):
    alike = {"model__dense_layers": 0, "model__dense_ffn": None, "training__recompute": "full"}
    whole = only(**alike, training__recompute_layers=together)
    ends = only(**alike).saved_bytes - 8 * Z * TOKENS * 512
    assert whole.saved_bytes - ends == pytest.approx(-(-8 // min(together, 8)) * Z * TOKENS * 512)
    assert whole.backward == only(**alike).backward
    assert recomputed(whole) >= min(together, 8) * recomputed(only(**alike))


BROKEN = {
    "training.recompute_modules=[moe]": (
        "training.recompute_modules: need training.recompute: selective, not none; write it or leave them out"
    ),
    "recompute=selective training.recompute_layers=2": (
        "training.recompute_layers: needs training.recompute: full, not selective; write it or leave it out"
    ),
    "recompute=full training.recompute_method=block": (
        "training.recompute_method: block needs training.recompute_layers, of how many layers a stage; add it"
    ),
    "recompute=selective training.recompute_modules=[mla_up_proj] model.mla=null": (
        "training.recompute_modules.0: mla_up_proj is not part of this model; leave it out"
    ),
    "recompute=selective training.recompute_modules=[rope]": (
        "training.recompute_modules.0: rope is not known; write 'core_attn', 'layernorm',"
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_contradicts_gets_one_sentence(case):
    with pytest.raises(ConfigError, match=re.escape(BROKEN[case])):
        job(**parsed(case))


DENSE = {
    **{f"model__{key}": None for key in ("experts", "mla", "dense_ffn", "ffn")},
    "model__topk": 1,
    "model__shared_experts": 0,
    "model__dense_layers": 0,
    "model__kv_heads": 2,
}
TWO = {**DENSE, "gpus": 2, "parallelism__tp": 2, "parallelism__dp": 1}
SEQUENCE = {**TWO, "parallelism__sequence_parallel": True}
SHAPES = {
    "llama": DENSE,
    "gpt": {**DENSE, "model__activation": "gelu", "model__positions": "learned", "model__dropout": True},
    "mixture with latents": {},
    "eager": {**DENSE, "training__kernels": "eager"},
    "fp8": {**DENSE, "training__precision": "fp8"},
    "tensor-parallel": TWO,
    "sequence-parallel": SEQUENCE,
    "asynchronous": {**SEQUENCE, "parallelism__overlap.tp": "async"},
    "experts spread": {"gpus": 4, "parallelism__ep": 4, "parallelism__dp": 4},
}
POLICY = list(POLICIES)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", POLICY)
def test_a_policy_lies_between_full_and_none(shape, policy):
    none, full = only(**SHAPES[shape]), only(**SHAPES[shape], training__recompute="full")
    again = only(**SHAPES[shape], training__recompute="full", training__recompute_saves=[policy])
    assert full.saved_bytes <= again.saved_bytes <= none.saved_bytes
    assert products(none.backward) <= products(again.backward) <= products(full.backward)
    assert seconds(none) < seconds(again) < seconds(full)
    # what is kept and what comes back is all that a backward pass reads
    layers = [(a, b, c) for (a, _), (b, _), (c, _) in zip(*(one.layers for one in (none, again, full)), strict=True)]
    for whole, part, bare in layers:
        if part.recomputations:
            assert part.saved + part.recomputations[0].working >= whole.saved * (1 - 1e-12)
            assert part.recomputations[0].working <= bare.recomputations[0].working + part.saved


@pytest.mark.parametrize("shape", ["llama", "gpt", "mixture with latents", "sequence-parallel"])
@pytest.mark.parametrize("saves", [["qkv_proj"], ["mlpwi"], ["out_proj"], ["context"], ["op"], ["minimal"], ["mlpwo"]])
def test_what_a_policy_runs_again_is_the_closed_form(shape, saves):
    one = job(**SHAPES[shape], training__recompute="full", training__recompute_saves=saves)
    [stage], [plain] = stages(one), stages(job(**SHAPES[shape]))
    ranks = one.parallelism.tp * one.microbatches * one.parallelism.dp
    more = ranks * (products(stage.backward) - products(plain.backward))
    assert more == pytest.approx(hardware_flop(one) - model_flop(one), rel=1e-12)


def test_what_more_names_save_is_not_made_again():
    names = ["query_proj", "key_proj", "value_proj", "context", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo"]
    found = [
        only(**DENSE, training__recompute="full", training__recompute_saves=names[:n]) for n in range(len(names) + 1)
    ]
    assert found[0].backward == only(**DENSE, training__recompute="full").backward
    for fewer, more in pairwise(found):
        assert products(more.backward) < products(fewer.backward)
        assert more.saved_bytes >= fewer.saved_bytes
    none = only(**DENSE)
    assert products(found[-1].backward) == products(none.backward)  # norms and activations alone run again


@pytest.mark.parametrize("every", [1, 2, 3, 8, 9])
def test_each_n_th_block_runs_again(every):
    one = job(**DENSE, training__recompute="full", training__recompute_every=every)
    [again], none, full = stages(one), only(**DENSE), only(**DENSE, training__recompute="full")
    saved = none.saved_bytes - again.saved_bytes, none.saved_bytes - full.saved_bytes
    assert saved[0] == pytest.approx(saved[1] * (8 // every) / 8)
    more = products(again.backward) - products(none.backward)
    assert one.microbatches * more == pytest.approx(hardware_flop(one) - model_flop(one), rel=1e-12)
    if every == 1:
        assert again.backward == full.backward
    if every > 8:
        assert again.backward == none.backward


def test_sharded_parameters_that_stay_are_those_of_all_blocks():
    given = {**DENSE, "gpus": 4, "parallelism__dp": 4, "parallelism__zero": 3}
    kept = {"parallelism__fsdp.reshard_after_forward": False, "training__recompute": "full"}
    found = []
    for how in ({}, {"training__recompute_every": 2}):
        one = job(**given, **kept, **how)
        found.append(gathered(one, stages(one)[0], backward=False))
    assert found[0] == pytest.approx(found[1])


def test_saves_need_full_recomputation_of_each_block():
    saves = {"training__recompute_saves": ["op"]}
    with pytest.raises(ConfigError, match=r"recompute_saves: needs training\.recompute: full, not selective"):
        job(training__recompute="selective", **saves)
    with pytest.raises(ConfigError, match=r"recompute_saves: and recompute_layers or recompute_method exclude"):
        job(training__recompute="full", training__recompute_layers=2, **saves)
    with pytest.raises(ConfigError, match=r"recompute_every: needs training\.recompute: full, not none"):
        job(training__recompute_every=2)
    with pytest.raises(ConfigError, match=r"recompute_saves\.0: rope is not known"):
        job(training__recompute="full", training__recompute_saves=["rope"])


TITAN = {
    # torchtitan's benchmarks of 2024-12 and 2025-06 (benchmarks/*.md): Llama 3 8B, two sequences of 8,192 tokens a GPU, FSDP2,
    # policy `op`: GPUs, what differs, GiB. Compiled in 2024 the loss was eager yet.
    "eager": (8, {"training.kernels": "eager"}, 82.4),
    "compiled": (8, {"training.cross_entropy": "eager"}, 77.0),
    "compiled, fp8": (8, {"training.cross_entropy": "eager", "training.precision": "fp8"}, 76.8),
    "eager on 16 nodes": (128, {"training.kernels": "eager"}, 67.0),
    "compiled on 16 nodes": (128, {"training.cross_entropy": "eager"}, 62.0),
    "fp8 with a compiled loss on 4 nodes": (32, {"training.precision": "fp8"}, 47.96),
}


def peak(gpus, saves, **more):
    words = (
        "tp=1 pp=1 zero=3 parallelism.sequence_parallel=false micro_batch=2 seq=8192 recompute=full predictor=roofline"
    )
    changes = {**parsed(words), "parallelism.dp": gpus, "training.global_batch": 2 * gpus, "model.vocab_multiple": 1}
    changes |= {"training.recompute_saves": saves, **more}
    cluster = "topologies/hgx_h100_8.yaml" if gpus == 8 else "topologies/superpod_h100_128.yaml"
    summary = simulate(cluster, "workloads/llama3_8b.yaml", changes, ignore_memory=True, engine="auto").summary
    return summary["memory"]["peak_bytes"] / 2**30


@pytest.mark.parametrize("case", TITAN)
def test_peaks_of_torchtitan_are_those_of_its_policy(case):
    gpus, more, measured = TITAN[case]
    assert peak(gpus, ["op"], **more) == pytest.approx(measured, rel=0.07)
    assert peak(gpus, ["context"], **more) < 0.8 * measured
    assert peak(gpus, ["minimal_with_context"], **more) > 1.1 * measured
