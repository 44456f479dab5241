"""Sizes of published models by their config.json: right or refused by name, and never silently wrong."""

import json
import math
import os
from pathlib import Path

import pytest
from published_models import MODELS, REFUSED, WILD

from clustersim.config.workload import Model
from clustersim.config.yaml import read
from clustersim.convert.hugging_face_workload import converted
from clustersim.errors import InputError
from clustersim.model.parameters import parameters
from clustersim.parallel.load import load

CONFIGS = Path(os.environ.get("CLUSTERSIM_DATA", "")).parent / "wild" / "configs"


def written(folder, keys):
    path = folder / "config.json"
    path.write_text(json.dumps(keys), encoding="utf-8")
    return path


def model_of(path):
    return Model.model_validate(converted(read(path)).data["model"])


def is_close(count, published):
    """Return whether a count is within 1 % of a published figure, or rounds to it up or down, as publishers do."""
    unit = 10.0 ** -len(f"{published:g}".partition(".")[2])
    return abs(count - published) <= max(0.01 * published, 0.5 * unit) or math.isclose(
        math.floor(count / unit) * unit, published
    )


def check(model, total, active):
    """Compare with and without the tables of embedding and head, for active parameters are published in each way."""
    assert parameters(model) / 1e9 == pytest.approx(total, rel=0.01)
    if active is None:
        assert parameters(model, active=True) == parameters(model)
        return
    table = model.vocab * model.hidden / 1e9
    whole = parameters(model, active=True) / 1e9
    assert any(is_close(whole - tables * table, active) for tables in range(2 if model.tied_embeddings else 3))


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_has_its_published_parameters(name, tmp_path):
    total, active, _, keys = MODELS[name]
    check(model_of(written(tmp_path, keys)), total, active)


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="needs the folder wild/configs beside CLUSTERSIM_DATA")
@pytest.mark.parametrize("name", WILD)
def test_a_config_of_others_has_its_published_parameters(name):
    total, active, _ = WILD[name]
    check(model_of(CONFIGS / name / "config.json"), total, active)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_modelled_is_refused_by_name(name, tmp_path):
    keys, key = REFUSED[name]
    with pytest.raises(InputError, match=key):
        load(written(tmp_path, keys))


@pytest.mark.parametrize("name", MODELS)
def test_every_further_key_is_refused(name, tmp_path):
    keys = {**MODELS[name].keys, "hypernetwork_rank": 8}
    with pytest.raises(InputError, match="hypernetwork_rank: not read for model_type"):
        load(written(tmp_path, keys))


@pytest.mark.parametrize(
    "name", ["kimi_linear", "lfm2_8b_a1b", "bamba_9b", "longcat_flash", "dbrx", "mpt_7b", "arctic"]
)
def test_a_published_model_is_a_workload(name, tmp_path):
    """It divides and fits together as one that is written by hand."""
    job = load(written(tmp_path, MODELS[name].keys), {"training.global_batch": 64, "training.seq": 2048})
    assert job.model.layers == model_of(tmp_path / "config.json").layers


HARMLESS = [
    "_name_or_path",
    "architectures",
    "auto_map",
    "attention_dropout",
    "bos_token_id",
    "cache_implementation",
    "embedding_multiplier",
    "ep_size",
    "final_logit_softcapping",
    "initializer_range",
    "layer_norm_epsilon",
    "mamba_ssm_cache_dtype",
    "moe_router_enable_expert_bias",
    "mm_tokens_per_image",
    "norm_topk_prob",
    "num_logits_to_keep",
    "output_router_logits",
    "original_max_position_embeddings",
    "pretraining_tp",
    "quantization_config",
    "query_pre_attn_scalar",
    "residual_in_fp32",
    "routed_scaling_factor",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "scoring_func",
    "seq_aux",
    "swiglu_limit",
    "time_step_limit",
    "topk_method",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_mamba_kernels",
    "vision_config",
]
"""Keys of published files that have no weights, nor change those of others."""


@pytest.mark.parametrize("name", MODELS)
def test_keys_without_weights_are_not_refused(name, tmp_path):
    keys = {**dict.fromkeys(HARMLESS, "something"), **MODELS[name].keys}
    assert model_of(written(tmp_path, keys)) == model_of(written(tmp_path, MODELS[name].keys))


def test_layers_are_dense_or_sparse_by_name_too(tmp_path):
    """`mlp_layer_types` of transformers 5 says what first_k_dense_replace does."""
    keys = MODELS["glm4.5_air"].keys
    named = {**keys, "first_k_dense_replace": 0, "mlp_layer_types": ["dense", *["sparse"] * 45]}
    assert model_of(written(tmp_path, named)) == model_of(written(tmp_path, keys))
