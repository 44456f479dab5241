"""Recipes of Megatron-Bridge in Python: read without running them as the job that the same settings in YAML are."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.api.launch import differences
from clustersim.config.yaml import Document, Position
from clustersim.convert.conversions import rows
from clustersim.convert.megatron_script import ImportRequest
from clustersim.convert.megatron_yaml import imported
from clustersim.convert.python_recipe import LIBRARY, recipe_sections
from clustersim.errors import InputError
from clustersim.parallel.load import build

RECIPES = '''
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing
from megatron.bridge.training.comm_overlap import CommOverlapConfig, userbuffers_of_somebody
from megatron.bridge.training.mixed_precision import bf16_mixed

LENGTH: int = 8192


def _sharded(cfg, bucket: int = 1000, *, overlap=True):
    """Set how gradients are reduced."""
    cfg.ddp.bucket_size = bucket
    cfg.ddp.overlap_grad_reduce = overlap
    cfg.ddp.overlap_param_gather = overlap


def small_pretrain_config():
    """Return a config with shapes of its own."""
    cfg = _pretrain_common()
    cfg.model = GPTModelProvider(num_layers=8, hidden_size=1024, num_attention_heads=16, vocab_size=50304, seq_length=LENGTH)
    cfg.dataset.seq_length = LENGTH
    cfg.train.global_batch_size = 4 * 16
    cfg.train.micro_batch_size = 1
    cfg.model.context_parallel_size = 2
    if cfg.model.context_parallel_size > 1:
        cfg.model.tensor_model_parallel_size = 2
    else:
        cfg.model.tensor_model_parallel_size = 1
    cfg.model.sequence_parallel = True
    opt_cfg, cfg.scheduler = distributed_fused_adam_with_cosine_annealing(max_lr=3e-4)
    cfg.optimizer = opt_cfg
    cfg.optimizer.exp_avg_dtype = torch.float32
    cfg.mixed_precision = bf16_mixed()
    cfg.mixed_precision.grad_reduce_in_fp32 = False
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True, tp_comm_overlap_cfg=userbuffers_of_somebody)
    cfg.checkpoint.save = folder_of(cfg)
    _sharded(cfg, 2000)
    return cfg


def published_pretrain_config():
    """Return a config with the shapes of a model at Hugging Face."""
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("openai/Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.model.pipeline_model_parallel_size = 2
    cfg.dataset.seq_length = LENGTH
    return cfg


def longer_pretrain_config():
    cfg = published_pretrain_config()
    cfg.dataset.seq_length = 2 * LENGTH
    return cfg
'''
SAVED = """
ddp: {check_for_nan_in_grad: true, use_distributed_optimizer: true, bucket_size: 2000,
  overlap_grad_reduce: true, overlap_param_gather: true}
mixed_precision: {recipe: bf16_mixed, grad_reduce_in_fp32: false}
comm_overlap: {tp_comm_overlap: true}
optimizer: {optimizer: adam, clip_grad: 1.0}
train: {global_batch_size: 64, micro_batch_size: 1}
dataset: {seq_length: 8192}
model: {num_layers: 8, hidden_size: 1024, num_attention_heads: 16, vocab_size: 50304, seq_length: 8192,
  context_parallel_size: 2, tensor_model_parallel_size: 2, sequence_parallel: true}
