"""YAML of NeMo and of Megatron-Bridge: read as the workload that the same arguments of Megatron-LM launch, and written back."""

import re
import shlex

import pytest
import yaml
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import parsed, some_of

from clustersim.api.launch import differences, read_back, written
from clustersim.config.references import resolved
from clustersim.config.yaml import Document, Position
from clustersim.convert.conversions import rows
from clustersim.convert.megatron_script import ImportRequest
from clustersim.convert.megatron_script import imported as script_imported
from clustersim.convert.megatron_yaml import PRECISIONS, imported
from clustersim.errors import InputError
from clustersim.model.parameters import parameters
from clustersim.parallel.load import build, load

TOOLS = ("nemo", "megatron-bridge")
NEMO = """
run: {name: gpt, results_dir: "${base_results_dir}/${.name}"}
trainer: {num_nodes: 16, devices: 8, precision: bf16, gradient_clip_val: 1.0, accumulate_grad_batches: 1, max_steps: 10}
exp_manager: {resume_if_exists: true}
model:
  mcore_gpt: true
  megatron_amp_O2: true
  transformer_engine: true
  micro_batch_size: 2
  global_batch_size: 256
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 2
  sequence_parallel: true
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${training.model.hidden_size}}
  num_attention_heads: 32
  num_query_groups: 8
  hidden_dropout: 0.0
  bias: false
  activation: fast-swiglu
  normalization: rmsnorm
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  apply_rope_fusion: true
  gradient_accumulation_fusion: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 2
  overlap_p2p_comm: true
  ub_tp_comm_overlap: true
  fp8: true
  fp8_hybrid: true
  fp8_wgrad: true
  kv_channels: null
  tokenizer: {library: huggingface, type: meta-llama/Meta-Llama-3-8B, use_fast: true}
  optim:
    name: mcore_distributed_optim
    overlap_grad_sync: true
    overlap_param_sync: true
    grad_sync_dtype: bf16
    check_for_nan_in_grad: true
    sched: {name: CosineAnnealing, warmup_steps: 500}
  data: {seq_length: 4096, data_prefix: [1.0, "${data_dir}/text"]}
"""
SCRIPT = """
torchrun --nproc_per_node 8 --nnodes 16 pretrain_gpt.py --micro-batch-size 2 --global-batch-size 256 \\
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 \\
  --sequence-parallel --seq-length 4096 --max-position-embeddings 4096 --num-layers 32 --hidden-size 4096 \\
  --ffn-hidden-size 16384 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
  --hidden-dropout 0.0 --disable-bias-linear --swiglu --normalization RMSNorm --position-embedding-type rope \\
  --untie-embeddings-and-output-weights --recompute-granularity full --recompute-method block \\
  --recompute-num-layers 2 --tp-comm-overlap --fp8-format hybrid --bf16 --vocab-size 128256 --clip-grad 1.0 \\
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --grad-reduce-in-bf16
"""
BRIDGE = """
_target_: megatron.bridge.training.config.ConfigContainer
comm_overlap: null
dataset: {_target_: megatron.bridge.training.config.GPTDatasetConfig, seq_length: 4096, split: "1,1,1"}
ddp:
  _target_: megatron.bridge.training.config.DistributedDataParallelConfig
  use_distributed_optimizer: true
  overlap_grad_reduce: true
  overlap_param_gather: true
  grad_reduce_in_fp32: false
  use_megatron_fsdp: false
  data_parallel_sharding_strategy: no_shard
mixed_precision: bf16_with_fp8_delayed_scaling_mixed
model:
  _target_: megatron.bridge.models.gpt.model_config.BridgeGPTModelConfig
  vocab_size: 128256
  should_pad_vocab: true
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  seq_length: 4096
  transformer:
    _target_: megatron.core.transformer.transformer_config.TransformerConfig
    activation_func: {_target_: torch.nn.functional.silu, _call_: false}
    gated_linear_unit: true
    add_bias_linear: false
    apply_rope_fusion: true
    attention_backend: {_target_: megatron.core.transformer.enums.AttnBackend, _call_: true, _args_: [1]}
    init_method: {_target_: torch.nn.init.normal_, _partial_: true, _args_: [], mean: 0.0, std: 0.02}
    params_dtype: {_target_: torch.bfloat16, _call_: false}
    num_layers: 32
    hidden_size: 4096
    ffn_hidden_size: 16384
    num_attention_heads: 32
    num_query_groups: 8
    kv_channels: null
    hidden_dropout: 0.0
    normalization: RMSNorm
    num_moe_experts: null
    moe_router_topk: 2
    moe_deepep_num_sms: 20
    tensor_model_parallel_size: 4
    pipeline_model_parallel_size: 4
    virtual_pipeline_model_parallel_size: 2
    sequence_parallel: true
    overlap_p2p_comm: true
    tp_comm_overlap: true
    recompute_granularity: full
    recompute_method: block
    recompute_num_layers: 2
    recompute_modules: [core_attn]
optimizer: {optimizer: adam, clip_grad: 1.0, exp_avg_dtype: {_target_: torch.float32, _call_: false}, lr: 0.0003}
train: {micro_batch_size: 2, global_batch_size: 256, train_iters: 10}
"""
FILES = dict(zip(TOOLS, (NEMO, BRIDGE), strict=True))


