"""Sizes of published models by their config.json: right or refused by name, and never silently wrong."""

import math
import os
from pathlib import Path

import pytest
from published_models import BESIDE, HARMLESS, KEYS, PUBLISHED, REFUSED, SHIPPED, written

from clustersim.config import shipped
from clustersim.config.workload import Model
from clustersim.config.yaml import read
from clustersim.convert.hugging_face_workload import converted
from clustersim.errors import InputError
from clustersim.model.parameters import kinds, parameters
from clustersim.parallel.load import load

CONFIGS = Path(os.environ.get("CLUSTERSIM_DATA", "")).parent / "wild" / "configs"


def model_of(path):
    return Model.model_validate(converted(read(path)).data["model"])


def is_close(count, published):
    """Return whether a count is within 1 % of a published figure, or rounds to it up or down, as publishers do."""
    unit = 10.0 ** -len(f"{published:g}".partition(".")[2])
    return abs(count - published) <= max(0.01 * published, 0.5 * unit) or math.isclose(
        math.floor(count / unit) * unit, published
    )


def check(model, published):
    """Compare with and without the tables of embedding and head, for active parameters are published in each way."""
    assert parameters(model) / 1e9 == pytest.approx(published.total, rel=published.within)
    if not model.experts:
        assert parameters(model, active=True) == parameters(model)
    if published.active is None:
        return
    table = model.vocab * model.hidden / 1e9
    whole = parameters(model, active=True) / 1e9
    assert any(
        is_close(whole - tables * table, published.active) for tables in range(2 if model.tied_embeddings else 3)
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_a_config_is_the_shipped_model_of_its_name(name, tmp_path):
    found, ours = (load(path).model for path in (written(tmp_path, KEYS[name]), shipped.files("workloads")[name]))
    assert parameters(found, mtp=True) == parameters(ours, mtp=True)
    assert parameters(found, active=True) == parameters(ours, active=True)
    kept = {"window", "activation", "norm", "norm_position", "positions", "causal", "head_transform", "mla", "qk_norm"}
    for one, other in zip(kinds(found), kinds(ours), strict=True):
        assert one.model_dump(include=kept) == other.model_dump(include=kept)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_published_parameters(name, tmp_path):
    check(model_of(written(tmp_path, KEYS[name])), PUBLISHED[name])


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="needs the folder wild/configs beside CLUSTERSIM_DATA")
@pytest.mark.parametrize("name", BESIDE)
def test_a_config_of_others_has_its_published_parameters(name):
    check(model_of(CONFIGS / name / "config.json"), BESIDE[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_modelled_is_refused_by_name(name, tmp_path):
    keys, key = REFUSED[name]
    with pytest.raises(InputError, match=key):
        load(written(tmp_path, keys))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_further_key_with_weights_is_refused(name, tmp_path):
    with pytest.raises(InputError, match="hypernetwork_rank: not read for model_type"):
        load(written(tmp_path, {**KEYS[name], "hypernetwork_rank": 8}))


@pytest.mark.parametrize(
    "name", ["kimi_linear", "lfm2_8b_a1b", "bamba_9b", "longcat_flash", "dbrx", "mpt_7b", "arctic"]
)
def test_a_published_model_is_a_workload(name, tmp_path):
    """It divides and fits together as one that is written by hand."""
    job = load(written(tmp_path, KEYS[name]), {"training.global_batch": 64, "training.seq": 2048})
    assert job.model.layers == model_of(tmp_path / "config.json").layers


@pytest.mark.parametrize("name", ["olmo2", "smollm3", "starcoder2_15b", "dots1", "chatglm"])
def test_a_decoder_that_is_not_built_in_says_that_it_is_read_by_its_keys(name, tmp_path):
    said = f"without what the code of {KEYS[name]['model_type']} does otherwise than a decoder with "
    assert load(written(tmp_path, KEYS[name])).assumed[-1].startswith(said)


@pytest.mark.parametrize("name", PUBLISHED)
def test_keys_without_weights_are_not_refused(name, tmp_path):
    keys = {**dict.fromkeys(HARMLESS, "something"), **KEYS[name]}
    assert model_of(written(tmp_path, keys)) == model_of(written(tmp_path, KEYS[name]))


def test_layers_are_dense_or_sparse_by_name_too(tmp_path):
    """`mlp_layer_types` of transformers 5 says what first_k_dense_replace does."""
    keys = KEYS["glm4.5_air"]
    named = {**keys, "first_k_dense_replace": 0, "mlp_layer_types": ["dense", *["sparse"] * 45]}
    assert model_of(written(tmp_path, named)) == model_of(written(tmp_path, keys))
