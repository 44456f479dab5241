"""Settings of DeepSpeed, accelerate, axolotl and LLaMA-Factory as workloads: what each means, is refused or assumed."""

import json
import re

import pytest
from sweep_cases import parsed

from clustersim.api.launch import differences, read_back
from clustersim.config.workload import Workload
from clustersim.config.yaml import Document, Position
from clustersim.convert.conversions import rows
from clustersim.convert.megatron import ALIASES, NO_EFFECT
from clustersim.convert.megatron_groups import GROUPED
from clustersim.convert.megatron_script import ImportRequest
from clustersim.convert.table import records
from clustersim.convert.trainers import TITLES, deepspeed_config, imported
from clustersim.errors import InputError
from clustersim.parallel.load import build, load


def job_of(tool, settings, gpus=16, model="llama3_8b", **keys):
    """Return what was imported of settings, and its job."""
    given = {key.replace("__", "."): value for key, value in keys.items()}
    text = settings if isinstance(settings, str) else json.dumps(settings)
    found = imported(tool, "given", text, ImportRequest({}, given, model, gpus))
    return found, build(Document("given", found.workload, {(): Position(1, 1)}))


STAGE3 = {
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu"},
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
    },
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}
"""What transformers' guides for DeepSpeed write for ZeRO-3 with offloading."""


def test_auto_is_what_transformers_fills_in():
    found, job = job_of("deepspeed", STAGE3)
    split, train = job.parallelism, job.training
    assert (split.zero, split.dp, train.micro_batch, train.global_batch, train.precision) == (3, 16, 8, 128, "bf16")
    assert split.zero3.reduce_bucket_size == 4096**2
    assert split.zero3.prefetch_bucket_size == int(0.9 * 4096**2)
    assert split.zero3.param_persistence_threshold == 40960
    assert (train.offload.optimizer_states, train.offload.parameters, train.offload.update) == (1, True, "fused")
    assert [line.partition(":")[0] for line in found.assumed] == [
        "training.seq",
        "training.precision",
        "training.micro_batch",
        "training.recompute",
    ]
    assert found.not_modelled == ("zero_optimization.offload_optimizer.pin_memory",)
    assert found.ignored == ("optimizer.params", "fp16.loss_scale")


@pytest.mark.parametrize(
    ("settings", "gpus", "expected"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, 16, (2, 64, 16)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, 16, (2, 64, 16)),
        ({"train_batch_size": 64}, 16, (4, 64, 16)),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 16, (2, 96, 16)),
        ({"train_micro_batch_size_per_gpu": 2}, 16, (2, 32, 16)),
        ({"train_micro_batch_size_per_gpu": 2, "sequence_parallel_size": 4}, 16, (2, 8, 4)),
        ({"train_micro_batch_size_per_gpu": 2, "tensor_parallel": {"autotp_size": 8}}, 16, (2, 4, 2)),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4},
            None,
            (2, 64, 8),
        ),
    ],
)
def test_two_of_batch_micro_batch_and_steps_say_the_third(settings, gpus, expected):
    """deepspeed 0.19.8, runtime/config.py, _set_batch_related_parameters."""
    _, job = job_of("deepspeed", settings, gpus)
    assert (job.training.micro_batch, job.training.global_batch, job.parallelism.dp) == expected


@pytest.mark.parametrize(
    ("zero", "keys"),
    [
        ({"stage": 0}, {"zero": 0, "bucket": None}),
        ({"stage": 1, "reduce_bucket_size": 5e7}, {"zero": 1, "bucket": 50_000_000, "reduce_every_microbatch": False}),
        ({"stage": 2, "overlap_comm": True}, {"zero": 2, "bucket": 500_000_000, "reduce_every_microbatch": True}),
        ({"stage": 3}, {"zero": 3, "bucket": None}),
    ],
)
def test_a_stage_of_zero_says_how_gradients_are_reduced(zero, keys):
    _, job = job_of("deepspeed", {"train_batch_size": 64, "bf16": {"enabled": True}, "zero_optimization": zero})
    assert {key: getattr(job.parallelism, key) for key in keys} == keys
    assert job.parallelism.overlap.grad_reduce == ("overlap_comm" in zero)
    assert (job.parallelism.zero3 is not None) == (keys["zero"] == 3)
    assert job.training.gradients == "bf16"


