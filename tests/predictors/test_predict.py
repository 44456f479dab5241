"""`clustersim predict`: whole models on one GPU, what it prints, imports and refuses."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest
from published_models import KEYS

from clustersim.lab import whole_models
from clustersim.model.kernel import vector
from clustersim.model.parameters import parameters
from clustersim.parallel.load import load
from clustersim.predictors.load import get
from clustersim.single_gpu.memory import peak_alive_bytes
from clustersim.single_gpu.model import OUTSIDE, OperatorCall

ROOT = Path(__file__).parents[2]
GPT = str(ROOT / "tests/support/models/gpt.py")
CONFIG = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
LLAMA = KEYS["llama3_8b"]


@pytest.fixture
def call(call, tmp_path):
    """Return a function that runs `clustersim predict` in a folder with config.json and llama.json."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    return partial(call, "predict")


def answer(call, *arguments):
    code, out, err = call(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_inference_and_training_of_a_config(call):
    inference = answer(call, "config.json", "--gpu", "h100", "--batch", "8", "--per-kernel")
    training = answer(call, ".", "--gpu", "h100", "--mode", "training", "--batch", "8")
    assert inference["parameters"] == training["parameters"] == 124_439_808
    assert training["flop"] == 3 * inference["flop"]
    assert 2.5 < training["seconds"] / inference["seconds"] < 5
    assert sum(row["launches"] for row in inference["kernels"]) == inference["launches"]
    kernels = sum(row["launches"] * row["seconds"] for row in inference["kernels"])
    assert kernels + inference["waiting_for_cpu"] == pytest.approx(inference["seconds"])
    assert [part["phase"] for part in training["phases"]] == ["forward", "backward", "accumulate"]


def test_fusion_and_narrow_types_are_faster(call):
    base, fused, narrow, rounded = (
        answer(call, "config.json", "--gpu", "h100", "--batch", "8", *more)["seconds"]
        for more in ([], ["--fusion"], ["--dtype", "bf16"], ["--dtype", "tf32"])
    )
    assert fused < base
    assert narrow < rounded < base


@pytest.mark.parametrize(("key", "dtype"), [("torch_dtype", "bfloat16"), ("dtype", "float16"), ("dtype", "float32")])
def test_a_config_runs_in_the_type_of_its_weights_unless_another_is_asked_for(call, tmp_path, key, dtype):
    (tmp_path / "typed.json").write_text(json.dumps({**CONFIG, key: dtype}))
    own = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[dtype]
    typed, asked, other = (
        answer(call, name, "--gpu", "h100", *more)["seconds"]
        for name, *more in (["typed.json"], ["config.json", "--dtype", own], ["typed.json", "--dtype", "tf32"])
    )
    assert typed == asked != other


def test_a_llama_has_its_parameters_and_flop(call):
    found = answer(call, "llama.json", "--gpu", "h100", "--dtype", "bf16", "--seq", "4096", "--mode", "training")
    assert found["parameters"] == 8_030_261_248  # meta-llama/Meta-Llama-3-8B
    linear = 6 * 4096 * (8_030_261_248 - 4096 * (128256 + 65))
    assert found["flop"] == linear + 7 * 32 * 4096**2 * 4096  # flash attention, causal: 2 forward, 5 backward


@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "deepseek_v3", "gpt_oss_20b", "t5_large"])
def test_models_told_in_blocks_have_their_published_size(call, tmp_path, name):
    (tmp_path / "blocks.json").write_text(json.dumps(KEYS[name]))
    found = answer(call, "blocks.json", "--gpu", "h100", "--dtype", "bf16", "--seq", "256")
    assert found["parameters"] == parameters(load(ROOT / f"workloads/{name}.yaml").model)


def test_a_workload_file_runs_unsplit(call):
    found = answer(call, str(ROOT / "workloads/llama3_8b.yaml"), "--gpu", "b200", "--mode", "training", "--seq", "2048")
    assert found["parameters"] > 8.03e9
    assert {row["kind"] for row in found["classes"]} >= {"linear", "flash_attention", "layernorm"}
    eager = answer(call, str(ROOT / "workloads/gpt2_large.yaml"), "--gpu", "h100", "--batch", "2")
    fused = answer(call, str(ROOT / "workloads/gpt2_large.yaml"), "--gpu", "h100", "--batch", "2", "--fusion")
    assert fused["launches"] <= eager["launches"]


def test_a_module_is_traced_at_the_sizes_asked_for(call):
    one, four = (answer(call, f"{GPT}:small", "--gpu", "h100", "--batch", n, "--seq", "64") for n in ("1", "4"))
    assert four["flop"] == 4 * one["flop"]
    assert one["priced_by_bytes_alone"] == []


