"""torchtitan's job configs: read as workloads, and written so that its own config classes accept them."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import parsed, some_of

from clustersim.api.launch import differences, read_back, written
from clustersim.config.workload import Model
from clustersim.config.yaml import Document, Position
from clustersim.convert.megatron_script import ImportRequest
from clustersim.convert.settings import flat
from clustersim.convert.torchtitan import ROWS, imported, models
from clustersim.errors import InputError
from clustersim.model.parameters import parameters
from clustersim.parallel.layout import portions
from clustersim.parallel.load import build, load

SETTINGS = yaml.safe_load((Path(__file__).parent / "torchtitan_settings.yaml").read_text(encoding="utf-8"))
TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": list}
PARAMETERS = {
    "llama3/debugmodel": 6163712,  # as its log says (pytorch/torchtitan PR 3393)
    "llama3/8B": 8030261248, "llama3/70B": 70553706496, "llama3/405B": 405853388800, "deepseek_v3/16B": 15706484224,
    "deepseek_v3/236B": 235741434880, "deepseek_v3/671B": 671026404352, "qwen3/0.6B": 596049920,
    "qwen3/1.7B": 1720574976, "qwen3/4B": 4022468096, "qwen3/8B": 8190735360, "qwen3/14B": 14768307200,
    "qwen3/32B": 32762123264, "qwen3/30B-A3B": 30532122624, "qwen3/235B-A22B": 235093634560,
    "llama4/17bx16e": 107769861120, "llama4/17bx16e_irope": 107769861120, "llama4/17bx128e": 400711848960,
    "llama4/17bx128e_irope": 400711848960, "gpt_oss/20b": 20914757184, "gpt_oss/120b": 116829156672,
}  # fmt: skip
"""Parameters of each flavor as torchtitan v0.2.2 builds it on PyTorch's meta device."""


@pytest.mark.parametrize("flavor", PARAMETERS)
def test_a_flavor_has_the_parameters_of_torchtitans_model(flavor):
    """GPT-OSS but for biases of experts and attention sinks, which are not modelled: 0.03 %."""
    found = parameters(Model(**models()[flavor]))
    assert found == pytest.approx(PARAMETERS[flavor], rel=4e-4 if "gpt_oss" in flavor else 0)


def test_every_flavor_is_counted():
    assert models().keys() == PARAMETERS.keys()


LLAMA = """
[model]
name = "llama3"
flavor = "405B"
converters = ["quantize.linear.float8"]
[optimizer]
name = "AdamW"
implementation = "for-loop"
lr = 8e-5
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "full"
[compile]
enable = true
components = ["model", "loss"]
[quantize.linear.float8]
filter_fqns = ["output"]
[metrics]
log_freq = 10
"""


def test_a_published_preset_is_read():
    """train_configs/llama3_405b.toml of torchtitan v0.2.2, a preset for 128 GPUs."""
    found = imported("t.toml", LLAMA, ImportRequest(gpus=128))
    assert {"optimizer.lr", "metrics.log_freq"} == set(found.ignored)
    assert found.not_modelled == ("quantize.linear.float8.filter_fqns",)
    job = build_of(found)
    split, train = job.parallelism, job.training
    assert train.optimizer_kernels == "loop"
    assert (split.tp, split.dp, split.zero, split.overlap.tp, split.sequence_parallel) == (8, 16, 3, "async", True)
    assert (train.global_batch, train.micro_batch, train.seq) == (32, 2, 8192)
    assert (train.precision, train.fp8_scaling, train.recompute, train.kernels) == ("fp8", "current", "full", "fused")
    assert job.model.layers == 126


def build_of(found):
    return build(Document("t.toml", found.workload, {(): Position(1, 1)}))


