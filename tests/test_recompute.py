"""Recomputation by number of layers and by module: what runs again, what is not kept, and what that costs."""

import pytest

from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective
from clustersim.parallel.flops import attention_flop, hardware_flop, linear_flop, model_flop
from clustersim.parallel.load import build
from clustersim.parallel.stages import stages

MLA = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_head_dim": 32, "qk_pos_emb_head_dim": 16, "v_head_dim": 24}
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


def products(steps):
    return sum(
        s.flop for s in steps if isinstance(s, Kernel) and s.kind in ("linear", "grouped_gemm", "flash_attention")
    )


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
    assert whole.working_bytes >= min(together, 8) * only(**alike).working_bytes


BROKEN = {
    "modules of nothing": (
        {"training__recompute_modules": ["moe"]},
        "training.recompute_modules: need training.recompute: selective, not none; write it or leave them out",
    ),
    "layers of nothing": (
        {"training__recompute": "selective", "training__recompute_layers": 2},
        "training.recompute_layers: needs training.recompute: full, not selective; write it or leave it out",
    ),
    "how many layers": (
        {"training__recompute": "full", "training__recompute_method": "block"},
        "training.recompute_method: block needs training.recompute_layers, of how many layers a stage; add it",
    ),
    "a module that there is not": (
        {"training__recompute": "selective", "training__recompute_modules": ["mla_up_proj"], "model__mla": None},
        "training.recompute_modules.0: mla_up_proj is no part of this model; leave it out",
    ),
    "a module that nobody knows": (
        {"training__recompute": "selective", "training__recompute_modules": ["rope"]},
        "training.recompute_modules.0: rope is not known; write 'core_attn', 'layernorm',",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_contradicts_gets_one_sentence(case):
    overrides, message = BROKEN[case]
    with pytest.raises(ConfigError) as caught:
        job(**overrides)
    assert message in str(caught.value)
