"""A measured run as a simulation: what a row becomes, what is refused, and what is said of the errors."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from unittest.mock import ANY

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from validate_cases import ROW, said, write

from clustersim.config.yaml import parse
from clustersim.errors import InputError, InterruptedSweepError
from clustersim.frameworks.table import load as framework
from clustersim.frameworks.table import unseen
from clustersim.parallel.layout import portions
from clustersim.parallel.load import build
from clustersim.report import calibration
from clustersim.report.calibration import Kind
from clustersim.report.store import question_of
from clustersim.simulation import simulate
from clustersim.units import duration
from clustersim.validate import calibrate, log, page, peaks, ranking, run, runs, statistics
from clustersim.validate.adapt import adapt
from clustersim.validate.evaluate import evaluate
from clustersim.validate.report import report
from clustersim.validate.strangers import EVERYTHING, Knowledge, publisher_group


def row(tmp_path, **change):
    """Read a row of cells, which may have columns beside those of ROW."""
    names = (*ROW, *(name for name in change if name not in ROW))
    return runs.read(write(tmp_path / "runs.csv", change, names=names))[0]


def specs(setup):
    return parse(setup.topology).data, parse(setup.workload).data


def at(setup, key):
    """Return the value of a dotted key in the two files of a row, None where neither says it."""
    here = specs(setup)[0 if key.startswith(("cluster", "nccl")) else 1]
    for part in key.split("."):
        here = here.get(part) if here else None
    return here


def test_a_row_becomes_the_files_that_run_would_be_given(tmp_path):
    setup = adapt(row(tmp_path))
    cluster, job = specs(setup)
    assert cluster["cluster"]["nodes"] == 1
    assert cluster["cluster"]["node"]["extends"] == "hgx-a100"
    assert job["model"]["layers"] == 4
    assert job["parallelism"]["schedule"] == "1f1b"
    assert job["training"]["attention"] == "unfused"
    outcome = evaluate(row(tmp_path))
    for name, text in (("cluster.yaml", setup.topology), ("job.yaml", setup.workload)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    same = simulate(tmp_path / "cluster.yaml", tmp_path / "job.yaml").summary
    assert outcome["simulated_s"] == same["step_time_s"]
    level = calibration.software_level(
        Kind("ampere", "fp16", 8, 0.0, trainer="megatron", year=2021), calibration.shipped_table()
    )
    assert outcome["predicted_s"] == pytest.approx(level.factor * same["step_time_s"])
    assert outcome["error"] == pytest.approx(outcome["predicted_s"] / 0.1 - 1)
    assert outcome["status"] == "ok"
    assert sum(outcome["breakdown_s"].values()) == pytest.approx(same["step_time_s"])


OFF = "; ".join(f"parallelism.overlap.{name}=false" for name in ("grad_reduce", "param_gather", "p2p"))
OFF += "; parallelism.overlap.tp=none"
TWO = "num_gpus=16; dp=4"
FSDP = "framework=PyTorch FSDP; flash_attention"
RACK = "gpu=gb200; gpus_per_node=4; nvlink_domain=72; nic_gbps_per_gpu=400; precision=bf16"
MICRO = "tp=2; pp=1; dp=4; seq=1024; global_batch=64; micro_batch="
OPEN = "num_gpus=8; tp=1; pp=1; dp=8; global_batch=192; micro_batch=; seq=1024"
TITAN = "framework=torchtitan; precision=bf16; year"
FP8 = "framework=torchtitan; gpu=h100-sxm; precision=fp8; year=2025; original_precision"
COMPOSER = "framework=Composer/llm-foundry (PyTorch FSDP); zero_stage=3; precision=bf16; original_precision"
WORDS = "original_overlap"
SC21 = "framework=Megatron-LM (2021); num_gpus=512; layers=48; hidden=8192; ffn_hidden=32768; heads=64; kv_heads=64; tp=8; pp=2"
SC21 += "; dp=32; vpp=; global_batch=1536; micro_batch="
READ = {
    # what a row leaves open is its framework's default of that year
    "": f"training.gradients=fp16; {OFF}; nccl=null",
    "framework=NeMo 25.02; year=2025; zero_stage=; precision=bf16; flash_attention=": (
        "parallelism.zero=1; parallelism.overlap.grad_reduce=true; training.attention=flash; model.dropout=false"
    ),
    "framework=by hand; sequence_parallel=": f"training.kernels=eager; {OFF}",
    "overlap_grad_reduce=1; flash_attention=1; recompute=selective": (
        "parallelism.overlap.grad_reduce=true; training.attention=flash; training.recompute=selective"
    ),
    "vpp=2; framework=NeMo; year=2024": "parallelism.schedule=interleaved; parallelism.overlap.p2p=true",
    "tp=1; dp=4; sequence_parallel=1": "parallelism.sequence_parallel=false",
    "cp=2; dp=1; tp=2; year=2025": "parallelism.cp=2; parallelism.cp_type=p2p",
    f"cp=2; dp=1; {TITAN}=2025": "parallelism.cp_type=all_gather",
    # the family of a model is in its name, and a size there decides whether embeddings are tied or an MLP gated
    "model=Llama3-8B; framework=NeMo; year=2024": "model.activation=swiglu; model.norm=rmsnorm; model.tied_embeddings=false",
    # GPUs share the usual NICs of their node where a row gives each less; a cloud that is named has its own node
    f"{TWO}; nic_gbps_per_gpu=100": "cluster.node.nics.count=4; cluster.node.nics.rate=200Gb/s",
    f"{TWO}; nic_gbps_per_gpu=50": "cluster.node.nics.count=2; cluster.node.nics.rate=200Gb/s",
    f"{TWO}; nic_gbps_per_gpu=150": "cluster.node.nics.count=8; cluster.node.nics.rate=150Gb/s",
    f"{TWO}; gpu=h100-sxm; nic_gbps_per_gpu=400": "cluster.node.extends=hgx-h100",
    f"{TWO}; gpu=h100-sxm; nic_gbps_per_gpu=400; original_interconnect=AWS EFA": "cluster.node.extends=aws-p5",
    f"{TWO}; gpu=v100-sxm2-32gb; nic_gbps_per_gpu=100": "cluster.node.extends=dgx1-v100",
    f"{TWO}; gpu=v100-sxm2-32gb; nic_gbps_per_gpu=100; original_interconnect=Omni-Path 4x100 Gb/s per 4-GPU node": (
        "cluster.node.extends=jean-zay-v100"
    ),
    f"{TWO}; gpu=a100-sxm-80gb; nic_gbps_per_gpu=50; original_interconnect=Omni-Path 4x100 Gb/s per 8-GPU node": (
        "cluster.node.extends=jean-zay-a100"
    ),
    f"{RACK}; num_gpus=72; dp=18": "cluster.nodes=1; cluster.node.gpus.count=72",
    f"{RACK}; num_gpus=144; dp=36": "cluster.nodes=3; cluster.node.gpus.count=64",
    # a run of several nodes has the NCCL of its year
    **{
        f"{TWO}; year={y}": f"nccl.version={v}"
        for y, v in ((2019, "2.18"), (2022, "2.18"), (2024, "2.22"), (2031, "2.29"))
    },
    # fused attention with position biases was Triton's until flash attention had them
    f"{FSDP}=1; model=MPT-7B; year=2023": "training.attention=triton",
    f"{FSDP}=1; model=MPT-7B; year=2024": "training.attention=flash2",
    f"{FSDP}=0; model=MPT-7B; year=2023": "training.attention=unfused",
    f"{FSDP}=1; model=Llama2-7B; year=2023": "training.attention=flash2",
    # degrees that are open follow from the GPUs, a microbatch has the usual tokens without a pipeline
    "dp=": "parallelism.tp=2; parallelism.pp=2; parallelism.dp=2",
    "pp=": "parallelism.tp=2; parallelism.pp=2; parallelism.dp=2",
    "tp=; pp=; dp=2": "parallelism.tp=4; parallelism.pp=1; parallelism.dp=2",
    "cp=2; dp=2": "parallelism.tp=2; parallelism.pp=2; parallelism.dp=1",  # a dp that counts cp's ranks
    "tp=; pp=; dp=": "parallelism.tp=1; parallelism.pp=1; parallelism.dp=8",
    **{f"{MICRO}; {more}": "parallelism.dp=4; training.micro_batch=8" for more in ("", "dp=", "pp=", "dp=; pp=")},
    OPEN: "training.micro_batch=8",
    f"{OPEN}; seq=4096": "training.micro_batch=2",
    f"{OPEN}; global_batch=48": "training.micro_batch=6",
    f"{OPEN}; micro_batch=3": "training.micro_batch=3",
    f"{OPEN}; pp=2; dp=4": "training.micro_batch=1",
    f"{OPEN}; framework=DeepSpeed": "training.micro_batch=1",
    # torchtitan cut a batch by stages before it cut it by sequences
    f"{TITAN}=2024; micro_batch=; global_batch=8; tp=4; pp=2; dp=1": "training.micro_batch=4",
    f"{TITAN}=2025; micro_batch=; global_batch=8; tp=4; pp=2; dp=1": "training.micro_batch=1",
    # what a publication leaves open is taken from the script of that job
    SC21: "training.micro_batch=4",
    f"{SC21}2": "training.micro_batch=2",
    f"{SC21}; global_batch=3072": "training.micro_batch=1",
    # fp8 is scaled, and sharded parameters come, as the source or else the framework says
    f"{FP8}=fp8 rowwise": "training.fp8_scaling=row",
    f"{FP8}=fp8 tensorwise": "training.fp8_scaling=current",
    f"{FP8}=fp8": "training.fp8_scaling=current",
    f"{FP8}=delayed": "training.fp8_scaling=delayed",
    "zero_stage=; framework=torchtitan; year=2025": "parallelism.zero=3; parallelism.fsdp.forward_prefetch=2",
    f"{COMPOSER}=amp_bf16 (FSDP mixed_precision DEFAULT)": "training.gradients=fp32; parallelism.fsdp.copy_out=false",
    f"{COMPOSER}=bf16 (FSDP mixed_precision PURE)": "training.gradients=bf16; parallelism.fsdp.copy_out=false",
    "zero_stage=2; pp=1; dp=4": "parallelism.reduce_every_microbatch=true",
    # what a source says in words
    f"{WORDS}=full CUDA graphs": "training.cuda_graphs=full",
    f"{WORDS}=per-layer CUDA graphs": "training.cuda_graphs=layer",
    f"{WORDS}=CUDA graphs on Blackwell": "training.cuda_graphs=null",
    f"{WORDS}=CUDA graphs on Blackwell; gpu=b200-sxm": "training.cuda_graphs=layer",
    f"{WORDS}=CUDA graphs not stated": "training.cuda_graphs=null",
    f"{WORDS}=no CUDA graphs in attention, per-layer CUDA graphs": "training.cuda_graphs=layer",
    **{
        f"{WORDS}={denied}": "training.cuda_graphs=none"
        for denied in (
            *(
                "no CUDA graphs",
                "CUDA graphs disabled",
                "cuda graphs: off",
                "w/o CUDA graphs",
                "CUDA graphs were not used",
            ),
            *("no full CUDA graphs", "without full-iteration CUDA graphs"),
        )
    },
    f"{WORDS}=compile; framework=torchtitan": "training.kernels=fused",
    f"{WORDS}=without torch.compile": "training.kernels=eager",
    f"{WORDS}=FA3 did not compile here, and failed to compile there": "training.kernels=fused",
    f"{WORDS}=users are eager to know": "training.kernels=fused",
    f"{WORDS}=zero-bubble was tried and rejected; pp=2": "parallelism.schedule=1f1b",
    f"{WORDS}=AsyncTP; sequence_parallel=1": "parallelism.overlap.tp=async",
    f"{WORDS}=schedule zbv; pp=2; vpp=2": "parallelism.schedule=zbv; parallelism.vpp=2",
    f"{WORDS}=ZB-H2; pp=2": "parallelism.schedule=zb_h2",
    f"{WORDS}=DeepEP": "parallelism.algorithms=null",  # there are no experts
    f"{WORDS}=DeepEP; experts=8; topk=2; ep=2; tp=1; dp=4": "parallelism.algorithms.ep=deepep",
}
"""Cells of a row → keys of its two files."""


@pytest.mark.parametrize("cells", READ)
def test_a_row_says_or_leaves_open_what_its_files_say(tmp_path, cells):
    setup = adapt(row(tmp_path, **said(cells)))
    wanted = said(READ[cells])
    assert {key: json.dumps(at(setup, key)).strip('"') for key in wanted} == wanted


NODE_OF_ITS_OWN = f"{TWO}; nic_gbps_per_gpu=400; precision=bf16; gpu"
ASSUMED = [
    ("", "training.gradients: fp16 (megatron-2020)"),
    ("", "parallelism.overlap.grad_reduce: false (megatron-2020)"),
    ("framework=by hand", "framework: as Generic trainer"),
    ("framework=by hand; tp=1; pp=1; dp=8", "framework: as Generic trainer"),
    ("framework=by hand; tp=1; pp=1; dp=8; zero_stage=3", "framework: as PyTorch FSDP"),
    *((f"{NODE_OF_ITS_OWN}={gpu}", "node: 8 ") for gpu in ("l40s", "a100-pcie-80gb", "mi250x")),
    (f"{NODE_OF_ITS_OWN}=l40s", "host.pcie: gen5x16 (a NIC of 400 Gb/s)"),
    ("zero_stage=3; framework=NeMo 25.02; year=2025; precision=bf16", "parallelism.fsdp: FSDP2's"),
    (SC21, "training.micro_batch: 4 (megatron-2020, examples/sc21/run_table_1.sh 39B)"),
]


@pytest.mark.parametrize(("cells", "assumed"), ASSUMED)
def test_what_is_assumed_is_said(tmp_path, cells, assumed):
    setup = adapt(row(tmp_path, **said(cells)))
    assert any(one.startswith(assumed) for one in setup.assumed)
    assert not any(one.startswith("training.recompute") for one in setup.assumed)


@pytest.mark.parametrize(("hidden", "gpus", "alone"), [("1024", "8", True), ("8192", "64", False)])
def test_a_model_that_fits_no_single_gpu_is_split(tmp_path, hidden, gpus, alone):
    big = {"layers": "48", "ffn_hidden": "32768", "heads": "64", "kv_heads": "64"} if hidden == "8192" else {}
    job = specs(adapt(row(tmp_path, tp="", pp="", dp="", num_gpus=gpus, hidden=hidden, **big)))[1]["parallelism"]
    assert (job["dp"] == int(gpus)) == alone


def test_a_kind_of_model_is_no_module_of_it(tmp_path):
    for words, modules in (("modules for MoE", False), ("modules (moe)", True)):
        change = said("experts=8; topk=2; ep=2; tp=1; dp=4; recompute=selective")
        setup = adapt(row(tmp_path, **change, original_recompute=f"selective {words}"))
        assert (at(setup, "training.recompute_modules") is not None) is modules


def test_a_size_in_the_name_decides_whether_embeddings_are_tied_and_an_unknown_model_gated(tmp_path):
    shapes = said("layers=28; hidden=3072; ffn_hidden=8192; heads=32; kv_heads=32; vocab=131072")
    setup = adapt(row(tmp_path, model="Llama-like 3.57B", framework="nanotron", **shapes))
    assert at(setup, "model.tied_embeddings") is True
    assert any("3.57B parameters in the model's name" in one for one in setup.assumed)
    shapes = said("layers=32; hidden=4096; heads=32; kv_heads=32; ffn_hidden=16384; vocab=50257")
    for name, activation in (("my-6.9B", "gelu"), ("my-9.0B", "swiglu")):
        assert at(adapt(row(tmp_path, **shapes, model=name)), "model.activation") == activation


MIXTURE = {"experts": "16", "topk": "2", "shared_experts": "1", "ffn_hidden": "256", "layers": "4"}


@pytest.mark.parametrize(
    ("framework", "year", "kernels"),
    [
        ("Megatron-LM core", "2024", "weighed"),
        ("Megatron-LM core", "2025", "fused"),
        ("PaddleNLP", "2024", "eager"),
    ],
)
def test_rows_of_experts_are_summed_as_the_release_does(tmp_path, framework, year, kernels):
    assert at(adapt(row(tmp_path, framework=framework, year=year, **MIXTURE)), "training.permute_kernels") == kernels
    assert "permute_kernels" not in str(specs(adapt(row(tmp_path, framework=framework, year=year))))


@pytest.mark.parametrize(
    ("model", "change", "blocks"),
    [
        ("DeepSeek-V3 (4 layers)", {"kv_heads": "MLA"}, {"dense_layers": 1, "dense_ffn": 18432}),
        ("DeepSeek-V3", {"kv_heads": "MLA", "layers": "61"}, {"dense_layers": 3, "dense_ffn": 18432}),
        ("DeepSeek-V2 (4 layers)", {"kv_heads": "MLA"}, {"dense_layers": 1, "dense_ffn": 12288}),
        ("Kimi K2", {"layers": "61"}, {"dense_layers": 1, "dense_ffn": 18432}),
        ("gpt-oss-20b", {}, {"blocks": [{"window": 128}, {}], "head_dim": 64}),
        ("Llama4 Scout", {}, {"blocks": [{"count": 3, "window": 8192}, {"positions": "none"}]}),
        ("Qwen3-30B-A3B", {}, {"qk_norm": True, "head_dim": 128}),
    ],
)
def test_a_models_name_says_which_of_its_layers_differ(tmp_path, model, change, blocks):
    cells = {"model": model, "pp": "1", "tp": "1", "dp": "8", **MIXTURE, **change}
    _, job = specs(adapt(row(tmp_path, **cells)))
    assert {key: job["model"][key] for key in blocks} == blocks
    assert ("mla" in job["model"]) == ("MLA" in change.values() or model.startswith("Kimi"))
    assert build(parse(json.dumps(job))).model.layers == int(change.get("layers", 4))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"zero_stage": "2", "overlap_grad_reduce": "1"}, "ZeRO-2"),  # four microbatches in a pipeline, each reduced
        ({"zero_stage": "2", "global_batch": "4"}, "ZeRO-2"),  # reduced between passes
        ({"cp": "3"}, "layout"),  # three times the GPUs of the run
        ({"precision": "int8"}, "precision"),
        ({"model": "DeepSeek-V3"}, "incomplete source"),
        ({"gpu": "tpu-v5p"}, "unknown GPU"),
        ({"tp": "", "pp": "", "dp": "", "num_gpus": ""}, "incomplete source"),
        ({"recompute": "some layers"}, "recompute"),
        ({"heads": "15"}, "mapping"),
        ({"original_overlap": "ZB-V schedule"}, "mapping"),  # on one stage
        ({"set": "cluster.nodes=2"}, "set"),
        ({"cluster_set": "parallelism.tp=2"}, "cluster_set"),
        ({"set": "model.hiden=2"}, "mapping"),
        ({"launch": "none.sh"}, "launch"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_its_reason(tmp_path, change, kind):
    outcome = evaluate(row(tmp_path, **change))
    assert outcome["status"] == "refused"
    assert outcome["reason_kind"] == kind
    assert outcome["reason"]
    assert outcome["predicted_s"] is None


@pytest.mark.parametrize(
    ("change", "shapes"),
    [
        ({"model": "my model"}, {"activation": "gelu", "positions": "learned"}),
        ({"model": "my model", "ffn_hidden": "2816"}, {"activation": "swiglu", "norm": "rmsnorm"}),
        ({"model": "mine", "ffn_hidden": "", "kv_heads": "4"}, {"activation": "swiglu", "kv_heads": 4, "ffn": 2816}),
        (
            {"model": "mine", "ffn_hidden": "", "kv_heads": "", "framework": "torchtitan", "precision": "bf16"},
            {"activation": "swiglu"},
        ),
        ({"model": "InternLM-7B", "ffn_hidden": "2752"}, {"activation": "swiglu"}),
        ({"model": "BLOOM-176B"}, {"activation": "gelu", "positions": "none"}),
        ({"model": "Grok-1 proxy"}, {"activation": "geglu", "norm_position": "both"}),
        ({"model": "mine", "kv_heads": "MLA"}, {"mla": ANY}),
        ({"model": "mine", "vocab": "", "heads": "", "kv_heads": ""}, {"vocab": 50_257, "heads": 8}),
    ],
)
def test_an_unknown_model_is_a_decoder_by_its_shapes(tmp_path, change, shapes):
    setup = adapt(row(tmp_path, **change))
    model = specs(setup)[1]["model"]
    assert {key: model[key] for key in shapes} == shapes
    assert any(one.startswith("model: ") for one in setup.assumed)
    assert evaluate(row(tmp_path, **change))["status"] == "ok"


@pytest.mark.parametrize(("layers", "pp", "vpp"), [(126, 8, 8), (94, 4, 6), (61, 8, 2), (61, 16, 1), (5, 2, 1)])
def test_layers_that_do_not_divide_are_cut_with_embedding_and_loss_as_one_each(tmp_path, layers, pp, vpp):
    split = {"pp": str(pp), "tp": "1", "dp": "1", "num_gpus": str(pp), "vpp": str(vpp), "global_batch": str(2 * pp)}
    found = adapt(row(tmp_path, layers=str(layers), **split))
    job = build(parse(found.workload))
    counts = [portion.blocks for portion in portions(job.parallelism, job.model)]
    assert sum(counts) == layers
    assert max(counts[:-1]) >= counts[-1]  # the loss makes the last one lighter
    assert evaluate(row(tmp_path, layers=str(layers), **split))["status"] == "ok"


def test_set_and_cluster_set_decide_last(tmp_path):
    change = {"set": "training.cuda_graphs=full; parallelism.overlap.p2p=true", "cluster_set": "nccl.version='2.21'"}
    cluster, job = specs(adapt(row(tmp_path, **change)))
    assert (job["training"]["cuda_graphs"], job["parallelism"]["overlap"]["p2p"]) == ("full", True)
    assert cluster["nccl"] == {"version": "2.21"}
    assert "is not key=value" in row(tmp_path, set="cuda graphs").unreadable


def test_a_launch_file_says_what_columns_leave_blank(tmp_path):
    shapes = dict.fromkeys(("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab"), "")
    config = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1408}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_attention_heads": 8, "vocab_size": 32000}))
    _, job = specs(adapt(row(tmp_path, **shapes, launch="config.json")))
    assert (job["model"]["activation"], job["model"]["ffn"], job["training"]["seq"]) == ("swiglu", 1408, 1024)
    assert at(adapt(row(tmp_path, **{**shapes, "layers": "8"}, launch="config.json")), "model.layers") == 8
    shape = "--num-layers 6 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --max-position-embeddings 512"
    script = f"torchrun pretrain_gpt.py {shape} --vocab-size 50257 --micro-batch-size 2 --global-batch-size 16 --swiglu"
    (tmp_path / "run.sh").write_text(script)
    _, job = specs(adapt(row(tmp_path, **shapes, seq="", launch="run.sh")))
    assert (job["model"]["layers"], job["model"]["activation"], job["training"]["seq"]) == (6, "swiglu", 512)


@pytest.mark.parametrize(
    ("name", "column", "key", "value"),
    [
        ("torchtitan", "recompute", "training.recompute", "none"),
        ("InternEvo", "overlap_grad_reduce", "parallelism.overlap.grad_reduce", False),
        ("Megatron-LM", "overlap_tp", "parallelism.overlap.tp", "none"),
        ("Megatron-LM", "flash_attention", "training.attention", "unfused"),
        ("PyTorch FSDP", "zero_stage", "parallelism.zero", 0),
    ],
)
@pytest.mark.parametrize("by_column", [True, False])
def test_what_a_row_does_without_is_not_the_frameworks_default(tmp_path, name, column, key, value, by_column):
    draft = said(f"{column}=; framework={name}; num_gpus=8; tp=2; pp=1; dp=4; year=2025")
    stated = {column: "none"} if by_column else {"set": f"{key}={json.dumps(value).strip(chr(34))}"}
    assert at(adapt(row(tmp_path, **draft)), key) != value  # the framework's default
    assert at(adapt(row(tmp_path, **{**draft, **stated})), key) == value


@pytest.mark.parametrize(
    "change",
    [
        {"framework": "by hand"},
        *({"gpu": gpu} for gpu in ("l40s", "a100-pcie-80gb", "mi250x")),
        said("model=DeepSeek-LLM-7B; framework=HAI-LLM (DeepSeek); recompute=selective; precision=bf16"),
        said("model=mine; experts=8; ep=2; sequence_parallel="),
        {"model": "DeepSeek-LLM-7B"},
        {"precision": "bfloat16"},
    ],
)
def test_what_a_row_leaves_open_has_its_one_sensible_reading(tmp_path, change):
    outcome = evaluate(row(tmp_path, **change))
    assert outcome["status"] == "ok", outcome["reason"]
    if change.get("framework") == "by hand":
        assert "of by hand" in outcome["interval"]
    if change == {"model": "DeepSeek-LLM-7B"}:
        setup = adapt(row(tmp_path, **change))
        assert (at(setup, "model.activation"), at(setup, "model.kv_heads")) == ("swiglu", 16)
    if "experts" in change:
        assert at(adapt(row(tmp_path, **change)), "model.topk") == 2


def test_a_bad_cluster_refuses_its_row_and_no_other(tmp_path):
    far = {"id": "MINE-2", "tp": "", "pp": "", "dp": "", "num_gpus": "1000000000"}
    path = write(tmp_path / "runs.csv", {}, far)
    with log.opened(tmp_path / "out", asked(path)) as kept:
        found = run.simulate(run.load([path]), [], 1, kept)
    assert [one["status"] for one in found[None]] == ["ok", "refused"]


def test_a_row_that_cannot_be_read_is_refused_and_the_others_are_not(tmp_path):
    path = write(tmp_path / "runs.csv", {}, {"id": "MINE-2", "tp": "x"}, {"id": "MINE-1"})
    path.write_text(path.read_text() + "1,2,3\n")
    rows = run.load([path])
    assert len({one.id for one in rows}) == 4
    outcomes = [evaluate(one) for one in rows]
    assert [one["status"] for one in outcomes] == ["ok", "refused", "refused", "refused"]
    assert statistics.refusals(outcomes) == {"unreadable row": 3}
    assert "runs.csv:3:1: tp: 'x' is not a whole number" in outcomes[1]["reason"]
    assert "id: 'MINE-1' stands in line 2 already" in outcomes[2]["reason"]
    assert "3 cells under" in outcomes[3]["reason"]


def test_zero_2_reduces_every_microbatch_where_there_is_no_pipeline(tmp_path):
    several = {"pp": "1", "dp": "4"}
    exposed = [evaluate(row(tmp_path, **several, zero_stage=z))["breakdown_s"]["dp"] for z in ("1", "2")]
    assert exposed[1] > 1.3 * exposed[0]  # two reductions and one gathering for one of each


def test_zero_2_is_simulated_where_gradients_are_reduced_once_under_the_backward_pass(tmp_path):
    once = {"zero_stage": "2", "overlap_grad_reduce": "1", "global_batch": "4"}
    found = evaluate(row(tmp_path, **once))
    assert specs(adapt(row(tmp_path, **once)))[1]["parallelism"]["zero"] == 2
    assert found["status"] == "ok"
    whole = evaluate(row(tmp_path, **{**once, "zero_stage": "1"}))
    assert found["predicted_s"] == whole["predicted_s"]
    assert found["allocated_gib"] <= whole["allocated_gib"]  # gradients of other ranks are freed, bucket by bucket


def test_deepspeed_cuts_any_number_of_layers(tmp_path):
    assert evaluate(row(tmp_path, layers="5", framework="Megatron-DeepSpeed"))["status"] == "ok"


def test_a_run_that_was_measured_is_simulated_though_it_would_not_fit(tmp_path):
    outcome = evaluate(row(tmp_path, hidden="16384", ffn_hidden="65536", heads="64", kv_heads="64", layers="16"))
    assert outcome["status"] == "ok"
    assert outcome["fits"] is False
    assert outcome["memory_gib"] > outcome["allocated_gib"]


@pytest.mark.parametrize(
    "change", ["predictor=roofline", "predictor=linear", "clocks=boost", "fabric=ideal", "host=ideal", "nccl=ring"]
)
def test_one_part_can_be_changed(tmp_path, change):
    [(part, value)] = run.ablations([change])
    plain, changed = evaluate(row(tmp_path)), evaluate(row(tmp_path), {part: value})
    assert changed["status"] == "ok"
    faster = changed["predicted_s"] <= plain["predicted_s"]
    assert faster or change in ("predictor=linear", "nccl=ring")


def test_a_publisher_is_judged_without_what_was_read_from_it(tmp_path):
    own, other = (
        {"id": "VTRAINS-1", "framework": "Megatron-DeepSpeed"},
        {"id": "MINE-1", "framework": "Megatron-DeepSpeed"},
    )
    path = write(tmp_path / "runs.csv", own, other, {"id": "MINE-2"})
    with log.opened(tmp_path / "out", asked(path)) as kept:
        found = run.simulate(run.load([path]), [], 1, kept)
    left, same, _ = found[run.UNSEEN]
    assert (same["simulated_s"], same["without"]) == (found[None][1]["simulated_s"], "MINE")
    slower = str(unseen(framework("megatron-deepspeed"), "VTRAINS"))
    assert left["id"] == "VTRAINS-1"
    job, as_if = (specs(adapt(run.load([path])[0], view=Knowledge("VTRAINS")))[part] for part in (1, 0))
    assert job["training"]["framework"] == "megatron-deepspeed without VTRAINS"
    assert str(as_if["cluster"]["node"]["host"]["slowdown"]) == slower
    assert left["predicted_s"] != found[None][0]["predicted_s"]
    figures = report(found[None], unseen=found[run.UNSEEN])
    assert figures["publishers_in_sample"]["VTRAINS"]["bias"] == found[None][0]["error"]
    assert figures["publishers_left_out"]["VTRAINS"]["bias"] == left["error"]
    # each publisher has fewer than four runs: they count as one
    errors = [abs(one["error"]) for one in found[run.UNSEEN]]
    assert figures["left_out"]["publisher_mean_error"] == pytest.approx(sum(errors) / 3)
    text = page.page(figures, found[run.UNSEEN], "runs.csv")
    assert page.sentence(figures) in text.replace("&gt;", ">")
    assert "each as a stranger" in text


V100, B200 = "gpu=v100-sxm2-32gb", "gpu=b200-sxm; nic_gbps_per_gpu=400"


@pytest.mark.parametrize(
    ("cells", "key", "as_is", "left_out"),
    [
        ("id=BSPREQ-1; original_interconnect=Omni-Path; nic_gbps_per_gpu=50", "nics.efficiency", None, 0.212),
        (f"id=BSV100-1; {V100}; original_interconnect=Omni-Path; nic_gbps_per_gpu=100", "nics.efficiency", None, 0.19),
        ("id=VTRAINM-1; nic_gbps_per_gpu=100", "nics.count", 4, 8),
        (f"id=SIMUMAX-1; {B200}", "gpus.sustained.bf16", None, 0.645),
        (f"id=DGXC-1; {B200}", "gpus.sustained.bf16", None, 0.585),
    ],
)
def test_a_cluster_without_a_publisher_has_what_the_others_say(tmp_path, cells, key, as_is, left_out):
    change = said(cells)
    one = row(tmp_path, num_gpus="16", dp="4", **change)
    for view, value in ((EVERYTHING, as_is), (Knowledge(one.publisher), left_out)):
        here = specs(adapt(one, view=view))[0]["cluster"]["node"]
        for part in key.split("."):
            here = here.get(part) if here else None
        assert here == value
    other = row(tmp_path, num_gpus="16", dp="4", **{**change, "id": "OTHER-1"})
    assert adapt(other) == adapt(other, view=Knowledge("OTHER"))


def test_every_figure_that_was_read_from_steps_says_what_it_would_be_without_them():
    from clustersim.convert.override import preset_node, presets
    from clustersim.hardware.gpus import everything

    readings = [one for gpu in everything() for one in gpu.evidence.items()]
    readings += [one for name in presets() for one in preset_node(name).evidence.items()]
    assert readings
    for key, one in readings:
        assert one.read_from, key
        assert all(one.without(name) is None or one.without(name) > 0 for name in one.read_from), key
        if isinstance(one.otherwise, dict):
            assert set(one.otherwise) == set(one.read_from), key


def test_ablations_are_checked_before_any_work():
    assert run.ablations(["predictor=roofline|linear", "nccl=ring"]) == [
        ("predictor", "roofline"),
        ("predictor", "linear"),
        ("nccl", "ring"),
    ]
    for wrong, remedy in (
        ("weather=bad", "write one of"),
        ("clocks=slow", "clocks=boost"),
        ("fabric=real", "fabric=ideal"),
        ("host=slow", "host=ideal"),
    ):
        with pytest.raises(InputError, match=remedy):
            run.ablations([wrong])
    with pytest.raises(InputError, match="not one of the predictors"):
        run.ablations(["predictor=oracle"])


OUTCOME = yaml.safe_load("""
{trainer: torch, year: 2024, without: "", interval: "", low_s: 0.9, high_s: 1.1, status: ok, launching: 0.0,
  num_gpus: 8, gpu: h100-sxm, framework: x, precision: bf16, architecture: hopper, framework_family: X, experts: null, ep: null,
  tp: 1, pp: 1, dp: 8, cp: 1, model: m, global_batch: 8, seq: 1, vpp: 1, micro_batch: 1, zero_stage: 0, recompute: none,
  fits: true, ran: true, measured_memory_gb: null, reason_kind: "", reason: ""}