MODULES = """
import torch
def fails(): raise RuntimeError("no such checkpoint")
def number(): return 3
def bare(): return torch.nn.Linear(4, 4)
class Peeks(torch.nn.Module):
    def forward(self, x): return x if x.sum() > 0 else -x
def peeks(): return Peeks(), torch.ones(4)
def still(): return torch.nn.Linear(4, 4).requires_grad_(False), torch.ones(2, 4)
size = 3
"""
WRONG = {
    "none.json": "none.json: no such file; `ls .` shows what is there, give a config.json",
    "broken.json": "broken.json:1:2: not valid JSON: did not find expected node content",
    "list.json": "list.json:1:1: the top level must be a mapping of keys, not a list; write `key: value`",
    "empty.json": "empty.json: model_type '' is not built in; known: apertus, arctic, bamba, bert, cohere,",
    "config.json --seq 2000": "config.json: --seq 2000 is more than the 1024 positions of the model; lower it",
    "config.json --dtype fp8": "config.json: --dtype fp8 does not run eagerly; write one of fp32, tf32, fp16, bf16",
    "config.json --fusion --mode training": "--fusion is what torch.compile fuses in inference; leave it out",
    "none.py:f": "'none.py:f' cannot be loaded (FileNotFoundError:",
    "mine.py:nothing": "'mine.py:nothing' cannot be loaded (AttributeError: module 'mine' has no attribute 'nothing')",
    "mine.py:size": "'mine.py:size' is not a function but 3; name one that returns (module, inputs)",
    "mine.py:fails": "mine.py:fails: raised RuntimeError: no such checkpoint; it must return (module, inputs)",
    "mine.py:number": "mine.py:number: returned int; return (module, inputs), a torch.nn.Module and its inputs",
    "mine.py:bare": "mine.py:bare: returned a module without inputs; return (module, inputs), inputs being",
    "mine.py:bare --batch 2": "mine.py:bare: raised TypeError: the function takes no batch, which --batch sets;",
    "mine.py:peeks": "mine.py:peeks: cannot be traced on shapes alone (",
    "mine.py:still --mode training": "mine.py:still: cannot be traced on shapes alone (ValueError: no output has a",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_bad_input_is_one_sentence(call, tmp_path, arguments):
    files = {"broken.json": "{,}", "list.json": "[1]", "empty.json": "{}", "mine.py": MODULES}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    gpu = [] if "--gpu" in arguments else ["--gpu", "h100"]
    code, out, err = call(*arguments.split(), *gpu)
    assert (code, out) == (2, "")
    assert err.startswith(f"clustersim: {WRONG[arguments]}")
    assert err.count("\n") == 1


@pytest.fixture(scope="module")
def runs():
    folder = os.environ.get("CLUSTERSIM_DATA")
    if not folder or not (Path(folder) / whole_models.TABLE).is_file():
        pytest.skip(f"no measured models: $CLUSTERSIM_DATA does not hold {whole_models.TABLE}")
    return list(whole_models.runs(Path(folder), get("neusight")))


@pytest.mark.data
def test_all_measured_runs_of_built_in_models_are_forecast(runs):
    found = {(mean.gpu, mean.mode, mean.option, mean.trusted): mean for mean in whole_models.means(runs)}
    assert found["h100-sxm", "inf", "", True].runs + found["h100-sxm", "train", "", True].runs == 18
    assert found["h100-sxm", "inf", "fusion", True].runs == 4
    assert len(runs) == sum(mean.runs for mean in found.values()) == 137


@pytest.mark.data
def test_the_forecast_of_h100_is_nearer_than_that_of_neusight(runs):
    found = [run for run in runs if run.gpu == "h100-sxm"]
    for fused in ("", "fusion"):
        part = [run for run in found if run.group == fused]
        ours, theirs = (sum(map(abs, errors)) for errors in ([r.error for r in part], [r.their_error for r in part]))
        assert ours < theirs


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_405_billion_parameters_do_not_fit_on_a_t4(call, mode):
    workload = str(ROOT / "workloads/llama3_405b.yaml")
    found = answer(call, workload, "--gpu", "t4", "--mode", mode)
    memory = found["memory"]
    assert found["fits"] is False
    assert memory["verdict"] == "no"
    assert memory["parameters_bytes"] == 2 * found["parameters"]
    each = {"inference": (0, 0), "training": (4, 12)}[mode]
    assert (memory["gradients_bytes"], memory["optimizer_bytes"]) == tuple(n * found["parameters"] for n in each)
    kinds = ("parameters", "gradients", "optimizer", "activations", "workspace", "framework")
    assert memory["total_bytes"] == pytest.approx(sum(memory[f"{kind}_bytes"] for kind in kinds), rel=1e-12)
    code, out, err = call(workload, "--gpu", "t4", "--mode", mode)
    assert (code, err) == (0, "")
    assert "DOES NOT FIT" in out
    assert "warning: this model does not fit into one t4" in out


def test_a_small_model_fits_and_training_needs_more(call):
    inference = answer(call, "config.json", "--gpu", "h100")
    training = answer(call, "config.json", "--gpu", "h100", "--mode", "training")
    weights = 4 * inference["parameters"]
    assert inference["fits"]
    assert training["fits"]
    assert inference["memory"]["parameters_bytes"] == training["memory"]["gradients_bytes"] == weights
    assert training["memory"]["optimizer_bytes"] == 2 * weights
    assert training["memory"]["activations_bytes"] > 5 * inference["memory"]["activations_bytes"]
    assert "DOES NOT FIT" not in call("config.json", "--gpu", "h100")[1]


def test_outputs_are_alive_from_the_call_that_makes_them_to_the_last_that_reads_them():
    kernel = vector("memory", "copy", "fp32", 1, 8, 0.0, 8.0)

    def node(output, *reads, phase="forward", kernels=(kernel,)):
        return OperatorCall("", "x", phase, kernels, tuple((read, 1.0) for read in reads), output)

    chain = [node(4.0, OUTSIDE), node(8.0, 0), node(2.0, 1)]
    assert peak_alive_bytes(chain) == 12  # the first two, then the last two
    view = [node(4.0, OUTSIDE), node(4.0, 0, kernels=()), node(8.0, OUTSIDE), node(1.0, 1, 2)]
    assert peak_alive_bytes(view) == 13  # the view is none of its own, and keeps its tensor
    backward = [*chain, node(8.0, 2, 1, phase="backward"), node(8.0, OUTSIDE, 3, phase="accumulate")]
    assert (
        peak_alive_bytes(backward) == 18
    )  # what the backward pass reads stays; a gradient that is added up takes none
    assert peak_alive_bytes([]) == 0
