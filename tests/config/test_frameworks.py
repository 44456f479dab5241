"""The table of framework defaults: found by the words people write, every value with a source."""

from dataclasses import fields

import pytest
import yaml

from clustersim.config.fields import validate
from clustersim.config.workload import Workload
from clustersim.config.yaml import Document
from clustersim.errors import ConfigError
from clustersim.frameworks.table import Evidence, JobRecipe, LaunchTime, everything, find, load, unseen
from clustersim.hardware.constants import STEP_CALL
from clustersim.parallel.load import load as job
from clustersim.validate.runs import Run

KEYS = {
    *("training.attention", "training.kernels", "training.recompute", "training.gradients", "training.optimizer"),
    *("model.dropout", "model.vocab_multiple", "parallelism.zero"),
}

MODEL = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 128}
TRAINING = {"global_batch": 8, "seq": 32}


@pytest.mark.parametrize(
    ("words", "year", "name"),
    [
        ("NeMo/Megatron-Core + TE", 2024, "nemo-2024"),
        ("Megatron-LM (Jan 2021, non-interleaved 1F1B)", 2021, "megatron-2020"),
        ("Megatron-LM", 2022, "megatron-2022"),
        ("Megatron-LM", None, "megatron-core"),
        ("Megatron-LM + DeepSpeed ZeRO-1", 2021, "megatron-deepspeed"),
        ("HF accelerate + Megatron-LM", 2024, "megatron-core-2024"),
        ("Megatron-LM (FSDP2)", 2025, "megatron-core"),
        ("Megatron-Bridge 26.02 (Megatron-Core + TE)", 2026, "megatron-bridge"),
        ("torchtitan (PyTorch FSDP2)", 2024, "torchtitan-2024"),
        ("IBM fms-fsdp (PyTorch FSDP)", 2024, "fms-fsdp"),
        ("NeMo AutoModel (FSDP2)", 2025, "nemo-automodel"),
        ("Primus torchtitan", 2026, "primus-torchtitan"),
        ("PyTorch (NVIDIA DeepLearningExamples BERT, apex DDP, NGC 20.03)", 2020, "deeplearningexamples"),
    ],
)
def test_a_framework_is_found_by_the_words_people_write(words, year, name):
    assert find(words, year).name == name


def test_short_names_are_whole_words_and_long_ones_may_be_parts_of_words():
    assert not any(find(words) for words in ("Paxos training", "compax", "contrl"))
    named = [("Pax", "paxml"), ("OpenXLA", "jax"), ("torch_xla", "jax"), ("FSDP2", "fsdp"), ("OLMoE", "pytorch")]
    assert [find(words).name for words, _ in named] == [name for _, name in named]
    assert find("NeMo2407", 2024).name == "nemo-2024"
    assert find("MegatronLM").name == "megatron-core"


@pytest.mark.parametrize("one", everything(), ids=lambda one: one.name)
def test_a_framework_is_found_in_its_last_year_beside_the_words_of_all_that_it_is_built_on(one):
    year = one.until if one.until < 9999 else None
    for below in ("", *(load(name).match[0] for name in one.over)):
        assert find(f"{one.match[0]} 1.2 ({below})", year) == one


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("PyTorch FSDP2", "fsdp"),
        ("PyTorch DDP", "pytorch"),
        ("Hugging Face Transformers + DeepSpeed ZeRO-3", "deepspeed"),
        ("JAX (pjit)", "jax"),
    ],
)
def test_words_of_no_framework_are_what_they_say_with_what_is_assumed(words, name):
    found = find(words, 2024)
    assert found.name == name
    assert found.assumes


def test_a_framework_that_is_named_assumes_nothing():
    assert not any(find(name, 2024).assumes for name in ("NeMo", "torchtitan (FSDP2)", "PaxML (JAX)", "Megatron-LM"))


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
    assert {key for key in own.defaults if own.defaults[key] != release.defaults[key]} == {
        *("training.attention", "training.recompute_saves_full")
    }
    assert (release.since, release.until, release.stages) == (0, 2024, "any")