FSDP = """
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_state_dict_type: SHARDED_STATE_DICT, %s}
deepspeed_config: {}
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("fsdp_sharding_strategy: FULL_SHARD", {"zero": 3, "shard": None, "reshard_after_forward": None}),
        ("fsdp_sharding_strategy: 2", {"zero": 3, "shard": None, "reshard_after_forward": False}),
        ("fsdp_sharding_strategy: HYBRID_SHARD", {"zero": 3, "shard": 8, "reshard_after_forward": None}),
        ("fsdp_backward_prefetch: BACKWARD_PRE", {"backward_prefetch": 1, "reduce_in_flight": 0, "copy_out": False}),
        ("fsdp_version: 2", {"zero": 3, "backward_prefetch": 1, "reduce_in_flight": 1, "copy_out": True}),
        ("fsdp_version: 2, fsdp_reshard_after_forward: false", {"zero": 3, "reshard_after_forward": False}),
    ],
)
def test_fsdp_of_accelerate_is_pytorchs(settings, expected):
    found, job = job_of("accelerate", FSDP % settings, gpus=None)
    split = job.parallelism
    has = {"zero": split.zero, "framework": job.training.framework, **split.fsdp.model_dump()}
    assert {key: has[key] for key in expected} == expected
    assert (split.dp, job.training.precision, job.training.gradients) == (16, "bf16", "bf16")
    assert found.machine == "16 GPUs"


def test_replicas_and_degrees_of_accelerates_parallelism():
    text = FSDP % "fsdp_version: 2, fsdp_activation_checkpointing: true" + (
        "parallelism_config: {parallelism_config_dp_replicate_size: 4, parallelism_config_dp_shard_size: 2,"
        " parallelism_config_tp_size: 2}"
    )
    _, job = job_of("accelerate", text, gpus=None)
    assert (job.parallelism.tp, job.parallelism.dp, job.parallelism.fsdp.shard) == (2, 8, 2)
    assert job.training.recompute == "full"


def test_a_deepspeed_file_beside_an_accelerate_file_is_read(tmp_path):
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "zero.json").write_text(json.dumps({**STAGE3, "steps_per_print": 1}), encoding="utf-8")
    text = "distributed_type: DEEPSPEED\nmixed_precision: fp16\nnum_processes: 8\n"
    text += "deepspeed_config: {deepspeed_config_file: ds/zero.json, zero3_init_flag: true}\n"
    found = imported("accelerate", str(tmp_path / "a.yaml"), text, ImportRequest(model="llama3_8b"))
    assert found.workload["parallelism"]["zero"] == 3
    assert found.workload["training"]["precision"] == "fp16"
    assert "zero.json: steps_per_print" in found.ignored
    with pytest.raises(InputError, match=r"no\.json is not a file here or around"):
        imported(
            "accelerate",
            str(tmp_path / "a.yaml"),
            text.replace("zero.json", "no.json"),
            ImportRequest(model="llama3_8b"),
        )


def test_an_optimizer_of_pytorch_has_separate_kernels_unless_fused_is_asked_for():
    """torch/optim/optimizer.py, _default_to_fused_or_foreach; DeepSpeed's engine calls torch.optim if `torch_adam` is true."""
    for text in ("distributed_type: MULTI_GPU\nnum_processes: 8\n", FSDP % "fsdp_version: 2", FSDP % "fsdp_version: 1"):
        found, job = job_of("accelerate", text, None)
        assert job.training.optimizer_kernels == "foreach"
        assert any(line.startswith("training.optimizer_kernels: foreach") for line in found.assumed)
    for said, kernels in ((True, "foreach"), (False, "fused")):
        params = {"lr": 1e-4, "torch_adam": said}
        _, job = job_of("deepspeed", {"train_batch_size": 64, "optimizer": {"type": "Adam", "params": params}})
        assert job.training.optimizer_kernels == kernels


