"""Adapters from PEFT's adapter_config.json, Megatron-Bridge's and NeMo's sections, and the command line."""

import json

import pytest

from clustersim.config.yaml import parse
from clustersim.convert.megatron_arguments import script
from clustersim.errors import ConfigError, InputError
from clustersim.parallel.load import build, load

LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 2816, "vocab_size": 32000, "max_position_embeddings": 4096, "hidden_act": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip
PEFT = {
    "peft_type": "LORA",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "bias": "none",
    "target_modules": ["q_proj", "v_proj"],
}
TEXT = "name: x\nmodel: {layers: 2, hidden: 512, heads: 8, vocab: 1024}\ntraining: {global_batch: 8, seq: 256}\n"


def folder(tmp_path, adapter=None, **config):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | config))
    if adapter is not None:
        (tmp_path / "adapter_config.json").write_text(
            adapter if isinstance(adapter, str) else json.dumps(PEFT | adapter)
        )
    return tmp_path / "config.json"


def test_pefts_file_beside_a_config_is_read(tmp_path):
    one = load(folder(tmp_path, {}))
    lora = one.training.lora
    assert (lora.rank, lora.alpha, lora.dropout, lora.base) == (8, 16, 0.05, None)
    assert lora.targets == ("linear_q", "linear_v")
    assert "adapters of rank 8 (adapter_config.json)" in one.assumed
    assert load(folder(tmp_path), {"training.lora.rank": 64}).training.lora.rank == 64
    (tmp_path / "adapter_config.json").unlink()
    assert load(tmp_path / "config.json").training.lora is None


@pytest.mark.parametrize(
    ("said", "targets"),
    [
        ("all-linear", ["q", "k", "v", "proj", "fc1_gate", "fc1_up", "fc2"]),
        (["model.layers.0.self_attn.q_proj", "o_proj"], ["q", "proj"]),
        (["qkv_proj", "o_proj"], ["qkv", "proj"]),  # MLPerf's reference
        (["gate_up_proj", "down_proj"], ["fc1", "fc2"]),
    ],
)
def test_names_of_modules_are_targets(tmp_path, said, targets):
    lora = load(folder(tmp_path, {"target_modules": said})).training.lora
    assert list(lora.targets) == [f"linear_{name}" for name in targets]


def test_a_quantized_base_is_nf4(tmp_path):
    packed = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    assert load(folder(tmp_path, {}, quantization_config=packed)).training.lora.base == "nf4"
    assert load(folder(tmp_path, {}, quantization_config={"load_in_8bit": True})).training.lora.base == "int8"


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("{", "adapter_config.json:2:1: not valid JSON"),
        ({"peft_type": "IA3"}, "peft_type must be LORA"),
        ({"use_dora": True}, "use_dora True is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias 'all' trains biases too"),
        ({"target_modules": ["lm_head"]}, "'lm_head' is not a known linear"),
        ({"r": "many"}, "training.lora.rank"),
    ],
)
def test_what_pefts_file_says_otherwise_is_refused(tmp_path, adapter, said):
    with pytest.raises((InputError, ConfigError)) as caught:
        load(folder(tmp_path, adapter))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "peft: {peft_scheme: lora, dim: 16, alpha: 32, dropout: 0.1, target_modules: [linear_qkv, linear_proj],"
        " a2a_experimental: true}",
        "peft:\n  peft_scheme: lora\n  lora_tuning: {adapter_dim: 16, alpha: 32, adapter_dropout: 0.1,"
        " target_modules: [attention], a2a_experimental: 1}",
    ],
)
def test_megatron_bridges_and_nemos_sections_are_read(text):
    lora = build(parse(TEXT + text + "\n", "x.yaml")).training.lora
    assert (lora.rank, lora.alpha, lora.dropout, lora.a2a) == (16, 32, 0.1, True)
    assert lora.targets == ("linear_qkv", "linear_proj")


def test_the_scheme_alone_has_megatron_bridges_defaults():
    lora = build(parse(TEXT, "x.yaml"), {"peft_scheme": "lora"}).training.lora
    assert (lora.rank, lora.targets) == (32, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"))
    assert build(parse(TEXT, "x.yaml"), {"peft_scheme": "none"}).training.lora is None
    assert build(parse(TEXT, "x.yaml"), {"lora_rank": "8"}).training.lora.rank == 8


def test_megatron_lm_has_no_arguments_for_it():
    one = build(parse(TEXT, "x.yaml"), {"training.lora.rank": 8})
    with pytest.raises(InputError, match=r"training.lora: pretrain_gpt.py has no argument for it"):
        script(one.spec, 1, 8)