def test_transformer_engine_takes_cudnns_attention_from_hopper_on():
    for name in ("megatron-core", "nemo"):
        found = {gpu: load(name).value("training.attention", "bf16", gpu) for gpu in ("ampere", "hopper", "blackwell")}
        assert found == {"ampere": "flash", "hopper": "cudnn", "blackwell": "cudnn"}


APART = {  # other values of a key, by what else a run has
    "parallelism.overlap.p2p_interleaved": "parallelism.overlap.p2p",
    "parallelism.overlap.grad_reduce_sharded": "parallelism.overlap.grad_reduce",
    "training.recompute_saves_full": "training.recompute_saves",
}


@pytest.mark.parametrize("one", everything(), ids=lambda one: one.name)
def test_every_default_is_a_value_that_a_workload_takes(one):
    for key, default in one.defaults.items():
        values = default.value.values() if isinstance(default.value, dict) else [default.value]
        for value in [*values, *([default.otherwise] if default.read_from else [])]:
            spec = {"model": dict(MODEL), "training": dict(TRAINING), "parallelism": {}}
            *parents, last = APART.get(key, key).split(".")
            here = spec
            for part in parents:
                here = here.setdefault(part, {})
            here |= {} if value is None else {last: value}  # none: the workload must say it
            validate(Workload, Document("w.yaml", {"name": "one", **spec}, {}))


MIXTURE = {**MODEL, "experts": 8, "topk": 2, "ffn": 64}


def split(tmp_path, **said):
    """Return how PithTrain splits a mixture of four layers over expert groups of 2, with other values."""
    training = {**TRAINING, "framework": "pith-train", "micro_batch": 1}
    spec = {"name": "one", "model": {**MIXTURE, "layers": 4}, "training": training, "parallelism": {"ep": 2, **said}}
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(spec))
    return job(tmp_path / "w.yaml")


def test_what_a_framework_does_in_every_run_need_not_be_said(tmp_path):
    found = split(tmp_path)
    one = found.parallelism
    assert (one.schedule, one.vpp, one.overlap.ep, one.overlap.sms) == ("dualpipev", 2, "microbatch", "nccl")
    assert "parallelism.schedule dualpipev (pith-train's)" in found.assumed
    assert not [said for said in split(tmp_path, schedule="dualpipev", vpp=2).assumed if "schedule dual" in said]


@pytest.mark.parametrize("framework", ["torchtitan", "pytorch", "fsdp"])
def test_what_a_framework_does_by_default_is_not_said(framework, tmp_path):
    training = {**TRAINING, "framework": framework}
    (tmp_path / "w.yaml").write_text(yaml.safe_dump({"name": "one", "model": MODEL, "training": training}))
    assert job(tmp_path / "w.yaml").assumed == ()
    fp8 = job(tmp_path / "w.yaml", {"training.precision": "fp8", "training.framework": "torchtitan"})
    assert fp8.assumed == ("training.fp8_scaling current (torchtitan's)",)


def test_a_run_with_another_schedule_has_nothing_of_it(tmp_path):
    one = split(tmp_path, schedule="1f1b").parallelism
    assert (one.schedule, one.vpp, one.overlap.ep, one.overlap.sms) == ("1f1b", 1, "none", 0)
    with pytest.raises(ConfigError, match="overlap"):
        split(tmp_path, overlap=3)


@pytest.mark.parametrize("one", [one for one in everything() if one.host], ids=lambda one: one.name)
def test_a_choice_has_the_default_of_its_framework(one):
    for key, choice in one.choices.items():
        own = one.defaults[key].value if key in one.defaults else choice.values[0]
        assert set(own.values() if isinstance(own, dict) else [own]) <= set(choice.values)


def evidence(one):
    """Whatever of a framework has a source."""
    host = [value for _, value in one.host or () if isinstance(value, Evidence)]
    return [*one.defaults.values(), *one.facts.values(), *one.recipes, *host]