def test_ddp_keeps_gradients_in_fp32_and_megatron_its_kernels():
    _, job = job_of("accelerate", "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n", None)
    assert (job.parallelism.zero, job.training.gradients, job.training.kernels) == (0, "fp32", "eager")
    _, job = job_of("accelerate", "distributed_type: 'NO'\ndynamo_config: {dynamo_backend: INDUCTOR}\n", None)
    assert (job.parallelism.dp, job.training.precision, job.training.kernels) == (1, "fp32", "fused")
    text = "distributed_type: MEGATRON_LM\nmixed_precision: bf16\nnum_processes: 16\nmegatron_lm_config: "
    text += "{megatron_lm_tp_degree: 2, megatron_lm_pp_degree: 2, megatron_lm_num_micro_batches: 4,"
    text += " megatron_lm_sequence_parallelism: true, megatron_lm_use_distributed_optimizer: true}\n"
    _, job = job_of("accelerate", text, None, training__micro_batch=1)
    split = job.parallelism
    assert (split.tp, split.pp, split.dp, split.zero, split.sequence_parallel) == (2, 2, 4, 1, True)
    assert (job.training.global_batch, job.training.framework) == (16, "megatron-core")


AXOLOTL = """
base_model: NousResearch/Llama3-8B
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
learning_rate: 0.0002
bf16: auto
tf32: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
wandb_project:
%s
"""


def test_a_full_finetuning_of_axolotl_keeps_no_master_weights():
    """axolotl 0.19.0, utils/config/__init__.py: torch_dtype bfloat16."""
    found, job = job_of("axolotl", AXOLOTL % "liger_rope: true\nliger_rms_norm: true", 8, None)
    split, train = job.parallelism, job.training
    assert (train.seq, train.micro_batch, train.global_batch, split.dp, split.zero) == (4096, 2, 64, 8, 0)
    assert (train.main_params, train.moments, train.gradients, train.optimizer) == ("bf16", "bf16", "bf16", "adam8bit")
    assert (train.recompute, train.attention) == ("full", "flash2")
    assert (train.norm_kernels, train.rope_kernels) == ("fused", "fused")
    assert (job.model.layers, job.name) == (32, "llama3-8b")
    assert found.not_modelled == ("sample_packing",)
    assert {"datasets", "learning_rate", "tf32", "wandb_project"} == set(found.ignored)
    assert found.assumed[-1].startswith("full sequences of one document")
    found, job = job_of("axolotl", AXOLOTL % "", 8, training__packed__mean=600)
    assert (job.training.packed.mean, found.assumed) == (600, ())


QLORA = "adapter: qlora\nload_in_4bit: true\nlora_r: 16\nlora_alpha: 32\nlora_dropout: 0.05\nlora_target_linear: true\n"