def job_of(found):
    return build(Document("a.yaml", found.workload, {(): Position(1, 1)}))


def read(tool, text=None, **settings):
    return imported(tool, "a.yaml", text or FILES[tool], ImportRequest({}, settings))


@pytest.mark.parametrize("tool", TOOLS)
def test_a_file_is_the_job_that_a_script_of_megatron_launches(tool):
    """But for the positions that the rotary model does not use, and for what Megatron-LM turns on by default.

    Megatron-Bridge's recipe of a precision decides how gradients are reduced, whatever `ddp` says.
    """
    reduced = "--grad-reduce-in-bf16" if tool == "nemo" else ""
    script = SCRIPT.replace("--grad-reduce-in-bf16", reduced)
    wanted = job_of(script_imported("a.sh", script, ImportRequest()))
    found = job_of(read(tool))
    left = {key for job, other in ((wanted, found), (found, wanted)) for key, _ in differences(job, other)}
    assert left <= {"training.rope_kernels", "training.check_nan", "training.main_params"}
    assert read("nemo").machine == "16 nodes of 8 GPUs"


def test_what_a_file_leaves_out_is_the_tools_own_default():
    """NeMo neither fuses rotary positions nor the accumulation of gradients, nor looks for NaN in them, unless told to."""
    names = ("apply_rope_fusion", "gradient_accumulation_fusion", "check_for_nan_in_grad", "overlap_p2p_comm")
    text = "\n".join(line for line in NEMO.splitlines() if not line.strip().startswith(names))
    job = job_of(read("nemo", text))
    assert not job.parallelism.overlap.p2p
    training = job.training
    assert (training.rope_kernels, training.fused_accumulation, training.check_nan) == ("eager", False, False)
    bridge = BRIDGE.replace("  should_pad_vocab: true\n", "")
    assert job_of(read("megatron-bridge", bridge)).model.vocab_multiple == 1


@pytest.mark.parametrize(
    ("mixed", "ddp", "gradients"),
    [
        ("bf16_mixed", False, "fp32"),
        ({"recipe": "bf16_mixed"}, False, "fp32"),
        ({"recipe": "bf16_mixed", "grad_reduce_in_fp32": False}, None, "bf16"),
        ({"recipe": "bf16_mixed", "grad_reduce_in_fp32": False}, True, "bf16"),
        (None, False, "bf16"),
        (None, True, "fp32"),
    ],
)
def test_mixed_precision_of_megatron_bridge_decides_the_type_of_gradients(mixed, ddp, gradients):
    """Its setup copies grad_reduce_in_fp32, true by default, over that of `ddp` (training/mixed_precision.py)."""
    data = yaml.safe_load(BRIDGE)
    data |= {"mixed_precision": mixed, "ddp": data["ddp"] | {"grad_reduce_in_fp32": ddp}}
    if mixed is None:
        data["model"]["transformer"] |= {"bf16": True}
    found = read("megatron-bridge", yaml.safe_dump(data))
    assert job_of(found).training.gradients == gradients
    assert not [name for name in found.ignored if "grad_reduce" in name]


