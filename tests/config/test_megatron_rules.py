"""Exported scripts of Megatron-LM replayed against its parser's table of arguments and its rules of validation."""

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import parsed, some_of

from clustersim.api.launch import differences, read_back, written
from clustersim.config import shipped
from clustersim.convert.shell import commands
from clustersim.errors import InputError
from clustersim.parallel.layout import portions
from clustersim.parallel.load import load

TABLE = yaml.safe_load((Path(__file__).parent / "megatron_rules.yaml").read_text(encoding="utf-8"))
REFUSED = {
    "bert_large": "model.head_transform",
    "grok_1": "model.norm_position",
    "llama2_70b_lora": "training.lora",
    "neusight_gpt3_xl": "training.optimizer",
    "opt_1.3b": "model.activation",
    "t5_11b": "model.encoder_layers",
    "t5_large": "model.encoder_layers",
}
"""Shipped workloads that pretrain_gpt.py has no arguments for, and the key that it cannot say."""
PATTERN = re.compile(r"\(\[[01]\]\*\d+(\+\[[01]\]\*\d+)*\)\*\d+")
TYPES = {"int": lambda word: re.fullmatch(r"-?\d+", word), "float": float, "text": str, "pattern": PATTERN.fullmatch}


def placed(name, changes=None):
    """Return a job on the smallest cluster of 8-GPU nodes that holds it."""
    job = load(name, changes)
    for gpus in (8, 64, 512, 4096, 32768):
        try:
            return job.place(gpus, 8)
        except InputError as error:
            last = error
    raise last


def launched(text):
    """Return the words of the launch and what the script sets of the environment."""
    shell = commands("the script", text, {"NODE_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    return shell.commands[-1], "".join(shell.variables.get("CUDA_DEVICE_MAX_CONNECTIONS", []))


def understood(words):
    """Return arguments as Megatron's parser reads them; what it would refuse fails."""
    found = defaultdict(lambda: None)
    words = words[words.index("pretrain_gpt.py") + 1 :]
    while words:
        name, kind = words[0][2:].replace("-", "_"), TABLE["arguments"][words[0][2:].replace("-", "_")]
        count = next((at for at, word in enumerate(words[1:]) if word.startswith("--")), len(words) - 1)
        values, words = words[1 : 1 + count], words[1 + count :]
        assert name not in found, "given twice"
        assert len(values) == 0 if kind == "flag" else values, name
        assert len(values) <= 1 or kind in ("ints", "texts"), name
        if isinstance(kind, list):
            assert values[0] in kind, name
        elif kind != "flag":
            check = TYPES[kind.removesuffix("s")]
            assert all(check(value) is not None for value in values), name
        numbers = [int(value) if re.fullmatch(r"-?\d+", value) else value for value in values]
        found[name] = True if kind == "flag" else numbers if kind in ("ints", "texts") else numbers[0]
    return found


def obeys(text):
    """Fail with the first rule of Megatron's validation that a script breaks."""
    words, connections = launched(text)
    said = understood(words)
    short = {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size",
        "vpp": "num_virtual_stages_per_pipeline_rank",
    }
    names = {**dict.fromkeys(TABLE["arguments"]), **said, "connections": connections}
    names |= {key: said[name] or 1 for key, name in short.items()}
    if stages := said["pipeline_model_parallel_layout"]:  # which says the virtual size too (training/arguments.py)
        names["vpp"] = (stages.count("|") + 1) // names["pp"]
    names["etp"] = said["expert_tensor_parallel_size"] or names["tp"]
    names["world"] = int(words[words.index("--nproc_per_node") + 1]) * int(words[words.index("--nnodes") + 1])
    first, last = said["decoder_first_pipeline_num_layers"], said["decoder_last_pipeline_num_layers"]
    ends = bool(said["account_for_embedding_in_pipeline_split"]) + bool(said["account_for_loss_in_pipeline_split"])
    names |= {"first": first, "last": last, "layout": said["pipeline_model_parallel_layout"]}
    names |= {"divided": said["num_layers"] + ends, "middle": said["num_layers"] - (first or 0) - (last or 0)}
    for rule in TABLE["rules"]:
        assert eval(rule["must"], {}, names), f"{rule['must']} ({rule['at']})"


@pytest.mark.parametrize("name", sorted(shipped.files("workloads").keys() - REFUSED.keys()))
def test_scripts_of_shipped_workloads_start_in_megatron(name):
    job = placed(name)
    text = written("megatron", job, 8)
    obeys(text)
    assert not [key for key, _ in differences(job, read_back("megatron", text, job)) if key.startswith("model.")]


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_without_arguments_is_refused_by_its_key(name):
    with pytest.raises(InputError, match=rf"^{re.escape(REFUSED[name])}: pretrain_gpt\.py has no argument for it"):
        written("megatron", placed(name), 8)


DRAWN = parsed(
    "tp=[1,2,8] pp=[1,2,3,8] vpp=[1,2] cp=[1,2] ep=[1,4] parallelism.expert_tp=[1,2] zero=[0,1,2,3] "
    "parallelism.sequence_parallel=[true,false] parallelism.overlap.grad_reduce=[true,false] "
    "parallelism.overlap.param_gather=[true,false] parallelism.overlap.p2p=[true,false] "
    "parallelism.overlap.tp=[none,ring] parallelism.overlap.ep=[none,microbatch] parallelism.first_layers=[2,3] "
    "parallelism.account_for_loss=[true,false] parallelism.partition=[layers,compute] "
    "parallelism.algorithms.ep=[nccl,deepep,hybridep] precision=[bf16,fp16,fp8,mxfp8,nvfp4] "
    "recompute=[none,selective,full] training.recompute_modules=[[layernorm],[core_attn]] "
    "training.optimizer=[adam,sgd,muon] training.moments=[fp32,bf16] "
    "training.offload.optimizer_states=[0.0,0.5,1.0] training.offload.activations=[0.0,0.5] "
    "training.bf16_first_layers=[0,1] seq=[2048,131072] model.mtp_layers=[0,1]"
)
MODELS = ["deepseek_v3", "gpt3", "gpt_oss_20b", "llama3_70b", "llama4_maverick", "nemotron4_340b", "qwen3_235b_a22b"]


@settings(max_examples=examples(100))
@given(st.sampled_from(MODELS), some_of(DRAWN))
def test_scripts_of_any_split_start_in_megatron_and_have_the_same_stages_read_back(name, changes):
    try:
        job = placed(name, changes)
        text = written("megatron", job, 8)
    except InputError:
        return
    obeys(text)
    back = read_back("megatron", text, job)
    assert portions(back.parallelism, back.model) == portions(job.parallelism, job.model)


def test_a_launch_on_several_nodes_says_what_is_to_be_set(tmp_path):
    (tmp_path / "mine.sh").write_text(written("megatron", placed("llama3_70b"), 8), encoding="utf-8")
    result = subprocess.run(["bash", "mine.sh"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "NODE_RANK: placeholder, set it to the number of this node from 0" in result.stderr