""")


def outcome(publisher="A", measured=1.0, predicted=1.0, **more):
    own = {"id": f"{publisher}-{measured}-{predicted}", "publisher": publisher, "measured_s": measured}
    own |= {"predicted_s": predicted, "simulated_s": predicted, "error": predicted / measured - 1}
    return OUTCOME | own | {"breakdown_s": {"compute": predicted}, "peers_s": {}, "assumed": []} | more


def test_errors_are_counted_in_all_and_by_group():
    rows = [outcome("A", 1.0, 1.1), outcome("A", 1.0, 0.8), outcome("B", 2.0, 2.0), outcome(error=None)]
    found = statistics.errors(rows)
    assert found["runs"] == 3
    assert found["mean_error"] == pytest.approx(0.1)
    assert found["median_error"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(-0.1 / 3)
    assert found["inside"] == pytest.approx(2 / 3)
    assert list(statistics.grouped(rows, lambda one: one["publisher"])) == ["A", "B"]
    assert [one["predicted_s"] for one in statistics.worst(rows, 1)] == [0.8]


def spread(source, count, width, **more):
    return [outcome(source, math.exp(width * (2 * k / (count - 1) - 1)), 1.0, **more) for k in range(count)]


def scored(rows):
    return [(abs(math.log(one["measured_s"] / one["predicted_s"])), one["publisher"]) for one in rows]


def test_the_bound_of_an_interval_holds_what_it_promises_of_publishers_however_many_runs_they_have():
    rows = [one for i in range(4) for one in spread(f"S{i}", 11, 0.01 * (i + 1))]
    found = calibrate.bound(scored(rows))
    held = [sum(score <= found for score, own in scored(rows) if own == f"S{i}") / 11 for i in range(4)]
    assert sum(held) / 4 >= calibrate.SHARE > sum(held) / 4 - 2 / 44
    many = [one for i in range(9) for one in spread(f"S{i}", 11, 0.01)] + spread("far", 300, 5.0)
    assert calibrate.bound(scored(many)) == pytest.approx(0.01)  # one weight a publisher, however many runs
    few = many + [one for i in range(9) for one in spread(f"few{i}", 3, 5.0)]
    assert calibrate.bound(scored(few)) == pytest.approx(0.01)  # one weight for all of fewer than four runs


def test_a_table_of_intervals_judges_each_publisher_by_the_others():
    rows = [one for i in range(5) for one in spread(f"S{i}", 11, 0.01 * (i + 1))]
    table = calibrate.table(rows, rows)
    assert {name: one["runs"] for name, one in table["seen"].items()} == {f"S{i}": 11 for i in range(5)}
    assert table["without"]["S4"] == pytest.approx(0.024, abs=1e-4)
    assert table["without"]["S0"] == pytest.approx(0.03, abs=1e-4)
    assert table["groups"]["machine"] == {"hopper 16-bit": (55, 45)}  # of S3 all but four, of S4 five
    assert table["inside_when_left_out"] == pytest.approx(45 / 55, abs=1e-3)
    with pytest.raises(InputError, match="4 publishers whose runs can be compared; 5 are needed"):
        calibrate.table(rows[:44], rows[:44])


def test_levels_are_errors_of_publishers_whose_frameworks_and_networks_are_known():
    """A stranger's forecast knows what others run on, but not its own: their levels are those left out of constants alone."""
    strangers = [one for i in range(5) for one in spread(f"S{i}", 11, 0.05, simulated_s=0.8)]
    known = [one | {"simulated_s": 1.0} for one in strangers]
    levels = [each for one in calibrate.table(strangers, known)["levels"].values() for each in one["trainers"]]
    assert [level for _, _, level, _ in levels] == pytest.approx([0.0] * 5, abs=1e-4)