def test_adapters_of_axolotl_and_llama_factory_are_lora():
    _, job = job_of("axolotl", AXOLOTL % QLORA, 8)
    lora = job.training.lora
    assert (lora.rank, lora.alpha, lora.dropout, lora.base) == (16, 32, 0.05, "nf4")
    assert {"linear_q", "linear_fc1_gate", "linear_fc2"} <= set(lora.targets)
    text = "stage: sft\nfinetuning_type: lora\nlora_rank: 4\nlora_target: q_proj,v_proj\nbf16: true\ncutoff_len: 1024\n"
    _, job = job_of("llama-factory", text, 8)
    assert (job.training.lora.rank, job.training.lora.targets) == (4, ("linear_q", "linear_v"))
    assert (job.training.lora.base, job.training.main_params, job.training.recompute) == (None, None, "full")
    assert (job.training.micro_batch, job.training.global_batch, job.training.seq) == (8, 64, 1024)
    _, job = job_of("llama-factory", text + "quantization_bit: 4\ndisable_gradient_checkpointing: true\n", 8)
    assert (job.training.lora.base, job.training.recompute) == ("nf4", "none")
    eight = QLORA.replace("load_in_4bit: true", "load_in_8bit: true\nload_in_4bit: false")
    assert job_of("axolotl", AXOLOTL % eight, 8)[1].training.lora.base == "int8"
    assert job_of("llama-factory", text + "quantization_bit: 8\n", 8)[1].training.lora.base == "int8"


PATTERNS = {
    r"model.language_model.layers.[\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj": 7,
    r"model.language_model.layers.[\d]+.(_checkpoint_wrapped_module.)?(mlp|self_attn).(up|down|gate|q|k|v|o)_proj": 7,
    r"language_model.model.layers.[\d]+.self_attn.(q|k|v|o)_proj": 4,
    ".*(q|v)_proj$": 2,
}
"""{pattern of names: number of linears that it matches}, as in axolotl 0.19.0 (examples: gemma3, gemma4-unified, voxtral)."""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_of_target_modules_is_a_pattern_of_full_names(pattern):
    """peft, tuners/tuners_utils.py: check_target_module_exists."""
    settings = QLORA.replace("lora_target_linear: true", f"lora_target_modules: '{pattern}'")
    assert len(job_of("axolotl", AXOLOTL % settings, 8)[1].training.lora.targets) == PATTERNS[pattern]


@pytest.mark.parametrize("layers", ["(0|1|2)", "[5-9]", r"[\d]", "(1|2|3)", r"\d*[13579]"])
def test_adapters_of_some_layers_are_refused(layers):
    settings = QLORA.replace("lora_target_linear: true", rf"lora_target_modules: '.*layers\.{layers}\..*(q|v)_proj'")
    with pytest.raises(
        InputError, match=r"target_modules: .* names some layers, and adapters of some layers are not supp"
    ):
        job_of("axolotl", AXOLOTL % settings, 8)


def test_frozen_weights_of_qlora_lie_on_hosts_with_fsdps_offload():
    """axolotl 0.19.0, examples/llama-2/qlora-fsdp.yml and four others."""
    sharded = "fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_offload_params: true}\n"
    _, job = job_of("axolotl", (AXOLOTL % (QLORA + sharded)).replace("adamw_bnb_8bit", "adamw_torch"), 8)
    assert (job.training.offload.parameters, job.training.offload.optimizer_states) == (True, 1)
    assert job.training.lora.base == "nf4"


def test_experts_of_axolotl_are_spread_and_its_shards_are_smaller():
    """axolotl 0.19.0, examples/expert_parallel: expert_parallel_size x dp_shard_size GPUs, weights in shards of dp_shard_size."""
    settings = "expert_parallel_size: 2\nfsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\ndp_shard_size: 4"
    split = job_of("axolotl", AXOLOTL % settings, 8, model="qwen3_30b_a3b")[1].parallelism
    assert (split.ep, split.dp, split.zero, split.fsdp.shard) == (2, 8, 3, 4)


def test_experts_alone_are_spread_by_axolotl_without_fsdp():
    """axolotl 0.19.0, integrations/expert_parallel/plugin.py: without dp_shard_size, expert_parallel_size is all GPUs."""
    settings = "expert_parallel_size: 8"
    split = job_of("axolotl", AXOLOTL % settings, 8, model="qwen3_30b_a3b")[1].parallelism
    assert (split.ep, split.dp, split.zero, split.fsdp.shard) == (8, 8, 0, None)
    for shard in ("", "\ndp_shard_size: 1"):
        with pytest.raises(InputError, match="ep 8 with FSDP needs a dp_shard_size of at least 2; add it"):
            job_of("axolotl", AXOLOTL % f"{settings}\nfsdp_config: {{version: 2}}{shard}", 8, model="qwen3_30b_a3b")


