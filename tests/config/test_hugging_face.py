"""config.json files of published models as workloads: their sizes, flags and defaults, and what is wrong with them."""

import json

import pytest
from published_models import ELSEWHERE, KEYS, written

from clustersim.config.workload import LatentAttention, Model
from clustersim.convert.architectures import ARCHITECTURES
from clustersim.convert.hugging_face_workload import NAMES
from clustersim.errors import ClustersimError, InputError
from clustersim.model.parameters import kinds, parameters
from clustersim.parallel.load import load


def test_windows_of_gemma_and_what_its_smallest_leaves_out(tmp_path):
    """Five of six layers of Gemma 3 slide, every other one of Gemma 2; the 4B file says neither heads nor vocabulary."""
    for name, slide in (("gemma2_27b", 23), ("gemma3", 52)):
        found = load(written(tmp_path, KEYS[name])).model
        assert sum(bool(kind.window) for kind in kinds(found)) == slide
    small = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    found = load(written(tmp_path, {"model_type": "gemma3", "text_config": {**small, "rope_theta": 1e6}})).model
    # Gemma 3 4B: 0.675 + 3.209 billion (arXiv 2503.19786, table 1)
    assert parameters(found) == pytest.approx(3.884e9, rel=0.005)


BY_KEYS = {"olmo2", "smollm3", "starcoder2", "dots1", "chatglm", "bloom", "gptj", "bailing_moe", "bailing_moe_v2"}
"""Types that are read by their keys alone."""


def test_every_architecture_is_tested():
    assert set(ARCHITECTURES) == {keys["model_type"] for keys in KEYS.values()} - BY_KEYS | {*ELSEWHERE}


def test_a_text_model_may_stand_by_itself(tmp_path):
    inner = KEYS["llama4_scout"]["text_config"]
    assert load(written(tmp_path, inner)).model == load(written(tmp_path, KEYS["llama4_scout"])).model


def test_flags_decide_and_defaults_are_stated(tmp_path):
    path = written(tmp_path, KEYS["llama3_8b"])
    plain, split = load(path), load(path, {"parallelism.tp": 4, "training.seq": 8192, "parallelism.zero": 0})
    assert plain.assumed == (
        "training.seq 4096",
        "training.global_batch 1024 (4 Mi tokens a step)",
        "training.precision bf16",
        "parallelism.zero 1 (distributed optimizer)",
        "parallelism.overlap.grad_reduce true",
        "parallelism.overlap.param_gather true",
        "8.03 billion parameters",
    )
    assert split.assumed == (
        "training.global_batch 512 (4 Mi tokens a step)",
        "training.precision bf16",
        "parallelism.sequence_parallel true (with tp)",
        "8.03 billion parameters",
    )
    mixture = load(written(tmp_path, KEYS["qwen3_30b_a3b"]))
    assert "30.53 billion parameters, 3.353 billion for one token" in mixture.assumed
    assert (split.parallelism.sequence_parallel, split.parallelism.zero, split.training.global_batch) == (True, 0, 512)


def test_what_is_left_out_is_said(tmp_path):
    assert load(written(tmp_path, KEYS["gpt_oss_20b"])).assumed[-2:] == (
        "without attention sinks, one number a head",
        "without biases of experts",
    )


def test_run_takes_a_config_and_says_what_it_assumed(tmp_path, command_line):
    path = written(tmp_path, KEYS["qwen3_8b"])
    asked = ("run", "hgx_h100_8", "--model", str(path.parent), "--tp", "4", "--sequence", "2048", "--no-save", "--json")
    code, out, _ = command_line(*asked, "--global-batch", "16", "--predictor", "roofline")
    assert code == 0
    assert json.loads(out)["assumed"][0] == "training.precision bf16"