WRONG = {
    '[model]\nflavor = "9B"': "model.flavor: llama3/9B is not known; did you mean",
    "[parallelism]\nfoo = 1": "parallelism.foo: is not a known setting of torchtitan v0.2.2",
    '[parallelism]\nmodule_fqns_per_model_part = [["a"]]': "parallelism.module_fqns_per_model_part: ",
    '[parallelism]\npipeline_parallel_schedule = "LoopedBFS"': "pipeline_parallel_schedule: 'LoopedBFS' cannot be expressed",
    '[activation_checkpoint]\nmode = "memory_budget"': "activation_checkpoint.mode: 'memory_budget' cannot be expressed",
    '[optimizer]\nname = "Muon"': 'optimizer.name: \'Muon\' cannot be expressed in a workload; write "AdamW", "Adam"',
    "[training]\nglobal_batch_size = 64\n[parallelism]\npipeline_parallel_degree = 2": "training.global_batch_size: 64 runs",
    "[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_layers_per_stage = 5": "layers_per_stage: 5 makes 7 stages",
    "[parallelism]\ntensor_parallel_degree = 0": "tensor_parallel_degree: 0 must be a whole number of at least 1",
    '[training]\ntensor_parallel_degree = "x"': "training.tensor_parallel_degree: 'x' must be a whole number of at least 1",
    "[training]\nbatch_size = 1\nlocal_batch_size = 2": "training.batch_size and training.local_batch_size are one setting; keep",
    "[training]\npipeline_parallel_degree = 2\n[experimental]\npipeline_parallel_degree = 4": "parallel_degree are one setting;",
    "a = [": "is not valid TOML",
}


@pytest.mark.parametrize("case", WRONG)
def test_a_setting_that_cannot_be_said_is_named(case):
    named = "" if "[model]" in case else '[model]\nflavor = "8B"\n'
    text = case.replace("converters", 'flavor = "8B"\nconverters')
    with pytest.raises(InputError, match=rf"^t\.toml: .*{re.escape(WRONG[case])}"):
        imported("t.toml", named + text, ImportRequest(gpus=8))


def test_an_open_degree_asks_for_the_gpus(call, tmp_path):
    (tmp_path / "t.toml").write_text('[model]\nflavor = "8B"\n', encoding="utf-8")
    code, out, err = call("import", "torchtitan", "t.toml")
    assert (code, out) == (2, "")
    assert "parallelism.data_parallel_shard_degree: -1 is what the other degrees leave; give --gpus N" in err
    code, out, _ = call("import", "torchtitan", "t.toml", "--gpus", "8", "--set", "training.seq=512", "--out", "t.yaml")
    assert (code, out.splitlines()[-1]) == (0, "written to t.yaml")
    assert load("t.yaml").training.seq == 512


DRAWN = parsed(
    "tp=[1,2,8] pp=[1,2,4] vpp=[1,2] cp=[1,2] parallelism.cp_type=[p2p,all_gather] ep=[1,8] "
    "parallelism.expert_tp=[1,2] zero=[0,3] schedule=[1f1b,interleaved,gpipe,zbv,dualpipev] "
    "parallelism.fsdp.shard=[8] parallelism.fsdp.reshard_after_forward=[true,false] "
    "parallelism.overlap.tp=[none,async] parallelism.account_for_embedding=[true,false] "
    "parallelism.account_for_loss=[true,false] micro_batch=[1,2] precision=[bf16,fp8,mxfp8,fp32,nvfp4] "
    "training.fp8_scaling=[current,row,block] recompute=[none,full,selective] "
    "training.recompute_saves=[[op],[mlpwo]] training.recompute_every=[2] training.moments=[fp32,bf16] "
    "training.kernels=[fused,eager] training.cross_entropy=[fused,eager] training.clip_gradients=[true,false]"
)
MODELS = ["llama3_8b", "llama3_405b", "qwen3_32b", "qwen3_30b_a3b", "gpt_oss_20b"]
NO_SETTING = {
    *shlex.split(
        "model.vocab_multiple model.max_positions training.framework training.norm_kernels "
        "training.fused_projections training.cross_entropy training.rope_kernels parallelism.keep_gathered "
        "parallelism.overlap.grad_reduce parallelism.overlap.param_gather parallelism.overlap.p2p"
    )
}
"""Keys that torchtitan has no setting for."""