def test_no_group_is_left_out_because_its_runs_fail():
    rows = [one for i in range(5) for one in spread(f"S{i}", 11, 0.05)]
    far = [outcome("S0", 2.0, 1.0, architecture="volta") for _ in range(6)]
    table = calibrate.table(rows + far, rows + far)
    assert table["groups"]["machine"]["volta 16-bit"] == (6, 0)
    assert table["rows"] == 61
    assert table["without"]["S1"] > calibrate.table(rows, rows)["without"]["S1"]


KNOWN = Kind("hopper", "bf16", 64, 0.02, framework="NeMo")


@given(st.floats(0.001, 1000), st.floats(0, 1), st.integers(1, 10**6))
def test_an_interval_is_symmetric_in_the_log_and_widens_with_launching_and_scale(seconds, share, gpus):
    def half(gpus=gpus, launching=share):
        found = calibration.expected(seconds, dataclasses.replace(KNOWN, gpus=gpus, launching=launching))
        assert found.margin.low * found.margin.high == pytest.approx(found.seconds**2)
        assert found.seconds == pytest.approx(seconds * found.level.factor)
        return math.log(found.margin.high / found.seconds)

    own = half()
    assert 0.05 < own < math.inf
    assert half(launching=share + 0.1) > own
    assert half(gpus=2 * gpus) >= own - 1e-12


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": 10**6}, "on more than "),
        ({"architecture": "cdna9"}, "on cdna9 16-bit GPUs"),
        ({"framework": "mine"}, "of mine"),
    ],
)
def test_an_interval_is_wider_where_no_published_step_is_like_it_and_says_so(change, said):
    plain, unlike = (calibration.expected(2.0, dataclasses.replace(KNOWN, **one)).margin for one in ({}, change))
    assert "published runs" in plain.note
    assert "wider" not in plain.note
    assert unlike.high > plain.high
    assert f"wider, as none was {said}" in unlike.note


