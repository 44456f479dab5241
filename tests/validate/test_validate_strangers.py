"""Rows as a publisher whom nobody knows writes them: every one runs with assumptions that are said, or says why not."""

import json
import re

import pytest
from validate_cases import ROW, said, write

from clustersim.config.yaml import parse
from clustersim.hardware.gpus import spelled
from clustersim.model.parameters import parameters
from clustersim.parallel.load import build
from clustersim.validate import runs
from clustersim.validate.adapt import adapt
from clustersim.validate.evaluate import evaluate
from clustersim.validate.known_models import TABLE, known_model, size

BARE = said(
    "layers=; hidden=; ffn_hidden=; heads=; kv_heads=; vocab=; gpus_per_node=; nvlink_domain=; nic_gbps_per_gpu=; tp=; pp=; "
    "vpp=; dp=; sequence_parallel=; zero_stage=; recompute=; flash_attention=; seq=4096; global_batch=128; precision=bf16; "
    "year=2025; num_gpus=8"
)


def stranger(tmp_path, **change):
    names = (*ROW, *(name for name in change if name not in ROW))
    return runs.read(write(tmp_path / "runs.csv", {**BARE, **change}, names=names))[0]


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("NVIDIA H100 SXM5 80 GB", "h100-sxm"), ("A100 80GB", "a100-sxm-80gb"), ("A100-40G", "a100-sxm-40gb"),
        ("A100 PCIe 80GB", "a100-pcie-80gb"), ("A800-SXM4-80GB", "a100-sxm-80gb"), ("V100", "v100-sxm2-32gb"),
        ("V100-16GB", "v100-sxm2-16gb"), ("GB200 NVL72", "gb200"), ("GH200 Superchip", "gh200"),
        ("AMD Instinct MI300X OAM", "mi300x"), ("RTX A6000", "rtx-a6000"), ("DGX H100", "h100-sxm"),
        ("TPU v5p", None),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_what_people_call_it(text, gpu):
    found = spelled(text)
    assert (found and found.name) == gpu


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": "H20", "framework": "Megatron-LM", "model": "Qwen2.5-32B", "tp": "4", "pp": "2"},
        {"gpu": "GB300", "framework": "Megatron-Bridge", "model": "Qwen3 30B A3B", "precision": "NVFP4"},
        {"gpu": "V100", "framework": "DeepSpeed", "model": "GPT-J-6B", "precision": "mixed", "zero_stage": "ZeRO-2"},
        {"gpu": "H100", "framework": "torchtitan", "model": "Llama 3.1 8B", "recompute": "selective op"},
        {"gpu": "MI325X", "framework": "Primus", "model": "Llama-2-70B", "precision": "fp8 (delayed scaling)"},
        {"gpu": "A100", "framework": "axolotl", "model": "Acme-7B", "zero_stage": "FSDP"},
        {"gpu": "H100", "framework": "nanotron", "model": "SmolLM3-3B", "seq": "4K", "sec_per_iter": "2500 ms"},
        {"gpu": "H100", "framework": "Megatron-LM", "model": "Falcon-40B", "recompute": "activation checkpointing"},
        {"gpu": "H100", "framework": "NeMo", "model": "Gemma 2 27B", "cp": "2", "recompute": "attention"},
        {"gpu": "NVIDIA RTX 6000 Ada Generation", "framework": "axolotl", "model": "Llama-3-8B", "zero_stage": "3"},
        {"gpu": "RTX 3090", "framework": "ColossalAI", "model": "Llama-2-7B", "zero_stage": "2"},
    ],
)
def test_a_row_that_leaves_its_models_shapes_out_is_forecast(tmp_path, change):
    found = evaluate(stranger(tmp_path, **change))
    assert found["status"] == "ok", found["reason"]
    assert any(said.startswith("model: layers ") for said in found["assumed"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpu": "TPU v5p"}, "TPU v5p: Tpu accelerators are not modelled, NVIDIA's and AMD's are"),
        ({"gpu": "H100", "model": "Mamba2-2.7B"}, "Mamba2-2.7B has state-space or linear-attention layers"),
        (
            {"gpu": "H100", "model": "Stable Diffusion"},
            "is not a decoder whose shapes are known; fill in layers, hidden",
        ),
        ({"gpu": "H100", "model": "Acme MoE"}, "the source does not say layers and hidden"),
        ({"gpu": "H100", "model": "Llama-3-8B", "seq": "", "global_batch": ""}, "does not say seq and global_batch"),
        (
            {"gpu": "H100", "model": "Llama-3-8B", "layers": "10000"},
            "layers: '10000' is not a whole number of 1 to 1,0",
        ),
    ],
)
def test_what_nobody_can_simulate_is_refused_in_one_sentence(tmp_path, change, said):
    found = evaluate(stranger(tmp_path, **change))
    assert found["status"] == "refused"
    assert said in found["reason"]
    assert "\n" not in found["reason"]


def test_links_of_nodes_that_are_no_hgx_are_known(tmp_path):
    def link(**change):
        setup = adapt(stranger(tmp_path, framework="Megatron-LM", model="Llama-3-8B", tp="2", pp="1", **change))
        return json.loads(setup.topology)["cluster"]["node"]

    assert link(gpu="GH200", num_gpus="16")["extends"] == "gh200-quad"
    assert link(gpu="GH200", num_gpus="32", nvlink_domain="32")["scale_up"]["kind"] == "nvswitch"
    assert link(gpu="A800")["extends"] == "hgx-a800"
    assert link(gpu="MI300X", num_gpus="2", gpus_per_node="1", nvlink_domain="1")["scale_up"]["kind"] == "none"
    assert link(gpu="MI250X")["scale_up"]["kind"] == "mesh"