def silent(job):
    """Return the keys that say nothing beside the others of a job, or that torchtitan decides by another."""
    split, train = job.parallelism, job.training
    keys = set(NO_SETTING)
    keys |= {"parallelism.schedule", "parallelism.vpp", *PIPELINE} if split.pp == 1 else set()
    keys |= {"training.fp8_scaling"} if train.precision != "fp8" else set()
    keys |= {"parallelism.fsdp.shard"} if split.fsdp.shard == split.dp * split.cp else set()
    keys |= {"parallelism.zero"} if split.dp * split.cp == 1 else set()
    keys |= {"parallelism.sequence_parallel", "parallelism.cp_type"}  # always on with tp; ring or gather of one rank
    keys |= {"parallelism.expert_tp"} if split.ep == 1 else set()
    keys |= {"training.recompute_saves"} if train.recompute == "none" or train.kernels == "fused" else set()
    keys |= {"training.recompute_every"} if train.recompute == "none" or train.recompute_saves else set()
    keys |= {"training.recompute_saves"} if train.recompute_every else set()
    return keys


PIPELINE = {"parallelism.account_for_embedding", "parallelism.account_for_loss"}


@settings(max_examples=examples(100))
@given(
    st.sampled_from(MODELS),
    some_of(DRAWN),
)
def test_a_job_config_read_back_is_the_same_job(name, changes):
    """What JobConfig has no type or choice for, and what ParallelDims and the batch refuse, is never written."""
    try:
        job = load(name, {"parallelism.zero": 3, **changes}).place(512, 8)
        text = written("torchtitan", job, 8)
    except InputError:
        return
    said = flat(tomllib.loads(text), ROWS.__contains__)
    for key, value in said.items():
        kind = SETTINGS[key]
        assert value in kind if isinstance(kind, list) else any(type(value) is TYPES[one] for one in kind.split("|")), (
            key
        )
    dp = said["parallelism.data_parallel_replicate_degree"] * said["parallelism.data_parallel_shard_degree"]
    assert said["training.global_batch_size"] % (said["training.local_batch_size"] * dp) == 0
    assert said["parallelism.expert_tensor_parallel_degree"] in (1, said["parallelism.tensor_parallel_degree"])
    back = read_back("torchtitan", text, job)
    assert {key for key, _ in differences(job, back)} <= silent(job)
    if job.parallelism.pp > 1:  # one rank has all layers, in however many chunks
        assert portions(back.parallelism, back.model) == portions(job.parallelism, job.model)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"training.optimizer": "muon"}, "training.optimizer"),
        ({"training.precision": "nvfp4"}, "training.precision"),
        ({"training.recompute": "selective"}, "training.recompute"),
        ({"parallelism.zero": 1}, "parallelism.zero"),
        ({"parallelism.pp": 4, "parallelism.schedule": "zero_bubble"}, "parallelism.schedule"),
        ({"model.layers": 33}, "model"),
        ({"training.moments": "fp8"}, "training.moments"),
    ],
)
def test_a_key_that_cannot_be_said_is_refused_by_its_name(changes, key):
    job = load("llama3_8b", {"parallelism.zero": 3, "parallelism.tp": 1, **changes}).place(64, 8)
    with pytest.raises(InputError, match=rf"^{re.escape(key)}: cannot be expressed: .*; change it before you export$"):
        written("torchtitan", job, 8)


EARLIER = """
[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"
[optimizer]
name = "AdamW"
fused = true
[training]
batch_size = 21
seq_len = 8192
warmup_steps = 500
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 32
tensor_parallel_degree = 8
compile = true
[experimental]
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[float8]
enable_float8_linear = false
"""


def test_settings_of_earlier_releases_have_their_names_of_today():
    """eminorhan/frontier-torchtitan, train_configs/llama3_8b_n64.toml, and torchtitan's own files until 2025-10."""
    spec = imported("t.toml", EARLIER, ImportRequest()).workload
    training, split = spec["training"], spec["parallelism"]
    assert (split["tp"], split["dp"], split["fsdp"]["shard"]) == (8, 64, 32)
    assert (training["micro_batch"], training["global_batch"], training["seq"]) == (21, 21 * 64, 8192)
    assert (training["kernels"], training["optimizer_kernels"], training["recompute"]) == ("fused", "fused", "full")