@pytest.mark.parametrize(
    ("change", "said"), [({"predictor": "linear"}, "predictor neusight"), ({"clocks": "boost"}, "sustained clocks")]
)
def test_there_is_no_interval_for_what_was_not_compared(change, said):
    low, high, note = calibration.expected(2.0, dataclasses.replace(KNOWN, **change)).margin
    assert (low, high) == (None, None)
    assert note.startswith("none: ")
    assert said in note


def test_the_shipped_intervals_hold_what_they_promise_of_publishers_left_out():
    table = calibration.shipped_table()
    assert 0.74 <= table["inside_when_left_out"] <= 0.86
    assert sum(one["runs"] for one in table["seen"].values()) == table["rows"]
    for groups in table["groups"].values():
        assert sum(runs for runs, _ in groups.values()) == table["rows"]


def test_a_publisher_that_was_calibrated_on_is_judged_by_the_others(tmp_path):
    name = next(iter(calibration.shipped_table()["seen"]))
    one = row(tmp_path, id=f"{name}-001")
    assert one.publisher == name
    found = evaluate(one, view=Knowledge(name))
    own = Kind("ampere", "fp16", 8, found["launching"], framework="Megatron-LM", trainer="megatron", year=2021)
    expected = calibration.expected(found["simulated_s"], own, without=publisher_group(name))
    assert found["predicted_s"] == pytest.approx(expected.seconds)
    assert (found["low_s"], found["high_s"]) == pytest.approx(expected.margin[:2])