@pytest.mark.parametrize(
    ("settings", "shard"), [("fsdp_sharding_strategy: FULL_SHARD", None), ("fsdp_sharding_strategy: HYBRID_SHARD", 8)]
)
def test_experts_spread_from_the_command_line_leave_accelerates_shards_as_they_are(settings, shard):
    _, job = job_of("accelerate", FSDP % settings, None, "qwen3_30b_a3b", parallelism__ep=8)
    split = job.parallelism
    assert (split.ep, split.dp, split.zero, split.fsdp.shard) == (8, 16, 3, shard)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_offload_params: true}", ("fsdp", 3, True)),
        ("fsdp: [shard_grad_op, offload]\nfsdp_config: {backward_prefetch: BACKWARD_PRE}", ("fsdp", 3, True)),
        ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\ndp_shard_size: 8", ("fsdp", 3, False)),
        ("deepspeed: {zero_optimization: {stage: 2}, bf16: {enabled: auto}}", ("deepspeed", 2, False)),
    ],
)
def test_axolotl_shards_by_fsdp_or_deepspeed(settings, expected):
    _, job = job_of("axolotl", (AXOLOTL % settings).replace("adamw_bnb_8bit", "adamw_torch"), 8)
    assert (job.training.framework, job.parallelism.zero, job.training.offload.parameters) == expected
    assert (job.training.main_params, job.training.gradients, job.training.precision) == (None, "bf16", "bf16")
    assert job.training.optimizer_kernels == "foreach"
    _, job = job_of("axolotl", (AXOLOTL % settings).replace("adamw_bnb_8bit", "adamw_torch_fused"), 8)
    assert job.training.optimizer_kernels == "fused"


def test_full_tuning_of_llama_factory():
    text = "finetuning_type: full\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 2\nbf16: true\n%s\n"
    _, job = job_of("llama-factory", text % "enable_liger_kernel: true\nuse_muon: true", 8)
    train = job.training
    assert (train.lora, train.optimizer, train.cross_entropy, train.gradients) == (None, "muon", "fused", "fp32")
    _, job = job_of("llama-factory", text % "pure_bf16: true", 8)
    assert (job.training.main_params, job.training.gradients, job.training.global_batch) == ("bf16", "bf16", 16)


def test_what_the_file_does_not_use_is_listed_and_a_set_batch_decides():
    text = FSDP.replace("type: FSDP", "type: MULTI_GPU") % "fsdp_activation_checkpointing: true"
    found, job = job_of("accelerate", text, None, training__global_batch=256)
    assert "fsdp_config.fsdp_activation_checkpointing" in found.ignored
    assert (job.training.recompute, job.training.global_batch, job.training.framework) == ("none", 256, "pytorch")
    zero = {"stage": 3, "overlap_comm": False}
    found, _ = job_of("deepspeed", {"train_batch_size": 64, "zero_optimization": zero})
    assert found.not_modelled == ("zero_optimization.overlap_comm",)


