"""The table of framework defaults: found by the words people write, every value with a source."""

from dataclasses import fields

import pytest

from clustersim.errors import UnknownNameError
from clustersim.frameworks import everything, find, load, unseen
from clustersim.validate.runs import Run

KEYS = {
    *("training.attention", "training.kernels", "training.recompute", "training.gradients", "training.optimizer"),
    *("model.dropout", "model.vocab_multiple", "parallelism.zero"),
}


@pytest.mark.parametrize(
    ("words", "year", "name"),
    [
        ("NeMo/Megatron-Core + TE", 2024, "nemo"),
        ("NeMo 2.0 25.02", 2025, "nemo"),
        ("Megatron-LM v1.x", 2020, "megatron-2020"),
        ("Megatron-LM", 2022, "megatron-2020"),
        ("Megatron-LM 23e00ed0 + TE 2.11", 2026, "megatron-core"),
        ("Megatron-LM", None, "megatron-core"),
        ("Megatron-LM + DeepSpeed ZeRO-1", 2021, "megatron-deepspeed"),
        ("Megatron-DeepSpeed (BigScience)", 2022, "megatron-deepspeed"),
        ("Composer/llm-foundry (PyTorch FSDP)", 2023, "llm-foundry-2023"),
        ("Composer/llm-foundry (PyTorch FSDP)", 2025, "llm-foundry"),
        ("MaxText (JAX/XLA)", 2024, "maxtext"),
        ("torchtitan", 2025, "torchtitan"),
        ("nanotron", 2024, "nanotron"),
    ],
)
def test_a_framework_is_found_by_the_words_people_write(words, year, name):
    assert find(words, year).name == name


def test_words_that_name_no_framework_or_several_find_none():
    assert find("my own trainer", 2024) is None
    assert find("nanotron and torchtitan", 2024) is None


@pytest.mark.parametrize("one", everything(), ids=lambda one: one.name)
def test_every_framework_says_the_same_things_each_with_its_source(one):
    assert set(one.defaults) >= KEYS
    assert all(default.source for default in (*one.defaults.values(), *one.facts.values()))
    assert load(one.name) == one


def test_a_framework_has_what_it_extends_but_for_the_keys_that_it_writes():
    base, own, release = (load(name) for name in ("fsdp", "llm-foundry", "llm-foundry-2023"))
    assert own.host.kernel == base.host.kernel
    assert own.host.parameter.value == 9 * base.host.parameter.value
    assert own.facts.keys() > base.facts.keys()
    assert {key for key in own.defaults if own.defaults[key] != release.defaults[key]} == {"training.attention"}
    assert (release.since, release.until, release.stages) == (0, 2024, "any")


def test_gradients_go_by_the_precision_of_the_training():
    assert load("megatron-2020").value("training.gradients", "fp16") == "fp16"
    assert load("megatron-core").value("training.gradients", "bf16") == "fp32"


def test_transformer_engine_takes_cudnns_attention_from_hopper_on():
    for name in ("megatron-core", "nemo"):
        found = {gpu: load(name).value("training.attention", "bf16", gpu) for gpu in ("ampere", "hopper", "blackwell")}
        assert found == {"ampere": "flash", "hopper": "cudnn", "blackwell": "cudnn"}


def test_recipes_name_columns_of_runs_and_keys_that_have_defaults():
    columns = {field.name for field in fields(Run)}
    found = [(one, recipe) for one in everything() for recipe in one.recipes]
    assert len(found) == 14
    for one, recipe in found:
        assert set(recipe.of) <= columns
        assert set(recipe.values) <= set(one.defaults)
        assert recipe.source


def test_what_a_launch_takes_had_nobody_seen_the_source_it_was_read_from():
    own, other = (load(name).host.kernel for name in ("megatron-deepspeed", "nanotron"))
    assert unseen(load("megatron-deepspeed"), "VTRAINS") == pytest.approx(other.value / own.value)
    assert unseen(load("nanotron"), "ULTRA") == pytest.approx(own.value / other.value)
    assert unseen(load("megatron-deepspeed"), "ULTRA") is None  # its figure is not from there
    assert unseen(load("maxtext"), "VTRAINS") is None


def test_an_unknown_framework_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="nemo"):
        load("nemmo")