def test_the_software_level_is_pooled_by_kind_of_trainer_and_by_years_without_the_kin_of_a_publisher():
    def level(trainer, year, without=""):
        return calibration.software_level(
            dataclasses.replace(KNOWN, trainer=trainer, year=year), {"levels": levels}, without
        )

    def publisher(name, trainer, year, mean):
        return {name: {"kin": publisher_group(name), "trainers": [[trainer, year, mean, 9]]}}

    levels = publisher("A", "torch", 2024, 0.1) | publisher("B", "torch", 2021, 0.14)
    levels |= publisher("MPONE", "recipes", 2025, 0.0) | publisher("MPTWO", "recipes", 2025, -0.1)
    everyone = (0.1 + 0.14 + 0.0 - 0.1) / 4
    assert level("xla", 2024).log == pytest.approx(everyone)
    torch = (0.1 + 0.14 + 2 * everyone) / 4
    assert level("torch", 2022).log == pytest.approx((0.14 + 2 * torch) / 3)
    assert level("torch", None).log == pytest.approx((0.1 + 2 * torch) / 3)
    assert level("torch", 2022).publishers == 2
    assert level("recipes", 2025, "MLPERF").log == pytest.approx(0.12)  # that of all others
    levels |= publisher("FAR", "xla", 2025, 3.0)
    assert level("xla", 2025).log < 0.15  # a publisher far off counts as one at 0.15