SOUND = KEYS["qwen3_30b_a3b"]
NEMOTRON = {"model_type": "nemotron_h", "hidden_act": "relu2"}
WRONG = {
    '{"model_type": ""}': "config.json: model_type '' is not built in; known: apertus, arctic,",
    json.dumps(NEMOTRON | {"hybrid_override_pattern": "M" * 48, "mamba_num_heads": 128}): (
        "lacks mamba_d_state; a config.json of model_type 'nemotron_h' has it"
    ),
    '{"laurel_rank": 64, "hidden_size_per_layer_input": 256}': (
        "laurel_rank, hidden_size_per_layer_input: not read for model_type 'qwen3_moe', and may change its "
        "shapes; write a"
    ),
    '{"model_type": null}': "lacks model_type; a Hugging Face config.json has it; or see `clustersim import`",
    '{"hidden_size": null}': "lacks hidden_size; a config.json of model_type 'qwen3_moe' has it",
    '{"num_hidden_layers": -1}': "num_hidden_layers is -1; it must be a whole number of at least 1",
    '{"vocab_size": "many"}': "vocab_size is 'many'; it must be a whole number of at least 1",
    '{"hidden_act": "tanh"}': "hidden_act 'tanh' is not supported; known: gelu,",
    '{"num_key_value_heads": 5}': (
        "config.json:10:26: num_key_value_heads: 5 does not divide 32 heads; use 1, 2, 4, 8, 16, 32"
    ),
    '{"num_experts_per_tok": 256}': "num_experts_per_tok: 256 is more than the 128 experts; use at most 128",
    '{"mlp_only_layers": 3}': "mlp_only_layers is 3; it is a list of numbers of layers",
    '{"tie_word_embeddings": "no"}': "tie_word_embeddings is 'no'; it must be true or false",
    '{"decoder_sparse_step": 999}': "decoder_sparse_step: leaves no layer with experts of 48; drop num_experts",
    '{"model_type": "qwen3"}': "num_experts is 128, and model_type 'qwen3' has no experts; write that of a mixture",
}
"""What a sound file says instead, as JSON, null for nothing; and the sentence."""


def test_a_broken_file_is_no_json(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama",\n "hidden_size": ', encoding="utf-8")
    with pytest.raises(ClustersimError, match=r"config.json:\d+:\d+: not valid JSON: "):
        load(path)


def test_messages_say_the_names_of_the_file(tmp_path):
    """Also where the model stands in a section of its own."""
    nested = KEYS["llama4_scout"]
    for name, keys in (
        ("first_k_dense_replace", {**KEYS["deepseek_v3"], "first_k_dense_replace": 61}),
        ("n_head", {**KEYS["gpt2_large"], "n_head": 7}),
        ("vocab_size", {**nested, "text_config": {**nested["text_config"], "vocab_size": 10**12}}),
    ):
        path = written(tmp_path, keys)
        line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if f'"{name}"' in text)
        with pytest.raises(ClustersimError, match=rf"config\.json:{line}:\d+: {name}: "):
            load(path)
    assert {key.split(".")[0] for key in NAMES} <= set(Model.model_fields)
    assert {key.split(".")[1] for key in NAMES if "." in key} == set(LatentAttention.model_fields)


@pytest.mark.parametrize(("change", "message"), WRONG.items())
def test_what_is_wrong_gets_one_sentence(change, message, tmp_path):
    with pytest.raises(ClustersimError) as caught:
        load(
            written(
                tmp_path, {key: value for key, value in {**SOUND, **json.loads(change)}.items() if value is not None}
            )
        )
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_kinds_of_layers_are_counted(tmp_path):
    keys = {**KEYS["gpt_oss_20b"], "layer_types": ["sliding_attention", "full_attention"]}
    with pytest.raises(ClustersimError, match="layer_types must name each of the 24 layers; list as many"):
        load(written(tmp_path, keys))


def test_too_long_a_sequence_and_a_split_that_does_not_divide(tmp_path):
    path = written(tmp_path, KEYS["llama3_8b"])
    with pytest.raises(ClustersimError, match=r"training\.seq: 9000 is longer than max_position_embeddings 8192"):
        load(path, {"training.seq": 9000})
    with pytest.raises(ClustersimError, match=r"command line\): model\.kv_heads: 5 does not divide 32 heads"):
        load(path, {"model.kv_heads": 5})  # which the file does not say
    with pytest.raises(ClustersimError, match=r"parallelism\.tp: 3 does not divide 32 attention heads; use 1, 2, 4, 8"):
        load(path, {"parallelism.tp": 3})


def test_a_model_stands_in_the_place_of_a_workload(tmp_path, command_line):
    path = str(written(tmp_path, KEYS["llama3_8b"]))
    both, none = (command_line("run", "hgx_h100_8", *more) for more in (["gpt3", "--model", path], []))
    assert (both[0], none[0]) == (2, 2)
    assert "exclude each other; give one of them" in both[2]
    assert "Missing argument 'WORKLOAD'; give a workload, or a model's config.json with --model" in none[2]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"training": 5}, "training: 5 must be a mapping of keys"),
        ({"parallelism.overlap": 3}, "parallelism.overlap: 3 must be a mapping of keys"),
        ({"model.max_positions": "x"}, "model.max_positions: x must be a whole number"),
    ],
)
def test_a_section_that_is_none_is_said_before_what_is_assumed(tmp_path, changes, sentence):
    path = written(tmp_path, KEYS["llama3_8b"])
    with pytest.raises(InputError) as error:
        load(path, changes)
    assert str(error.value).endswith(sentence)