def test_known_models_have_as_many_parameters_as_their_names_say(tmp_path):
    """Names round, and those of small models leave their embeddings out."""
    names = [line.split(",")[0].split("|")[0] for line in TABLE.read_text().splitlines()[1:]]
    found, mixtures = {}, {}
    for name in names:
        run = stranger(tmp_path, gpu="H100", framework="Megatron-LM", model=name, tp="1", pp="1", dp="8")
        job = build(parse(adapt(run).workload, "workload"))
        wanted = size(name)
        mixtures |= {name: parameters(job.model)} if job.model.experts else {}
        if wanted and not job.model.experts:
            found[name] = parameters(job.model) / wanted
    assert {
        name: round(ratio, 2)
        for name, ratio in found.items()
        if not 0.88 < ratio < (1.37 if size(name) < 1e10 else 1.15)
    } == {}
    billions = {"deepseek v3": 671, "kimi k2": 1_026, "qwen3 30b": 30.5, "gpt oss 120b": 116.8, "glm 4.5": 353}
    assert {name: mixtures[name] / 1e9 for name in billions} == pytest.approx(billions, rel=0.03)


def test_a_name_of_other_shapes_is_another_model(tmp_path):
    assert known_model(stranger(tmp_path, model="Llama-3-8B")).name == "llama 3 8b"
    assert known_model(stranger(tmp_path, model="Llama-3-8B", hidden="1024")) is None
    assert known_model(stranger(tmp_path, model="Bloom-3B")) is None
    model = json.loads(adapt(stranger(tmp_path, gpu="H100", model="Gemma-7B")).workload)["model"]
    assert (model["head_dim"], model["tied_embeddings"]) == (256, True)


def test_hybrid_sharding_shards_inside_of_a_node(tmp_path):
    def shard(framework):
        run = stranger(tmp_path, gpu="H100", framework=framework, model="Llama-3-8B", num_gpus="64", zero_stage="3")
        return json.loads(adapt(run).workload)["parallelism"]["fsdp"].get("shard")

    assert shard("PyTorch FSDP2, HSDP") == 8
    assert shard("PyTorch FSDP2") is None


def test_bytes_that_are_no_text_and_long_cells_are_their_rows_alone(tmp_path):
    path = write(
        tmp_path / "runs.csv", {"id": "A-1"}, {"id": "A-2", "seq": "10#24"}, {"id": "A-3", "model": "x" * 200_000}
    )
    path.write_bytes(path.read_bytes().replace(b"my notes", b"Universit\xe9 \x00", 1).replace(b"#", b"\x00"))
    first, second, third = runs.read(path)
    assert [first.unreadable, third.unreadable] == ["", ""]
    assert evaluate(first)["status"] == "ok"
    assert evaluate(second)["status"] == "refused"


def test_cells_that_say_that_nothing_is_known_are_blank(tmp_path):
    found = stranger(
        tmp_path, overlap_tp="N/A", vocab="unknown", num_gpus="1,024", flash_attention="FA3", kv_heads="MQA"
    )
    assert not found.unreadable
    assert (found.overlap_tp, found.vocab, found.num_gpus, found.flash_attention) == (None, None, 1024, True)
    assert found.kv_heads == 1
    assert re.match("A-|MINE", found.id)
    assert set(BARE) <= set(ROW)


MIXTURE = said(
    "gpu=H100; framework=Megatron-LM; model=Acme-8x1B; layers=8; hidden=1024; ffn_hidden=2048; heads=8; kv_heads=8; "
    "vocab=32000; experts=8; topk=2; num_gpus=16; tp=2; pp=2; dp=4; sequence_parallel=1"
)


def test_a_layout_in_set_decides_where_layers_do_not_divide(tmp_path):
    """Seven layers over four stages would be cut with the embedding as a layer, which excludes a layout."""
    split = {"layers": "7", "experts": "", "topk": "", "tp": "1", "pp": "4", "dp": "4"}
    found = evaluate(stranger(tmp_path, **{**MIXTURE, **split}, set="parallelism.layout=Et|tt|ttt|tL"))
    assert found["status"] == "ok", found["reason"]


def test_experts_that_span_tensor_parallel_ranks_are_whole(tmp_path):
    found = json.loads(adapt(stranger(tmp_path, **MIXTURE, ep="8")).workload)["parallelism"]
    assert (found["ep"], found["expert_tp"]) == (8, 1)
    assert "expert_tp" not in json.loads(adapt(stranger(tmp_path, **MIXTURE, ep="4")).workload)["parallelism"]


def test_a_mixture_without_ep_is_spread_over_a_node_unless_its_parameters_are_sharded(tmp_path):
    setup = adapt(stranger(tmp_path, **MIXTURE))
    assert json.loads(setup.workload)["parallelism"]["ep"] == 8
    assert any(said.startswith("parallelism.ep: 8 (experts over an NVLink domain") for said in setup.assumed)
    sharded = {"tp": "1", "pp": "1", "dp": "16", "zero_stage": "3", "framework": "torchtitan"}
    assert "ep" not in json.loads(adapt(stranger(tmp_path, **{**MIXTURE, **sharded})).workload)["parallelism"]