def test_late_mappings_of_nanotron_are_told_by_columns_and_times_alone():
    def mapped(measured, **more):
        return outcome(
            "ULTRA", measured, 1.0, framework="nanotron", global_batch=256, id=f"ULTRA-{measured}-{more}", **more
        )

    fine, late = mapped(1.0), mapped(1.6, zero_stage=1)
    twice = mapped(1.2)
    smaller = mapped(0.9, micro_batch=2)
    piped, polled = mapped(5.0, pp=2, dp=4, micro_batch=4), mapped(9.0, pp=2, dp=4, micro_batch=4, zero_stage=1)
    wide, tensors = mapped(1.0, num_gpus=512, dp=512), mapped(3.0, pp=2, tp=2, dp=2)
    other = outcome("MINE", 100.0, 1.0)
    kept = ranking.sound([fine, late, twice, smaller, piped, polled, wide, tensors, other])
    assert kept == [fine, smaller, piped, other]


def test_a_sweep_is_ranked_and_the_first_pick_judged():
    rows = [outcome("S", m, p, micro_batch=i) for i, (m, p) in enumerate([(1, 2), (2, 1), (3, 3), (4, 4), (5, 5)], 1)]
    [found] = ranking.sweeps(rows)
    assert found["regret"] == pytest.approx(1.0)
    assert found["spearman"] == pytest.approx(0.9)
    assert ranking.sweeps(rows[:3]) == []


