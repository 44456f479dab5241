"""A measured run as a simulation: what a row becomes, what is refused, and what is said of the errors."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st
from validate_cases import ROW, write

from clustersim.config.yaml import parse
from clustersim.errors import InputError, InterruptedSweepError
from clustersim.files import digest
from clustersim.frameworks import load as framework
from clustersim.frameworks import unseen
from clustersim.hardware.gpus import load
from clustersim.parallel.layout import portions
from clustersim.parallel.load import build
from clustersim.report import calibration
from clustersim.report.calibration import Kind
from clustersim.report.store import Question
from clustersim.simulation import simulate
from clustersim.validate import calibrate, log, page, peaks, ranking, run, runs, statistics
from clustersim.validate.adapt import adapt
from clustersim.validate.evaluate import evaluate
from clustersim.validate.refusal import Refusal
from clustersim.validate.report import report
from clustersim.validate.strangers import EVERYTHING, Knowledge, publisher_group


def row(tmp_path, **change):
    return runs.read(write(tmp_path / "runs.csv", change))[0]


def specs(setup):
    return parse(setup.topology).data, parse(setup.workload).data


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
        Kind("ampere", "fp16", 8, 0.0, trainer="megatron", year=2021), calibration.shipped()
    )
    assert outcome["predicted_s"] == pytest.approx(level.factor * same["step_time_s"])
    assert outcome["error"] == pytest.approx(outcome["predicted_s"] / 0.1 - 1)
    assert outcome["status"] == "ok"
    assert sum(outcome["breakdown_s"].values()) == pytest.approx(same["step_time_s"])


def test_what_a_row_leaves_open_is_taken_from_its_framework_and_said(tmp_path):
    old = adapt(row(tmp_path))
    _, job = specs(old)
    assert job["training"]["gradients"] == "fp16"
    assert job["parallelism"]["overlap"] == {"grad_reduce": False, "param_gather": False, "p2p": False, "tp": "none"}
    assert "training.gradients: fp16 (megatron-2020)" in old.assumed
    assert "parallelism.overlap.grad_reduce: false (megatron-2020)" in old.assumed
    assert not any(said.startswith("training.recompute") for said in old.assumed)
    new = row(tmp_path, framework="NeMo 25.02", year="2025", zero_stage="", precision="bf16", flash_attention="")
    _, job = specs(adapt(new))
    assert job["parallelism"]["zero"] == 1
    assert job["parallelism"]["overlap"]["grad_reduce"] is True
    assert job["training"]["attention"] == "flash"
    assert job["model"]["dropout"] is False


def test_a_row_that_says_it_is_taken_at_its_word(tmp_path):
    _, job = specs(adapt(row(tmp_path, overlap_grad_reduce="1", flash_attention="1", recompute="selective")))
    assert job["parallelism"]["overlap"]["grad_reduce"] is True
    assert job["training"]["attention"] == "flash"
    assert job["training"]["recompute"] == "selective"


def test_chunks_make_an_interleaved_schedule_that_overlaps_messages(tmp_path):
    _, job = specs(adapt(row(tmp_path, vpp="2", framework="NeMo", year="2024")))
    assert job["parallelism"]["schedule"] == "interleaved"
    assert job["parallelism"]["overlap"]["p2p"] is True


def test_the_family_of_a_model_is_in_its_name(tmp_path):
    _, job = specs(adapt(row(tmp_path, model="Llama3-8B", framework="NeMo", year="2024")))
    assert job["model"]["activation"] == "swiglu"
    assert job["model"]["norm"] == "rmsnorm"
    assert job["model"]["tied_embeddings"] is False


def test_a_size_in_the_name_decides_whether_embeddings_are_tied(tmp_path):
    shapes = {
        "layers": "28",
        "hidden": "3072",
        "ffn_hidden": "8192",
        "heads": "32",
        "kv_heads": "32",
        "vocab": "131072",
    }
    setup = adapt(row(tmp_path, model="Llama-like 3.57B", framework="nanotron", **shapes))
    assert specs(setup)[1]["model"]["tied_embeddings"] is True
    assert any("3.57B parameters in the model's name" in said for said in setup.assumed)


@pytest.mark.parametrize(
    ("rate", "nics"),
    [
        ("200", (8, "200Gb/s")),
        ("100", (4, "200Gb/s")),
        ("50", (2, "200Gb/s")),
        ("400", (8, "400Gb/s")),
        ("150", (8, "150Gb/s")),
    ],
)
def test_gpus_share_the_usual_nics_of_their_node_where_a_row_gives_each_less(tmp_path, rate, nics):
    cluster, _ = specs(adapt(row(tmp_path, num_gpus="16", dp="4", nic_gbps_per_gpu=rate)))
    assert tuple(cluster["cluster"]["node"]["nics"].values()) == nics


@pytest.mark.parametrize(
    ("gpu", "rate", "said", "nodes"),
    [
        ("h100-sxm", "400", "AWS EFA", ["hgx-h100", "aws-p5"]),
        ("v100-sxm2-32gb", "100", "Omni-Path 4x100 Gb/s per 4-GPU node", ["dgx1-v100", "jean-zay-v100"]),
        ("a100-sxm-80gb", "50", "Omni-Path 4x100 Gb/s per 8-GPU node", ["hgx-a100", "jean-zay-a100"]),
    ],
)
def test_a_cloud_that_the_source_names_has_its_own_node(tmp_path, gpu, rate, said, nodes):
    two = {"num_gpus": "16", "dp": "4", "gpu": gpu, "nic_gbps_per_gpu": rate}
    usual, _ = specs(adapt(row(tmp_path, **two)))
    cloud, _ = specs(adapt(row(tmp_path, **two, original_interconnect=said)))
    assert [one["cluster"]["node"]["extends"] for one in (usual, cloud)] == nodes


def test_a_gpu_may_be_called_by_an_alias(tmp_path):
    cluster, _ = specs(adapt(row(tmp_path, gpu="A100")))
    assert cluster["cluster"]["node"]["gpus"]["model"] == load("a100").name


def test_tensor_parallelism_alone_makes_sequence_parallelism(tmp_path):
    _, job = specs(adapt(row(tmp_path, tp="1", dp="4", sequence_parallel="1")))
    assert job["parallelism"]["sequence_parallel"] is False


MIXTURE = {"experts": "16", "topk": "2", "shared_experts": "1", "ffn_hidden": "256", "layers": "4"}


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
    [one] = runs.read(write(tmp_path / "runs.csv", cells, names=tuple({**ROW, **MIXTURE})))
    _, job = specs(adapt(one))
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
        ({"dp": "4"}, "layout"),
        ({"hidden": ""}, "incomplete source"),
        ({"tp": "", "pp": "", "dp": "", "num_gpus": ""}, "incomplete source"),
        ({"recompute": "some layers"}, "recompute"),
        ({"heads": "15"}, "mapping"),
        ({"global_batch": "15"}, "mapping"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_its_reason(tmp_path, change, kind):
    outcome = evaluate(row(tmp_path, **change))
    assert outcome["status"] == "refused"
    assert outcome["reason_kind"] == kind
    assert outcome["reason"]
    assert outcome["predicted_s"] is None


NAMES = (*ROW, "set", "cluster_set", "launch", "original_overlap", "original_recompute", "comment")


def cells(tmp_path, **change):
    """Write a row that may have columns beside those of ROW."""
    return runs.read(write(tmp_path / "runs.csv", change, names=NAMES))[0]


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
    assert any(said.startswith("model: ") for said in setup.assumed)
    assert evaluate(row(tmp_path, **change))["status"] == "ok"


def test_a_size_in_a_name_decides_whether_an_unknown_model_is_gated(tmp_path):
    shapes = {
        "layers": "32",
        "hidden": "4096",
        "heads": "32",
        "kv_heads": "32",
        "ffn_hidden": "16384",
        "vocab": "50257",
    }
    for name, activation in (("my-6.9B", "gelu"), ("my-9.0B", "swiglu")):
        assert specs(adapt(row(tmp_path, **shapes, model=name)))[1]["model"]["activation"] == activation


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
    cluster, job = specs(
        adapt(
            cells(
                tmp_path,
                set="training.cuda_graphs=full; parallelism.overlap.p2p=true",
                cluster_set="nccl.version='2.21'",
            )
        )
    )
    assert (job["training"]["cuda_graphs"], job["parallelism"]["overlap"]["p2p"]) == ("full", True)
    assert cluster["nccl"] == {"version": "2.21"}
    for change, kind in (
        ({"set": "cluster.nodes=2"}, "set"),
        ({"cluster_set": "parallelism.tp=2"}, "cluster_set"),
        ({"set": "model.hiden=2"}, "mapping"),
    ):
        assert evaluate(cells(tmp_path, **change))["reason_kind"] == kind
    assert "is not key=value" in cells(tmp_path, set="cuda graphs").unreadable


def test_a_launch_file_says_what_columns_leave_blank(tmp_path):
    shapes = dict.fromkeys(("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab"), "")
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 4,
                "hidden_size": 512,
                "intermediate_size": 1408,
                "num_attention_heads": 8,
                "vocab_size": 32000,
            }
        )
    )
    _, job = specs(adapt(cells(tmp_path, **shapes, launch="config.json")))
    assert (job["model"]["activation"], job["model"]["ffn"], job["training"]["seq"]) == ("swiglu", 1408, 1024)
    _, job = specs(adapt(cells(tmp_path, **{**shapes, "layers": "8"}, launch="config.json")))
    assert job["model"]["layers"] == 8
    shape = "--num-layers 6 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --max-position-embeddings 512"
    script = f"torchrun pretrain_gpt.py {shape} --vocab-size 50257 --micro-batch-size 2 --global-batch-size 16 --swiglu"
    (tmp_path / "run.sh").write_text(script)
    _, job = specs(adapt(cells(tmp_path, **shapes, seq="", launch="run.sh")))
    assert (job["model"]["layers"], job["model"]["activation"], job["training"]["seq"]) == (6, "swiglu", 512)
    assert evaluate(cells(tmp_path, launch="none.sh"))["reason_kind"] == "launch"


@pytest.mark.parametrize("open_", [(), ("dp",), ("pp",), ("dp", "pp")])
def test_a_blank_micro_batch_has_the_usual_tokens_whichever_degrees_are_written(tmp_path, open_):
    row = {"tp": "2", "pp": "1", "dp": "4", "seq": "1024", "global_batch": "64", "micro_batch": ""}
    _, job = specs(adapt(cells(tmp_path, **row | dict.fromkeys(open_, ""))))
    assert (job["parallelism"]["dp"], job["training"]["micro_batch"]) == (4, 8)


@pytest.mark.parametrize(
    ("model", "year", "flash", "kernel"),
    [
        *(("MPT-7B", "2023", "1", "triton"), ("MPT-7B", "2024", "1", "flash2")),
        *(("MPT-7B", "2023", "0", "unfused"), ("Llama2-7B", "2023", "1", "flash2")),
    ],
)
def test_fused_attention_with_position_biases_was_tritons_until_flash_attention_had_them(
    tmp_path, model, year, flash, kernel
):
    run = cells(tmp_path, framework="PyTorch FSDP", model=model, year=year, flash_attention=flash)
    assert specs(adapt(run))[1]["training"]["attention"] == kernel


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
    def job(**change):
        draft = {column: "", "framework": name, "num_gpus": "8", "tp": "2", "pp": "1", "dp": "4", "year": "2025"}
        return specs(adapt(cells(tmp_path, **{**draft, **change})))[1]

    section, *parents, last = key.split(".")

    def held(job):
        return (job[section].get(parents[0], {}) if parents else job[section])[last]

    assert held(job()) != value  # the framework's default
    stated = {column: "none"} if by_column else {"set": f"{key}={json.dumps(value).strip(chr(34))}"}
    assert held(job(**stated)) == value


def test_what_a_source_says_in_words_is_read(tmp_path):
    def said(text, **change):
        _, job = specs(adapt(cells(tmp_path, original_overlap=text, **change)))
        return job

    assert said("full CUDA graphs")["training"]["cuda_graphs"] == "full"
    assert said("per-layer CUDA graphs")["training"]["cuda_graphs"] == "layer"
    assert said("no CUDA graphs")["training"]["cuda_graphs"] == "none"
    assert "cuda_graphs" not in said("CUDA graphs on Blackwell")["training"]
    assert said("CUDA graphs on Blackwell", gpu="b200-sxm")["training"]["cuda_graphs"] == "layer"
    for denied in ("CUDA graphs disabled", "cuda graphs: off", "w/o CUDA graphs", "CUDA graphs were not used"):
        assert said(denied)["training"]["cuda_graphs"] == "none", denied
    assert "cuda_graphs" not in said("CUDA graphs not stated")["training"]
    assert said("no CUDA graphs in attention; per-layer CUDA graphs")["training"]["cuda_graphs"] == "layer"
    assert said("compile", framework="torchtitan")["training"]["kernels"] == "fused"
    assert said("without torch.compile")["training"]["kernels"] == "eager"
    assert said("FA3 did not compile here, and failed to compile there")["training"] == said("")["training"]
    for denied in ("no full CUDA graphs", "without full-iteration CUDA graphs"):
        assert said(denied)["training"]["cuda_graphs"] == "none", denied
    assert said("eager")["training"]["kernels"] == "eager"
    assert said("users are eager to know")["training"]["kernels"] == "fused"
    assert said("zero-bubble was tried and rejected", pp="2")["parallelism"]["schedule"] == "1f1b"
    assert said("AsyncTP", sequence_parallel="1")["parallelism"]["overlap"]["tp"] == "async"
    assert evaluate(cells(tmp_path, original_overlap="ZB-V schedule"))["reason_kind"] == "mapping"  # on one stage
    for name, schedule in (("zbv", "zbv"), ("V-Half", "v_half"), ("v-min", "v_min")):
        found = said(f"schedule {name}", pp="2", vpp="2")["parallelism"]
        assert (found["schedule"], found["vpp"]) == (schedule, 2), name
    assert said("ZB-H2", pp="2")["parallelism"]["schedule"] == "zb_h2"
    assert "algorithms" not in said("DeepEP")["parallelism"]  # there are no experts
    experts = {"experts": "8", "topk": "2", "ep": "2", "tp": "1", "dp": "4"}
    wide = (*NAMES, "experts", "topk")
    [one] = runs.read(write(tmp_path / "runs.csv", {"original_overlap": "DeepEP", **experts}, names=wide))
    assert specs(adapt(one))[1]["parallelism"]["algorithms"] == {"ep": "deepep"}
    for words, modules in (("modules for MoE", False), ("modules (moe)", True)):  # a kind of model is no module of it
        change = {"recompute": "selective", "original_recompute": f"selective {words}", **experts}
        [one] = runs.read(write(tmp_path / "runs.csv", change, names=wide))
        assert ("recompute_modules" in specs(adapt(one))[1]["training"]) is modules


def test_an_unknown_framework_is_a_generic_trainer_that_overlaps_nothing(tmp_path):
    for change, title in (
        ({}, "Generic trainer"),
        ({"tp": "1", "pp": "1", "dp": "8"}, "Generic trainer"),
        ({"tp": "1", "pp": "1", "dp": "8", "zero_stage": "3"}, "PyTorch FSDP"),
    ):
        setup = adapt(row(tmp_path, framework="by hand", **change))
        assert any(said.startswith(f"framework: as {title}") for said in setup.assumed)
    _, job = specs(adapt(row(tmp_path, framework="by hand", sequence_parallel="")))
    assert job["training"]["kernels"] == "eager"
    overlap = {"grad_reduce": False, "param_gather": False, "p2p": False, "tp": "none"}
    assert job["parallelism"]["overlap"].items() >= overlap.items()
    outcome = evaluate(row(tmp_path, framework="by hand"))
    assert outcome["status"] == "ok"
    assert "of by hand" in outcome["interval"]


def test_a_run_of_several_nodes_has_the_nccl_of_its_year(tmp_path):
    for year, version in (("2019", "2.18"), ("2022", "2.18"), ("2024", "2.22"), ("2031", "2.29")):
        cluster, _ = specs(adapt(row(tmp_path, num_gpus="16", dp="4", year=year)))
        assert cluster["nccl"]["version"] == version
    assert "nccl" not in specs(adapt(row(tmp_path)))[0]


@pytest.mark.parametrize("gpu", ["l40s", "a100-pcie-80gb", "mi250x"])
def test_a_gpu_without_a_shipped_node_has_a_plain_one(tmp_path, gpu):
    setup = adapt(row(tmp_path, gpu=gpu, num_gpus="16", dp="4", nic_gbps_per_gpu="400", precision="bf16"))
    assert any(said.startswith("node: 8 ") for said in setup.assumed)
    assert "host.pcie: gen5x16 (a NIC of 400 Gb/s)" in setup.assumed
    assert evaluate(row(tmp_path, gpu=gpu))["status"] == "ok"


def test_a_bad_cluster_refuses_its_row_and_no_other(tmp_path):
    far = {"id": "MINE-2", "tp": "", "pp": "", "dp": "", "num_gpus": "1000000000"}
    path = write(tmp_path / "runs.csv", {}, far)
    with log.opened(tmp_path / "out", asked(path)) as kept:
        found = run.simulate(run.load([path]), [], 1, kept)
    assert [one["status"] for one in found[None]] == ["ok", "refused"]


def test_a_job_on_one_whole_rack_stays_in_it(tmp_path):
    rack = {"gpu": "gb200", "gpus_per_node": "4", "nvlink_domain": "72", "nic_gbps_per_gpu": "400", "precision": "bf16"}
    one, two = (specs(adapt(row(tmp_path, **rack, num_gpus=str(n), dp=str(n // 4))))[0] for n in (72, 144))
    assert (one["cluster"]["nodes"], one["cluster"]["node"]["gpus"]["count"]) == (1, 72)
    assert (two["cluster"]["nodes"], two["cluster"]["node"]["gpus"]["count"]) == (3, 64)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": "DeepSeek-LLM-7B"}, {"activation": "swiglu", "kv_heads": 16}),
        (
            {
                "model": "DeepSeek-LLM-7B",
                "framework": "HAI-LLM (DeepSeek)",
                "recompute": "selective",
                "precision": "bf16",
            },
            {},
        ),
        ({"model": "mine", "experts": "8", "ep": "2", "sequence_parallel": ""}, {"topk": 2}),
        ({"precision": "bfloat16"}, {}),
    ],
)
def test_what_a_row_leaves_open_has_its_one_sensible_reading(tmp_path, change, expected):
    wide = (*NAMES, "experts")
    [one] = runs.read(write(tmp_path / "runs.csv", change, names=wide))
    model = specs(adapt(one))[1]["model"]
    assert {key: model[key] for key in expected} == expected
    assert evaluate(one)["status"] == "ok", evaluate(one)["reason"]


def test_degrees_that_a_source_leaves_open_follow_from_its_gpus(tmp_path):
    def split(**change):
        job = specs(adapt(row(tmp_path, **change)))[1]["parallelism"]
        return tuple(job[name] for name in ("tp", "pp", "dp"))

    assert split(dp="") == (2, 2, 2)
    assert split(pp="") == (2, 2, 2)
    assert split(tp="", pp="", dp="2") == (4, 1, 2)
    assert split(num_gpus="") == (2, 2, 2)
    assert split(cp="2", dp="2") == (2, 2, 1)  # a dp that counts cp's ranks
    big = {"layers": "48", "hidden": "8192", "ffn_hidden": "32768", "heads": "64", "kv_heads": "64"}
    assert split(tp="", pp="", dp="") == (1, 1, 8)
    assert split(tp="", pp="", dp="", num_gpus="64", **big) != (1, 1, 64)  # 40 billion parameters fit no single GPU


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


def test_a_cut_sequence_goes_around_a_ring_where_the_framework_says_so(tmp_path):
    ring = specs(adapt(row(tmp_path, cp="2", dp="1", tp="2", year="2025")))[1]["parallelism"]
    assert (ring["cp"], ring["cp_type"]) == (2, "p2p")
    titan = {"framework": "torchtitan", "year": "2025", "precision": "bf16"}
    assert specs(adapt(row(tmp_path, cp="2", dp="1", **titan)))[1]["parallelism"]["cp_type"] == "all_gather"


@pytest.mark.parametrize(
    ("change", "micro_batch"),
    [
        *(({}, 8), ({"seq": "4096"}, 2), ({"seq": "16384"}, 1), ({"global_batch": "48"}, 6), ({"micro_batch": "3"}, 3)),
        *(({"pp": "2", "dp": "4"}, 1), ({"framework": "DeepSpeed"}, 1)),
    ],
)
def test_a_microbatch_that_is_not_stated_has_the_usual_tokens_without_a_pipeline(tmp_path, change, micro_batch):
    job = {"num_gpus": "8", "tp": "1", "pp": "1", "dp": "8", "global_batch": "192", "micro_batch": "", "seq": "1024"}
    run = row(tmp_path, **{"framework": "Megatron-LM", **job, **change})
    assert specs(adapt(run))[1]["training"].get("micro_batch", 1) == micro_batch


@pytest.mark.parametrize(("year", "micro_batch"), [("2024", 4), ("2025", 1)])
def test_torchtitan_cut_a_batch_by_stages_before_it_cut_it_by_sequences(tmp_path, year, micro_batch):
    change = {"framework": "torchtitan", "precision": "bf16", "micro_batch": "", "year": year}
    cut = row(tmp_path, **change, global_batch="8", tp="4", pp="2", dp="1")
    assert specs(adapt(cut))[1]["training"].get("micro_batch", 1) == micro_batch


def test_fp8_is_scaled_as_the_source_says(tmp_path):
    titan = {"framework": "torchtitan", "gpu": "h100-sxm", "precision": "fp8", "year": "2025"}
    for words, scaling in (
        ("fp8 rowwise", "row"),
        ("fp8 tensorwise", "current"),
        ("fp8", "current"),
        ("delayed", "delayed"),
    ):
        found = specs(adapt(cells(tmp_path, **titan, original_precision=words)))[1]["training"]
        assert found["fp8_scaling"] == scaling, words


def test_sharded_parameters_come_with_the_defaults_of_the_framework(tmp_path):
    fsdp2 = specs(adapt(row(tmp_path, zero_stage="", framework="torchtitan", year="2025")))[1]["parallelism"]
    assert fsdp2["zero"] == 3
    assert fsdp2["fsdp"]["forward_prefetch"] == 2
    composer = {"framework": "Composer/llm-foundry (PyTorch FSDP)", "zero_stage": "3", "precision": "bf16"}
    for words, wire in (
        ("amp_bf16 (FSDP mixed_precision DEFAULT)", "fp32"),
        ("bf16 (FSDP mixed_precision PURE)", "bf16"),
    ):
        found = specs(adapt(row(tmp_path, **composer, original_precision=words)))[1]
        assert found["training"]["gradients"] == wire
        assert not found["parallelism"]["fsdp"]["copy_out"]
    nemo = adapt(row(tmp_path, zero_stage="3", framework="NeMo 25.02", year="2025", precision="bf16"))
    assert any(said.startswith("parallelism.fsdp: FSDP2's") for said in nemo.assumed)


def test_zero_2_reduces_every_microbatch_where_there_is_no_pipeline(tmp_path):
    several = {"zero_stage": "2", "pp": "1", "dp": "4"}
    assert specs(adapt(row(tmp_path, **several)))[1]["parallelism"]["reduce_every_microbatch"] is True
    exposed = [evaluate(row(tmp_path, **{**several, "zero_stage": z}))["breakdown_s"]["dp"] for z in ("1", "2")]
    assert exposed[1] > 1.3 * exposed[0]  # two reductions and one gathering for one of each


def test_zero_2_is_simulated_where_gradients_are_reduced_once_under_the_backward_pass(tmp_path):
    once = {"zero_stage": "2", "overlap_grad_reduce": "1", "global_batch": "4"}
    found = evaluate(row(tmp_path, **once))
    assert specs(adapt(row(tmp_path, **once)))[1]["parallelism"]["zero"] == 2
    assert found["status"] == "ok"
    assert found["predicted_s"] == evaluate(row(tmp_path, **{**once, "zero_stage": "1"}))["predicted_s"]
    assert any(said.startswith("zero_stage 2: ") for said in found["assumed"])


def test_what_a_publication_leaves_open_is_taken_from_the_script_of_that_job(tmp_path):
    job = {
        "framework": "Megatron-LM (2021)",
        "num_gpus": "512",
        "layers": "48",
        "hidden": "8192",
        "ffn_hidden": "32768",
    }
    job |= {
        "heads": "64",
        "kv_heads": "64",
        "global_batch": "1536",
        "tp": "8",
        "pp": "2",
        "dp": "32",
        "micro_batch": "",
        "vpp": "",
    }
    setup = adapt(row(tmp_path, **job))
    assert specs(setup)[1]["training"]["micro_batch"] == 4
    assert "training.micro_batch: 4 (megatron-2020, examples/sc21/run_table_1.sh 39B)" in setup.assumed
    assert specs(adapt(row(tmp_path, **{**job, "micro_batch": "2"})))[1]["training"]["micro_batch"] == 2
    assert specs(adapt(row(tmp_path, **{**job, "global_batch": "3072"})))[1]["training"]["micro_batch"] == 1


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
    errors = [
        abs(one["error"]) for one in found[run.UNSEEN]
    ]  # each publisher has fewer than four runs: they count as one
    assert figures["left_out"]["publisher_mean_error"] == pytest.approx(sum(errors) / 3)
    judged = statistics.judged(found[None], found[run.UNSEEN])
    text = page.page(figures, judged, "runs.csv")
    assert page.sentence(figures) in text.replace("&gt;", ">")
    assert "each as a stranger" in text


@pytest.mark.parametrize(
    ("change", "key", "as_is", "left_out"),
    [
        (
            {"id": "BSPREQ-1", "original_interconnect": "Omni-Path", "nic_gbps_per_gpu": "50"},
            "nics.efficiency",
            None,
            0.212,
        ),
        (
            {
                "id": "BSV100-1",
                "gpu": "v100-sxm2-32gb",
                "original_interconnect": "Omni-Path",
                "nic_gbps_per_gpu": "100",
            },
            "nics.efficiency",
            None,
            0.19,
        ),
        ({"id": "VTRAINM-1", "nic_gbps_per_gpu": "100"}, "nics.count", 4, 8),
        ({"id": "SIMUMAX-1", "gpu": "b200-sxm", "nic_gbps_per_gpu": "400"}, "gpus.sustained.bf16", None, 0.645),
        ({"id": "DGXC-1", "gpu": "b200-sxm", "nic_gbps_per_gpu": "400"}, "gpus.sustained.bf16", None, 0.585),
    ],
)
def test_a_cluster_without_a_publisher_has_what_the_others_say(tmp_path, change, key, as_is, left_out):
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
    for wrong, said in (
        ("weather=bad", "write one of"),
        ("clocks=slow", "clocks=boost"),
        ("fabric=real", "fabric=ideal"),
        ("host=slow", "host=ideal"),
    ):
        with pytest.raises(InputError, match=said):
            run.ablations([wrong])
    with pytest.raises(InputError, match="not one of the predictors"):
        run.ablations(["predictor=oracle"])


def outcome(publisher="A", measured=1.0, predicted=1.0, **more):
    base = {
        "id": f"{publisher}-{measured}-{predicted}",
        "publisher": publisher,
        "measured_s": measured,
        "predicted_s": predicted,
        "simulated_s": predicted,
    }
    base |= {"trainer": "torch", "year": 2024, "without": "", "interval": ""}
    base |= {"error": predicted / measured - 1, "low_s": 0.9, "high_s": 1.1, "status": "ok", "launching": 0.0}
    base |= {
        "num_gpus": 8,
        "gpu": "h100-sxm",
        "framework": "x",
        "precision": "bf16",
        "architecture": "hopper",
        "framework_family": "X",
        "experts": None,
        "ep": None,
    }
    base |= {"tp": 1, "pp": 1, "dp": 8, "cp": 1, "model": "m", "global_batch": 8, "seq": 1, "vpp": 1, "micro_batch": 1}
    base |= {"zero_stage": 0, "recompute": "none", "fits": True, "ran": True, "measured_memory_gb": None}
    base["peers_s"] = {}
    return base | {"breakdown_s": {"compute": predicted}, "assumed": [], "reason_kind": "", "reason": ""} | more


def test_errors_are_counted_in_all_and_by_group():
    rows = [outcome("A", 1.0, 1.1), outcome("A", 1.0, 0.8), outcome("B", 2.0, 2.0), outcome(error=None)]
    found = statistics.errors(rows)
    assert found["runs"] == 3
    assert found["mean_error"] == pytest.approx(0.1)
    assert found["median_error"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(-0.1 / 3)
    assert found["inside"] == pytest.approx(2 / 3)
    assert list(statistics.groups(rows)["publisher"]) == ["A", "B"]
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


def test_a_table_of_intervals_judges_each_publisher_by_the_others():
    rows = [one for i in range(5) for one in spread(f"S{i}", 11, 0.01 * (i + 1))]
    table = calibrate.table(rows)
    assert {name: one["runs"] for name, one in table["seen"].items()} == {f"S{i}": 11 for i in range(5)}
    assert table["without"]["S4"] == pytest.approx(0.024, abs=1e-4)
    assert table["without"]["S0"] == pytest.approx(0.03, abs=1e-4)
    assert table["groups"]["machine"] == {"hopper 16-bit": (55, 45)}  # of S3 all but four, of S4 five
    assert table["inside_when_left_out"] == pytest.approx(45 / 55, abs=1e-3)
    with pytest.raises(InputError, match="4 publishers whose runs can be compared; 5 are needed"):
        calibrate.table(rows[:44])


def test_no_group_is_left_out_because_its_runs_fail():
    rows = [one for i in range(5) for one in spread(f"S{i}", 11, 0.05)]
    far = [outcome("S0", 2.0, 1.0, architecture="volta") for _ in range(6)]
    table = calibrate.table(rows + far)
    assert table["groups"]["machine"]["volta 16-bit"] == (6, 0)
    assert table["rows"] == 61
    assert table["without"]["S1"] > calibrate.table(rows)["without"]["S1"]


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
    table = calibration.shipped()
    assert 0.74 <= table["inside_when_left_out"] <= 0.86
    assert sum(one["runs"] for one in table["seen"].values()) == table["rows"]
    for groups in table["groups"].values():
        assert sum(runs for runs, _ in groups.values()) == table["rows"]


def test_a_publisher_that_was_calibrated_on_is_judged_by_the_others(tmp_path):
    name = next(iter(calibration.shipped()["seen"]))
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

    levels = publisher("A", "torch", 2024, 0.1) | publisher("B", "torch", 2021, 0.2)
    levels |= publisher("MPONE", "recipes", 2025, 0.0) | publisher("MPTWO", "recipes", 2025, -0.1)
    everyone = (0.1 + 0.2 + 0.0 - 0.1) / 4
    assert level("xla", 2024).log == pytest.approx(everyone)
    torch = (0.1 + 0.2 + 2 * everyone) / 4
    assert level("torch", 2022).log == pytest.approx((0.2 + 4 * torch) / 5)
    assert level("torch", None).log == pytest.approx((0.1 + 4 * torch) / 5)
    assert level("torch", 2022).publishers == 2
    assert level("recipes", 2025, "MLPERF").log == pytest.approx(0.15)  # that of all others
    levels |= publisher("FAR", "xla", 2025, 3.0)
    assert level("xla", 2025).log < 0.2  # a publisher far off counts as one at 0.2


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


@pytest.mark.parametrize(
    ("first", "second", "rank"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 1, 2], [1, 1, 2], 1.0),
        ([1, 1], [1, 2], None),
    ],
)
def test_spearman(first, second, rank):
    assert ranking.spearman(first, second) == (None if rank is None else pytest.approx(rank))


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
    return Question("validate", {"runs": (str(path), digest(path.read_bytes()))}, {"ablations": list(changes)})


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
    for words in (
        "By publisher",
        "By GPU",
        "By framework",
        "By number of GPUs",
        "By parallelism",
        "The ten farthest off",
    ):
        assert words in text
    assert "precision" in text
    assert "clocks=boost" in text
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


def test_bad_input_of_the_command_is_one_sentence(tmp_path):
    write(tmp_path / "runs.csv", {"tp": "x"})
    done = command(tmp_path, "runs.csv")
    assert done.returncode == 2
    assert done.stderr.startswith("clustersim: runs.csv:2:1: tp: 'x' is not a whole number of 1 or more")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_row_that_a_refusal_names_is_in_the_table_of_columns():
    assert set(runs.REQUIRED) <= set(runs.COLUMNS)
    assert issubclass(Refusal, Exception)