def test_overlapped_communication_of_megatron_bridge_decides_that_of_the_model():
    for whole, own, overlap in ((True, False, "bulk"), (False, True, "none"), (None, True, "bulk")):
        data = yaml.safe_load(BRIDGE)
        data["comm_overlap"] = {"tp_comm_overlap": whole}
        data["model"]["transformer"]["tp_comm_overlap"] = own
        found = job_of(read("megatron-bridge", yaml.safe_dump(data)))
        assert (found.parallelism.overlap.tp == "none") == (overlap == "none")


def test_a_file_that_leaves_the_gpus_open_needs_a_batch():
    text = NEMO.replace("devices: 8", "devices: -1")
    assert read("nemo", text).machine == ""
    assert job_of(read("nemo", text)).training.global_batch == 256
    for tool, name in (("nemo", "model.global_batch_size"), ("megatron-bridge", "train.global_batch_size")):
        file = re.sub(
            r"global_batch_size: 256,? ?", "", (NEMO.replace("devices: 8", "devices: auto"), BRIDGE)[tool != "nemo"]
        )
        with pytest.raises(InputError, match=f"lacks {name}, and does not say on how many GPUs it runs"):
            read(tool, file)
        assert job_of(read(tool, file, **{"training.global_batch": 64})).training.global_batch == 64


def test_references_that_cannot_be_replaced_are_left_and_none_grows_without_end():
    doubled = {"x0": "a" * 64} | {f"x{i}": f"${{x{i - 1}}}" * 2 for i in range(1, 60)}
    assert max(map(len, resolved(doubled).values())) <= 10_000
    pairs = {"x0": "1", "y0": "2"}
    for i in range(1, 60):
        pairs |= {f"x{i}": f"${{.x{i - 1}}}${{.y{i - 1}}}", f"y{i}": f"${{.y{i - 1}}}${{.x{i - 1}}}"}
    assert max(map(len, resolved({"run": pairs})["run"].values())) <= 10_000
    assert resolved({f"x{i}": f"${{x{i - 1}}}" for i in range(1, 3000)} | {"x0": 5})["x40"] == 5
    kept = {
        "time": "run-${now:%Y-%m-%d_%H-%M}",
        "user": "${oc.env:A,@x}",
        "open": "${multiply:[,2}",
        "large": f"${{multiply:{','.join(['9' * 40] * 200)}}}",
        "infinite": "${multiply:1e308,1e308}",
        "itself": "${itself}",
    }
    assert resolved(kept) == kept
    assert resolved({"a": "${multiply:0.5,256}"}) == {"a": 128}


def test_what_has_no_effect_is_listed_by_the_files_own_name():
    nemo, bridge = read("nemo"), read("megatron-bridge")
    assert {"run", "exp_manager", "trainer.max_steps", "model.data", "model.optim.sched"} <= set(nemo.ignored)
    assert {"model.init_method", "optimizer.lr", "train.train_iters", "dataset.split"} <= set(bridge.ignored)
    assert "model.fp8_wgrad" in nemo.not_modelled
    assert not [name for found in (nemo, bridge) for name in (*found.ignored, *found.not_modelled) if "--" in name]