def test_the_verdict_whether_a_run_fits_is_counted():
    rows = [outcome(fits=True), outcome(fits=False), outcome(ran=False, fits=False, error=None)]
    found = ranking.verdicts(rows)
    assert (found["ran"], found["ran_and_fits"]) == (2, 1)
    assert (found["crashed"], found["crashed_and_does_not_fit"]) == (1, 1)
    assert (found["first_picks"], found["first_picks_ran"]) == (0, 0)
    assert ranking.verdicts(rows[:2]) is None


def test_the_first_pick_of_a_sweep_is_the_fastest_that_likely_fits_whether_it_ran_or_not():
    slow = [outcome("S", 9, 9 + i, micro_batch=i) for i in range(4)]
    fastest = outcome("S", 1, 1, micro_batch=8, fits=False, ran=False)
    pick = outcome("S", 2, 2, micro_batch=16, ran=False)
    found = ranking.verdicts([*slow, fastest, pick])
    assert (found["first_picks"], found["first_picks_ran"]) == (1, 0)
    again = outcome("S", 2, 2, micro_batch=16)
    assert ranking.first_picks([*slow, fastest, pick, again]) == [again]


def test_what_others_forecast_is_compared_on_the_same_runs(tmp_path):
    names = (*ROW, "peer_oracle_s", "peer_guess_s")
    path = write(
        tmp_path / "runs.csv", {"peer_oracle_s": "0.1"}, {"id": "MINE-2", "cp": "4", "peer_oracle_s": "5"}, names=names
    )
    rows = [evaluate(one) for one in runs.read(path)]
    found = statistics.peers(rows)["oracle"]
    assert (found["runs"], found["mean_error"]) == (1, 0)
    assert found["ours"] == pytest.approx(abs(rows[0]["error"]))
    assert "oracle" in page.page(report(rows), rows, "runs.csv")
    assert statistics.peers(rows).keys() == {"oracle"}
    [wrong] = runs.read(write(tmp_path / "runs.csv", {"peer_guess_s": "much"}, names=names))
    assert "peer_guess_s: 'much' is not seconds of a step, 1e-6 to 1e6" in wrong.unreadable