WRONG = {
    'deepspeed {"train_batch_sise": 1}': (
        "train_batch_sise: is not a known setting of DeepSpeed 0.19.8; did you mean 'train_batch"
    ),
    'deepspeed {"zero_optimization": {"stage": 4}}': "zero_optimization.stage: 4 cannot be expressed",
    'deepspeed {"zero_optimization": {"zero_quantized_weights": true}}': "zero_quantized_weights: True cannot be",
    'deepspeed {"zero_optimization": {"offload_param": {"device": "nvme"}}}': (
        "offload_param.device: 'nvme' cannot be"
    ),
    'deepspeed {"train_batch_size": 0}': "training.global_batch: 0 must be a whole number of at least 1",
    'deepspeed {"train_batch_size": 5, "train_micro_batch_size_per_gpu": 2}': "a batch of 5 does not fit",
    "deepspeed {": "not valid YAML",
    "axolotl fsdp_version: true": "fsdp_version: True cannot be expressed in a workload; write 1, 2",
    "axolotl rl: dpo": "rl: 'dpo' cannot be expressed in a workload",
    "axolotl optimizer: ademamix": "optimizer: 'ademamix' cannot be expressed in a workload; write",
    "axolotl sequense_len: 5": "sequense_len: is not a known setting of axolotl 0.19.0; did you mean 'sequence_len'?",
    "axolotl adapter: lora\nlora_r: 8\nlora_target_modules: [x]": "target_modules: 'x' is not a known linear",
    "axolotl deepspeed: no.json": "no.json is not a file here or around",
    "llama-factory stage: dpo": "stage: 'dpo' cannot be expressed in a workload; write",
    "llama-factory quantization_bit: 3": "quantization_bit: 3 cannot be expressed in a workload; write 4, 8",
    "accelerate distributed_type: XLA": "distributed_type: 'XLA' cannot be expressed in a workload; write",
    "accelerate distributed_type: FSDP\nfsdp_config: {fsdp_shard: 1}": "fsdp_config.fsdp_shard: is not a known setting",
}


@pytest.mark.parametrize("case", WRONG)
def test_a_setting_that_cannot_be_said_is_named(case):
    tool, text = case.split(" ", 1)
    with pytest.raises(InputError, match=rf"^given.*{re.escape(WRONG[case])}"):
        job_of(tool, text, 8)


def test_a_file_without_a_model_or_gpus_asks_for_them(call, tmp_path):
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1}', encoding="utf-8")
    code, _, err = call("import", "deepspeed", "ds.json")
    assert (code, "ds.json: describes no model; give --model" in err) == (2, True)
    code, _, err = call("import", "deepspeed", "ds.json", "--model", "llama3_8b")
    assert (code, "says neither the global batch nor the number of GPUs; give --gpus N" in err) == (2, True)
    words = ("ds.json", "--model", "llama3_8b", "--gpus", "8", "--set", "training.seq=512", "--out", "w.yaml")
    code, out, _ = call("import", "deepspeed", *words)
    assert (code, out.splitlines()[-1]) == (0, "written to w.yaml")
    assert (load("w.yaml").training.seq, load("w.yaml").training.global_batch) == (512, 8)


AROUND = {"training.attention", "training.kernels", "training.fused_projections", "training.framework", "model.dropout"}
AROUND |= {"parallelism.overlap.param_gather", "parallelism.overlap.p2p", "parallelism.account_for_embedding"}
AROUND |= {"training.recompute", "parallelism.account_for_loss", "parallelism.cp_type", "training.encoder_seq"}
"""Keys that the model's code or the training script decides, not DeepSpeed's configuration, or that one rank has no use for."""
PLAIN = {"parallelism.sequence_parallel": False, **parsed("pp=1 vpp=1 schedule=1f1b")}