WRONG = {
    ("nemo", "model.foo", 1): "model.foo: is not a known setting of nemo",
    ("nemo", "model", 3): "model: must be a section with the settings of the model",
    ("nemo", "model.num_layers", "${base.layers}"): "model.num_layers: '${base.layers}' refers to nothing in the file",
    ("nemo", "trainer.devices", 0): "trainer.devices",
    ("nemo", "model.fsdp", True): "model.fsdp: True cannot be expressed",
    (
        "nemo",
        "model.megatron_amp_O2",
        False,
    ): "model.megatron_amp_O2: False keeps weights in fp32 under autocast (NeMo's default), which is not supported",
    ("nemo", "model.name", "megatron_falcon_gpt"): "model.name: 'megatron_falcon_gpt' cannot be expressed",
    ("nemo", "model.num_layers", None): "lacks model.num_layers",
    ("nemo", "model.tokenizer.type", None): "lacks model.tokenizer.vocab_size, and the file names no tokenizer",
    ("nemo", "model.tokenizer.type", "own"): "the vocabulary of 'own' lies in its files; give --set model.vocab=",
    ("nemo", "trainer.accumulate_grad_batches", 4): "trainer.accumulate_grad_batches: 4 cannot be expressed",
    ("megatron-bridge", "model.foo", 1): "model.foo: is not a known setting of megatron-bridge",
    ("megatron-bridge", "model.activation_func", "tanh"): "model.activation_func: 'tanh' cannot be expressed",
    ("megatron-bridge", "model.activation_func", "relu2"): "model.activation_func: 'relu2' with gated_linear_unit True",
    ("megatron-bridge", "model.dsa_indexer_topk", 64): "model.dsa_indexer_topk: 64 cannot be expressed",
    ("megatron-bridge", "mixed_precision", "int4"): "mixed_precision.recipe: 'int4' cannot be expressed",
}


@pytest.mark.parametrize(("tool", "key", "value"), WRONG)
def test_what_cannot_be_said_is_named(tool, key, value):
    data = yaml.safe_load(FILES[tool])
    if "transformer" in data["model"]:
        data["model"] |= data["model"].pop("transformer")
    *parents, last = key.split(".")
    here = data
    for part in parents:
        here = here[part]
    here[last] = value
    with pytest.raises(InputError, match=re.escape(WRONG[tool, key, value])):
        read(tool, yaml.safe_dump(data))


def test_a_message_lists_each_word_of_another_tool_once():
    said = rows("nemo")["trainer.precision"].words
    assert said.count("bf16") == 1 and said == ["bf16", "bf16-mixed", "16-mixed", 16, 32, "32-true"]


def test_every_mixed_precision_recipe_sets_keys_of_a_workload():
    for name, keys in PRECISIONS.items():
        text = BRIDGE.replace("bf16_with_fp8_delayed_scaling_mixed", name)
        job = job_of(read("megatron-bridge", text))
        assert all(getattr(job.training, key.removeprefix("training.")) == value for key, value in keys.items())


def test_adapters_are_those_of_lora_alone():
    lora = "peft: {_target_: megatron.bridge.peft.lora.LoRA, dim: 8, alpha: 16, target_modules: [linear_qkv]}\n"
    adapters = job_of(read("megatron-bridge", BRIDGE + lora)).training.lora
    assert (adapters.rank, adapters.alpha, adapters.targets) == (8, 16, ("linear_qkv",))
    nemo = NEMO + "  peft: {peft_scheme: lora, lora_tuning: {adapter_dim: 16, target_modules: [attention_qkv]}}\n"
    assert job_of(read("nemo", nemo.replace("[attention_qkv]", "[attention]"))).training.lora.rank == 16
    with pytest.raises(InputError, match="peft_scheme"):
        job_of(read("megatron-bridge", BRIDGE + lora.replace("lora.LoRA", "dora.DoRA")))