def test_what_was_read_from_measured_steps_says_what_it_would_be_without():
    found = [(one, piece) for one in everything() for piece in evidence(one) if piece.read_from]
    assert {name for _, piece in found for name in piece.read_from} == {"VTRAINS", "ULTRA", "SIMUMAX", "SC21"}
    for _, piece in found:
        assert isinstance(piece, LaunchTime | JobRecipe) or "otherwise" in piece.model_fields_set


def test_a_framework_without_a_publisher_is_that_nobody_saw_it():
    one, less = load("nanotron"), load("nanotron without ULTRA")
    assert (one.host.unflattens.value, less.host.unflattens.value) == (6.5e-6, 12e-6)  # as any call of PyTorch
    assert less.host.drains.value
    assert less.host.kernel == one.host.kernel  # `unseen` says by how much
    assert load("nanotron without VTRAINS") == one
    assert not any(one.read_from for one in load("megatron-core without SIMUMAX").recipes)
    assert not load("megatron-2020 without SC21").recipes
    assert not load("megatron-deepspeed without VTRAINS").host.drains.value


def test_collectives_of_tensor_parallelism_run_under_products_since_2022():
    found = [find("Megatron-LM", year).value("parallelism.overlap.tp") for year in (2020, 2021, 2022, 2023, 2026)]
    assert found == ["none", "none", "bulk", "bulk", "bulk"]
    assert {
        load(name).value("parallelism.overlap.tp") for name in ("nemo-2023", "primus", "nanotron", "internevo")
    } == {"bulk"}
    assert find("NeMo 2.0 25.02", 2025).value("parallelism.overlap.tp") == "ring"
    assert {load(name).value("parallelism.overlap.tp") for name in ("torchtitan", "megatron-deepspeed")} == {"none"}
    assert "async" in load("torchtitan").choices["parallelism.overlap.tp"].values


@pytest.mark.parametrize(
    ("name", "said", "meant"),
    [
        ("torchtitan", "selective", ("full", ["op"])),
        ("torchtitan", "full", ("full", ["mlpwo"])),
        ("torchtitan", "none", ("none", [])),
        ("primus-torchtitan", "", ("none", [])),
        ("maxtext", "", ("full", ["mlpwo"])),
        ("paxml", "", ("full", ["minimal"])),
        ("megatron-core", "selective", ("selective", [])),
        ("llm-foundry-2023", "full", ("full", [])),
    ],
)
def test_what_a_run_says_of_recomputation_is_its_frameworks_policy(name, said, meant):
    assert load(name).recomputation(said, "bf16") == meant


def test_overlap_of_tensor_parallelism_is_the_most_that_a_framework_has():
    found = {one.name: one.overlapped_tp for one in everything()}
    assert {found[name] for name in ("nemo", "megatron-core", "megascale", "primus")} == {"ring"}
    assert {found[name] for name in ("torchtitan", "nemo-automodel")} == {"async"}
    assert {found[name] for name in ("megatron-2022", "nanotron", "internevo", "megatron-deepspeed")} == {"bulk"}


def test_recipes_name_columns_of_runs_and_keys_that_have_defaults():
    columns = {field.name for field in fields(Run)}
    found = [(one, recipe) for one in everything() for recipe in one.recipes]
    assert len(found) == 38
    for one, recipe in found:
        assert set(recipe.of) <= columns
        assert set(recipe.values) <= set(one.defaults)
        assert recipe.source


def test_what_a_launch_takes_had_nobody_seen_the_source_it_was_read_from():
    own, other = (load(name).host.kernel for name in ("megatron-deepspeed", "nanotron"))
    for name, mine, theirs in (("megatron-deepspeed", own, other), ("nanotron", other, own)):
        [source] = mine.read_from
        assert unseen(load(name), source) == pytest.approx((theirs.value * STEP_CALL) ** 0.5 / mine.value)
    assert unseen(load("megatron-deepspeed"), "ULTRA") is None  # its figure is not from there
    assert unseen(load("maxtext"), "VTRAINS") is None