"""


def job_of(found):
    return build(Document("a.yaml", found.workload, {(): Position(1, 1)}))


def read(name, text=RECIPES, model=None, **changes):
    return imported("megatron-bridge", "a.py", text, ImportRequest({}, changes, model, recipe=name))


def test_a_recipe_is_the_job_of_the_same_settings_in_a_saved_file():
    recipe = job_of(read("small_pretrain_config"))
    saved = job_of(imported("megatron-bridge", "a.yaml", SAVED, ImportRequest()))
    assert not [*differences(recipe, saved), *differences(saved, recipe)]


def test_shapes_are_those_of_the_model_that_a_recipe_names_or_of_one_that_is_given():
    named, given = read("published_pretrain_config"), read("longer_pretrain_config", model="gpt_oss_20b")
    shipped = build(
        Document("a.yaml", {**named.workload, "training": {**named.workload["training"]}}, {(): Position(1, 1)})
    )
    assert (shipped.model.hidden, shipped.model.kv_heads, shipped.model.activation) == (4096, 8, "swiglu")
    assert not shipped.model.dropout and shipped.parallelism.pp == 2
    assert (shipped.training.global_batch, shipped.training.micro_batch, shipped.training.seq) == (32, 2, 8192)
    job = job_of(given)
    assert (job.model.experts, job.model.hidden, job.training.seq) == (32, 2880, 16384)


UNREAD = {
    "cfg.dataset.seq_length = LENGTH => for one in (1, 2): pass": "a.py:24: `for one in (1, 2):` cannot be read",
    "cfg.dataset.seq_length = LENGTH => if here(cfg): cfg.train.micro_batch_size = 4": "`if here(cfg):` cannot be read",
    "cfg.dataset.seq_length = LENGTH => cfg.dataset.seq_length = longest()": (
        "dataset.seq_length: '${line 24, longest()}' refers to nothing"
    ),
    "cfg = _pretrain_common() => cfg = common_of_ours()": "`cfg.model = GPTModelProvider(",
    "model = GPTModelProvider => model = OurProvider": "the file lacks the defaults of OurProvider; give --model",
    "vocab_size=50304,  => ": "lacks model.vocab_size",
    "_sharded(cfg, 2000) => small_pretrain_config()": "is called without end, as far as can be read",
    "    return cfg =>     return None": "returns a config that is not known",
    "_sharded(cfg, 2000) => _sharded(cfg, **sizes)": "`_sharded(cfg, **sizes)` cannot be read",
    "def small_pretrain_config(): => def small_pretrain_config(LENGTH):": "'${line 24, LENGTH}' refers to nothing",
    "vocab_size=50304, seq_length=LENGTH) => vocab_size=50304).with_size(seq_length=8)": "cannot be read",
}
"""What is replaced by what in the file => what the sentence says."""


@pytest.mark.parametrize("change", UNREAD)
def test_what_cannot_be_read_is_named_with_its_line(change):
    old, new = change.split(" => ")
    with pytest.raises(InputError, match=re.escape(UNREAD[change])):
        read("small_pretrain_config", RECIPES.replace(old, new, 1))


def test_a_file_of_several_recipes_needs_a_name():
    with pytest.raises(InputError, match=re.escape("has 3 recipes; give --recipe with one, such as small_pretrain")):
        imported("megatron-bridge", "a.py", RECIPES, ImportRequest())
    with pytest.raises(InputError, match="did you mean 'small_pretrain_config'"):
        read("smal_pretrain_config")
    assert recipe_sections("a.py", RECIPES.partition("def published")[0], None)["train"]["global_batch_size"] == 64


def test_every_function_of_the_library_has_one_meaning():
    """And sets settings that the table of Megatron-Bridge, or Megatron-LM, has."""
    for name, row in LIBRARY.items():
        assert ("value" in row) != ("field" in row), name
    sections = {name.partition(".")[0] for name in rows("megatron-bridge")}
    assert {"train", "optimizer", "ddp", "dataset"} <= LIBRARY["_pretrain_common"]["value"].keys() & sections | {
        "dataset"
    }


LINES = RECIPES.splitlines()


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, len(LINES) - 1), other=st.integers(0, len(LINES) - 1))
def test_any_other_text_is_read_or_refused_in_one_sentence(place, other):
    text = "\n".join([*LINES[:place], LINES[other], *LINES[place + 1 :]])
    try:
        job_of(read("small_pretrain_config", text))
    except InputError as error:
        assert "\n" not in str(error)


def test_the_command_reads_a_recipe(call, tmp_path):
    (tmp_path / "ours.py").write_text(RECIPES)
    file, name = f"{tmp_path}/ours.py", "small_pretrain_config"
    code, out, err = call(
        "import", "megatron-bridge", file, "--recipe", name, "--set", "training.micro_batch=2", "--out", "mine.yaml"
    )
    assert (code, err) == (0, "") and "written to mine.yaml" in out
    assert yaml.safe_load(Path("mine.yaml").read_text())["training"]["micro_batch"] == 2
    assert yaml.safe_load(Path("mine.yaml").read_text())["name"] == "small_pretrain_config"