def test_a_pipeline_layout_may_be_a_list_of_stages():
    stages = [["embedding", *["decoder"] * 8], ["decoder"] * 8, ["decoder"] * 8, [*["decoder"] * 8, "loss"]]
    data = yaml.safe_load(BRIDGE)
    data["model"]["transformer"] |= {"pipeline_model_parallel_layout": stages, "overlap_p2p_comm": False}
    data["model"]["transformer"]["virtual_pipeline_model_parallel_size"] = None
    found = job_of(read("megatron-bridge", yaml.safe_dump(data)))
    assert found.parallelism.layout == "|".join(["E" + "t" * 8, "t" * 8, "t" * 8, "t" * 8 + "L"])


def places(data, at=()):
    """Return the paths of all values of nested sections."""
    inner = [place for key, value in data.items() if isinstance(value, dict) for place in places(value, (*at, key))]
    return [*((*at, key) for key in data), *inner]


PLACES = {tool: places(yaml.safe_load(text)) for tool, text in FILES.items()}
ODD = (None, True, -1, 1.5, 10**12, "x", "${.a}", "1,0", (), [[1]], {"a": 1}, {"_target_": 3, "_call_": False})


@settings(max_examples=examples(150), deadline=None)
@given(tool=st.sampled_from(TOOLS), data=st.data(), value=st.sampled_from(ODD))
def test_any_other_value_is_read_or_refused_in_one_sentence(tool, data, value):
    whole = yaml.safe_load(FILES[tool])
    *parents, last = data.draw(st.sampled_from(PLACES[tool]))
    here = whole
    for part in parents:
        here = here[part]
    here[last] = list(value) if isinstance(value, tuple) else value
    try:
        job_of(read(tool, yaml.safe_dump(whole)))
    except InputError as error:
        assert "\n" not in str(error)


SPLITS = parsed(
    "tp=[1,2,4] pp=[1,2,4] cp=[1,2] zero=[0,1] parallelism.overlap.grad_reduce=[false,true] micro_batch=[1,2] "
    "precision=[bf16,fp16,fp8,mxfp8,nvfp4] recompute=[none,selective,full] training.rope_kernels=[fused,eager] "
    "training.fused_accumulation=[false,true] training.clip_gradients=[false,true] training.check_nan=[false,true]"
)
READABLE = shlex.split("llama3_8b llama3_70b gpt3_xl mixtral_8x7b qwen3_30b_a3b gpt_oss_20b kimi_k2 nemotron4_340b")


@pytest.mark.parametrize("tool", TOOLS)
@settings(max_examples=examples(30), deadline=None)
@given(name=st.sampled_from(READABLE), changes=some_of(SPLITS))
def test_what_is_written_is_read_back_as_the_same_job(tool, name, changes):
    """As Megatron-LM's own script is, but for NeMo's vocabulary, which a tokenizer says, and for unused positions."""
    try:
        job = load(name, changes).place(1024, 8)
        text, script = written(tool, job, 8), written("megatron", job, 8)
    except InputError as error:
        assert ": " in str(error)
        return
    back = read_back(tool, text, job)
    left = {key for key, _ in differences(job, back)}
    unsaid = {key for key, _ in differences(job, read_back("megatron", script, job))}
    assert left <= unsaid | {"model.vocab", "model.vocab_multiple", "model.max_positions"}
    if "model.vocab" not in left:
        assert parameters(back.model) == parameters(job.model)


def test_references_are_replaced_and_others_stay():
    data = {"a": {"b": 3, "c": "${.b}", "d": "${multiply:4, ${a.b}}", "e": "${sum:${.b},-1}", "f": "${x.a.b}"}}
    data |= {"g": "${nowhere}/b", "h": "n-${a.c}", "i": "${.i}", "j": ["${a.b}"], "k": "${divide:1, 2}"}
    found = resolved(data, "x.")
    assert found["a"] == {"b": 3, "c": 3, "d": 12, "e": 2, "f": 3}
    assert (found["g"], found["h"], found["i"], found["k"]) == ("${nowhere}/b", "n-3", "${.i}", "${divide:1, 2}")