def test_peaks_of_memory_are_compared_by_id(tmp_path):
    path = tmp_path / "peaks.csv"
    path.write_text("id,allocated_gib\nA-1,10\nother-2,5\n")
    rows = [outcome(id="A-1", allocated_gib=9.0)]
    found = peaks.compare(path, rows)
    assert found["mean_error"] == pytest.approx(0.1)
    assert (found["peaks"], found["compared"]) == (2, 1)
    with pytest.raises(InputError, match="none of its ids"):
        peaks.compare(path, [outcome(id="B-1")])
    path.write_text("id,allocated_gib\nA-1,much\n")
    with pytest.raises(InputError, match=r"peaks.csv:2:1: allocated_gib: 'much' is not GiB above 0"):
        peaks.read(path, ["A-1"])


def some(tmp_path):
    return write(tmp_path / "runs.csv", {}, {"id": "MINE-2", "tp": "1", "dp": "4"}, {"id": "MINE-3", "cp": "4"})


def asked(path, *changes):
    return question_of("validate", {"runs": path}, {str(path): path.read_bytes()}, {"ablations": list(changes)})


def test_a_validation_that_was_stopped_goes_on_where_it_was(tmp_path):
    path, target = some(tmp_path), tmp_path / "out"
    found, done = run.load([path]), []

    def stop(rows, _):
        for item in rows:
            yield item
            raise KeyboardInterrupt

    def count(rows, total):
        done.append(total)
        return rows

    with pytest.raises(InterruptedSweepError, match="1 of 3 are kept"), log.opened(target, asked(path)) as kept:
        run.simulate(found, [], 1, kept, stop)
    with (target / log.LOG).open("a", encoding="utf-8") as file:
        file.write('{"ablation": "", "run": {"id": "MI')  # torn by a crash
    with log.opened(target, asked(path)) as kept:
        outcomes = run.simulate(found, [], 1, kept, count)[None]
        kept.finish(outcomes, "page")
    assert done == [2]
    assert [one["id"] for one in outcomes] == ["MINE-1", "MINE-2", "MINE-3"]
    assert json.loads((target / "manifest.json").read_text())["complete"] is True
    with log.opened(target, asked(path)) as kept:
        assert run.simulate(found, [], 1, kept, count)[None] == outcomes
    assert done == [2, 0], "a finished one is known"
    with log.opened(target, asked(path), force=True) as kept:
        run.simulate(found, [], 1, kept, count)
    assert done == [2, 0, 3], "and made anew where that is asked for"
    assert json.loads((target / "manifest.json").read_text())["complete"] is False


@pytest.mark.slow
def test_workers_find_what_one_process_finds(tmp_path):
    path = some(tmp_path)
    found, results = run.load([path]), []
    for workers in (1, 2):
        with log.opened(tmp_path / f"out{workers}", asked(path, "clocks=boost")) as kept:
            results.append(run.simulate(found, [("clocks", "boost")], workers, kept))
    assert results[0] == results[1]


def test_the_page_is_one_file_without_requests_and_says_everything(tmp_path):
    rows = [evaluate(one) for one in runs.read(some(tmp_path))]
    rows[0]["model"] = "<script>"
    text = page.page(report(rows, {"clocks=boost": rows}), rows, "runs.csv")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert not any(word in text for word in ("http://", "https://", "src=", "@import", "url(h"))
    assert "prefers-color-scheme: dark" in text
    groups = (f"By {group}" for group in ("publisher", "GPU", "framework", "number of GPUs", "parallelism"))
    for words in (*groups, "The ten farthest off", "precision", "clocks=boost"):
        assert words in text
    assert text == page.page(report(rows, {"clocks=boost": rows}), rows, "runs.csv")
    nothing = page.page(report(rows[2:]), rows[2:], "runs.csv")
    assert "None of 1 runs could be compared." in nothing


def command(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "clustersim", "validate", *arguments],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip


def test_the_command_writes_a_folder_and_prints_json(tmp_path):
    others = [{"id": f"OTHER{name}-2", "tp": "1", "dp": "4"} for name in "abcd"]
    write(tmp_path / "runs.csv", {}, *others, {"id": "MINE-3", "precision": "mxfp6"})
    done = command(tmp_path, "runs.csv", "--workers", "1", "--json", "--calibrate", "table.json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["command"] == "validate"
    assert [one["id"] for one in found["runs"]] == ["MINE-1", *(one["id"] for one in others), "MINE-3"]
    assert found["refused"] == {"precision": 1}
    assert found["left_out"]["runs"] == 5
    names = {path.name for path in (tmp_path / "results/validate-runs").iterdir()}
    assert names == {"manifest.json", "runs.jsonl", "runs.parquet", "report.html"}
    assert json.loads((tmp_path / "table.json").read_text())["rows"] == 5
    text = command(tmp_path, "runs.csv", "--workers", "1", "--calibrate", "table.json").stdout
    rows = {line.split()[0]: " ".join(line.split()) for line in text.partition("Farthest off\n")[2].splitlines()[1:6]}
    for one in found["runs"][:5]:  # each run is measured against its own forecast and interval
        low, high = (duration(one[key]) for key in ("low_s", "high_s"))
        assert f"{duration(one['measured_s'])} {duration(one['predicted_s'])} {low} to {high}" in rows[one["id"]]
    assert "MINE-3" in text.partition("Not simulated\n")[2]


def test_bad_input_of_the_command_is_one_sentence(tmp_path):
    write(tmp_path / "runs.csv", {"tp": "x"})
    done = command(tmp_path, "runs.csv")
    assert done.returncode == 2
    assert done.stderr.startswith("clustersim: runs.csv:2:1: tp: 'x' is not a whole number of 1 or more")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()