@pytest.mark.parametrize("name", ["llama3_8b", "qwen2.5_7b", "gpt3_xl", "opt_1.3b"])
@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism.zero": 0, "training.precision": "fp16", "training.gradients": "fp16"},
        {"parallelism.zero": 1, "parallelism.overlap.grad_reduce": True, "parallelism.bucket": 5_000_000},
        {"parallelism.zero": 2, "parallelism.overlap.grad_reduce": True, "parallelism.reduce_every_microbatch": True},
        {"parallelism.zero": 2, "parallelism.reduce_every_microbatch": True, "training.offload.optimizer_states": 1.0},
        {"parallelism.zero": 3, "parallelism.zero3.prefetch_bucket_size": 7, "training.offload.optimizer_states": 0.5},
        {"parallelism.zero": 3, "training.offload.optimizer_states": 1.0, "training.offload.parameters": True},
        {
            "parallelism.zero": 1,
            "training.main_params": "bf16",
            "training.moments": "bf16",
            "training.gradients": "bf16",
        },
        {"parallelism.zero": 1, "parallelism.tp": 2, "training.clip_gradients": False, "training.optimizer": "sgd"},
        {"parallelism.zero": 1, "parallelism.cp": 2, "parallelism.cp_type": "a2a"},
    ],
)
def test_a_deepspeed_configuration_read_back_is_the_same_job(name, changes):
    zero3 = {"parallelism.zero3": {}} if changes["parallelism.zero"] == 3 else {}
    offloads = {"training.gradients": "bf16"} | {
        f"parallelism.overlap.{name}": False for name in ("grad_reduce", "param_gather")
    }
    job = load(name, {**PLAIN, "parallelism.tp": 1, **offloads, **zero3, **changes}).place(64, 8)
    text = deepspeed_config(job.spec)
    back = read_back("deepspeed", text, job)
    assert {key for key, _ in differences(job, back)} <= AROUND
    said = json.loads(text)
    micro, steps = said["train_micro_batch_size_per_gpu"], said["gradient_accumulation_steps"]
    assert said["train_batch_size"] == micro * steps * job.parallelism.dp


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"training.precision": "fp8"}, "training.precision"),
        ({"parallelism.pp": 2}, "parallelism.pp"),
        ({"parallelism.tp": 2, "parallelism.sequence_parallel": True}, "parallelism.sequence_parallel"),
        ({"parallelism.cp": 2, "parallelism.cp_type": "p2p"}, "parallelism.cp_type"),
        ({"training.optimizer": "adafactor"}, "training.optimizer"),
        ({"training.main_params": "bf16"}, "training.main_params"),
        ({"parallelism.zero": 1, "training.moments": "bf16"}, "training.moments"),
        ({"parallelism.zero": 1, "training.offload.optimizer_states": 0.5}, "training.offload.optimizer_states"),
    ],
)
def test_a_key_that_deepspeed_cannot_say_is_refused_by_its_name(changes, key):
    plain = {**PLAIN, "parallelism.tp": 1, "parallelism.zero": 0, "training.gradients": "bf16"}
    job = load("llama3_8b", {**plain, "parallelism.overlap.param_gather": False, **changes}).place(64, 8)
    with pytest.raises(InputError, match=rf"^{re.escape(key)}: cannot be expressed: .*; change it before you export$"):
        deepspeed_config(job.spec)


def _fields(spec, at=""):
    for name, field in spec.model_fields.items():
        yield f"{at}{name}"
        inner = [
            one
            for one in (field.annotation, *getattr(field.annotation, "__args__", ()))
            if hasattr(one, "model_fields")
        ]
        for one in inner:
            yield from _fields(one, f"{at}{name}.")


LAUNCH = {"tokenizer_type", "nnodes", "nproc_per_node", "use_custom_fsdp"}
"""Arguments of a launch that a workload has no key for."""


@pytest.mark.parametrize("tool", [*TITLES, "nemo", "megatron-bridge"])
def test_every_row_of_a_table_means_a_key_or_an_argument_of_megatron_and_stands_once(tool):
    known = {*_fields(Workload), *"-~!*", *ALIASES, *GROUPED, *NO_EFFECT, *LAUNCH}
    for name, row in rows(tool).items():
        key = ".".join(map(str, row.key))
        assert key.startswith("*.") or key in known, name
        assert row.function or tool not in TITLES or not row.values or "=" in row.values, name
        assert row.columns.get("export", "") in ("", "s", "x") or tool in TITLES, name
    names = [row["argument"] for row in records(tool.replace("-", "_"))]
    assert len(names) == len(set(names))
