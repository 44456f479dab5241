"""Optimizer, parameters and activations in the memory of the hosts: what stays on GPUs, what is copied, what CPUs update."""

import pytest
import yaml
from test_wild import INPUTS, command, run

from clustersim.simulation import simulate

OFFLOADED = INPUTS / "s06_offload.yaml"
GB = 1e9


def step(topology="hgx_h100_8", workload=OFFLOADED, engine="auto", fold=True, **changed):
    """Return the result of a step; changed: keys with __ for dots."""
    overrides = {key.replace("__", "."): value for key, value in changed.items()}
    return simulate(topology, workload, overrides, engine=engine, fold=fold, ignore_memory=True, check_overlap=False)


def test_the_optimizer_on_the_host_leaves_weights_alone_on_the_gpu():
    """DeepSpeed's own estimate (PR 1536): states of 5.31 GiB on each of eight GPUs, where they were 15.93."""
    found = run("hgx_h100_8", "s06_offload.yaml")
    rank = found["memory"]["by_pipeline_rank"][0]
    states = sum(rank[f"{kind}_bytes"] for kind in ("parameters", "gradients", "optimizer"))
    assert states / 2**30 == pytest.approx(5.31, rel=0.05)
    parameters = rank["parameters_bytes"] / 2
    assert found["memory"]["host_bytes"] == pytest.approx(16 * parameters)


def test_the_update_takes_what_the_cpu_and_the_slots_take():
    """Gradients have left under the backward pass; weights come back over PCIe when the CPU has updated them.

    Some 1.3 billion parameters a second and rank: 12 bytes each at 16 GB/s (deepspeedai/DeepSpeed issue 6695).
    """
    found = run("hgx_h100_8", "s06_offload.yaml")
    own = found["memory"]["by_pipeline_rank"][0]["parameters_bytes"] / 2 / 8
    update = (
        42 * own / (0.5 * 614 * GB / 8)
    )  # states, gradients that are scaled, weights in 16 bits: all eight ranks at once
    assert found["breakdown_s"]["optimizer"] == pytest.approx(update + 2 * own / (48 * GB), rel=0.01)
    assert found["breakdown_s"]["optimizer"] == pytest.approx(12 * own / (16 * GB), rel=0.6)


def test_72_billion_parameters_on_32_a100_take_seconds_with_a_thread_a_rank(tmp_path):
    """deepspeedai/DeepSpeed issue 6834: 0.2 s on the GPUs, about 10 s with the update on the hosts."""
    cluster = {"name": "a100", "nodes": 4, "node": "hgx-a100"}
    fabric = {"kind": "switch"}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({"cluster": cluster, "fabric": fabric}))
    split = {"parallelism.tp": 1, "parallelism.pp": 1, "parallelism.zero": 3, "parallelism.dp": 32}
    split |= {
        "training.global_batch": 32,
        "parallelism.sequence_parallel": False,
        "parallelism.overlap.param_gather": False,
    }
    changed = {key.replace(".", "__"): value for key, value in split.items()}
    gpu = step(tmp_path / "t.yaml", "qwen2.5_72b", **changed).summary["breakdown_s"]["optimizer"]
    host = {
        "training__offload__optimizer_states": 1,
        "training__offload__parameters": True,
        "training__offload__threads": 1,
    }
    cpu = step(tmp_path / "t.yaml", "qwen2.5_72b", **changed, **host).summary["breakdown_s"]["optimizer"]
    assert gpu < 0.25
    assert 6 < cpu < 14


CASES = {
    "whole": {},
    "block by block": {"training__offload__overlap": True},
    "half": {"training__offload__optimizer_states": 0.5},
    "one replica": {"parallelism__zero": 0},
    "zero 1": {"parallelism__zero": 1},
    "zero 3": {"parallelism__zero": 3, "training__offload__parameters": True},
    "activations": {"training__offload__activations": 1.0},
    "sharded activations": {"parallelism__zero": 3, "training__offload__activations": 0.5},
    "pipeline": {
        "training__offload__activations": 1.0,
        "parallelism__pp": 2,
        "parallelism__dp": 4,
        "parallelism__zero": 1,
        "training__global_batch": 16,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_both_engines_agree_with_and_without_folding(case):
    found = [
        step(engine=engine, fold=fold, **CASES[case]).record.end
        for engine in ("simpy", "auto")
        for fold in (True, False)
    ]
    assert found == pytest.approx([found[0]] * 4, rel=1e-11)


def test_slots_that_gpus_share_slow_copies_and_superchips_do_not(tmp_path):
    def busy(node, **changed):
        (tmp_path / "t.yaml").write_text(yaml.safe_dump({"cluster": {"name": "x", "nodes": 1, "node": node}}))
        changed = {"parallelism__dp": 4, "training__global_batch": 4, **changed}
        return step(tmp_path / "t.yaml", training__offload__activations=1.0, **changed).summary["breakdown_s"][
            "offload"
        ]

    alone = busy("hgx-a100")
    assert busy({"extends": "hgx-a100", "host": {"gpus_per_switch": 4}}) > 2.5 * alone
    assert busy("gh200-quad") < 0.2 * alone


def test_copies_that_are_shorter_than_a_block_hide_under_it():
    """Only the last block's own way back is waited for, and each copy's latency with slots and memories of any speed."""

    def moved(rate):
        found = {"cluster__node__host__effective": rate, "cluster__node__host__memory_bandwidth": "100TB/s"}
        return step(
            training__offload__activations=1.0, training__offload__optimizer_states=0, parallelism__zero=1, **found
        )

    slow, fast = (moved(rate).summary for rate in ("5GB/s", "5000GB/s"))
    assert fast["breakdown_s"]["offload"] < 0.005 * slow["breakdown_s"]["offload"]
    kept = step().summary["memory"]["by_pipeline_rank"][0]["activations_bytes"]
    assert fast["memory"]["by_pipeline_rank"][0]["activations_bytes"] < 0.2 * kept


def test_eager_updates_take_six_times_as_long():
    """DeepSpeed's CPUAdam is 5 to 7 times as fast as torch.optim's (ops/adam/cpu_adam.py)."""
    fused, eager = (
        step(training__offload__update=name).summary["breakdown_s"]["optimizer"] for name in ("fused", "eager")
    )
    assert eager / fused == pytest.approx(6, rel=0.1)


REFUSED = {
    "training.offload.parameters=true": "needs parallelism.zero: 3",
    "training.optimizer=muon": "is for adam, lion and sgd on the CPU, not muon",
    "cluster.node.host.memory=40GB": "a node needs 42 GiB of host memory and has 37 GiB; offload less",
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_cannot_be_offloaded_is_said(change):
    assert REFUSED[change] in command("run", "hgx_h100_8", OFFLOADED, "--set", change, code=2)


def test_paired_passes_keep_their_activations():
    words = ("--set", "training.offload.activations=1", "--pp", "2", "--vpp", "2", "--schedule", "zb-v", "--zero", "1")
    assert "exclude each other" in command("run", "hgx_h100_8", OFFLOADED, *words, code=2)


@pytest.mark.parametrize(
    "keys, states, activations",
    [
        ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.25}, 0.25, 0),
        ({"optimizer_cpu_offload": False, "optimizer_offload_fraction": 1.0}, 0, 0),
        ({"cpu_offloading": True, "cpu_offloading_num_layers": 6}, 0, 0.25),
        ({"cpu_offloading": False, "cpu_offloading_num_layers": 6}, 0, 0),
    ],
)
def test_megatrons_arguments_are_known(keys, states, activations, tmp_path):
    given = yaml.safe_load(OFFLOADED.read_text())
    del given["optimizer_cpu_offload"]
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(given | keys))
    found = step(workload=tmp_path / "w.yaml").job.training.offload
    assert (found.optimizer_states, found.activations) == (states, activations)


def test_jobs_that_offload_share_a_cluster(tmp_path):
    text = command("jobs", "rail_optimized", OFFLOADED, "gpt3_2.7b")
    assert "zero2-offload" in text


@pytest.mark.parametrize(
    "before, launcher, threads",
    [
        ("", "torchrun --nproc_per_node 8", 1),
        ("export OMP_NUM_THREADS=12", "torchrun --nproc_per_node 8", 12),
        ("", "torchrun --nproc_per_node 1", None),
        ("", "python", None),
    ],
)
def test_the_threads_of_the_update_are_those_that_the_launcher_gives(before, launcher, threads, tmp_path):
    """torchrun sets OMP_NUM_THREADS to 1 where several processes run on a node (torch distributed/run.py)."""
    words = (
        "pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 --vocab-size 1000"
    )
    words += " --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer"
    (tmp_path / "t.sh").write_text(f"{before}\n{launcher} {words} --optimizer-cpu-offload\n")
    offload = yaml.safe_load(command("import", "megatron", tmp_path / "t.sh"))["training"]["offload"]
    assert offload == {"optimizer_states": 1.0, "overlap": False} | ({"threads": threads} if threads else {})


CONSUMER = """
cluster: {name: two, nodes: 1, node: {extends: rtx-4090, gpus: {count: 2}, host: {memory: 128GB}}}
"""
ADAPTED = """
name: llama-2
model: {norm: rmsnorm, activation: swiglu, positions: rotary, bias: false, tied_embeddings: false, vocab: 32000, SHAPES}
training:
  {global_batch: BOTH, micro_batch: BATCH, seq: 2048, framework: fsdp, recompute: full, fused_projections: false,
   attention: flash2, gradients: bf16, main_params: bf16, moments: bf16,
   offload: {parameters: true, optimizer_states: 1.0, update: eager},
   lora: {rank: 64, dropout: 0.1, BASE targets: [linear_q, linear_k, linear_v, linear_fc1_gate, linear_fc1_up, linear_fc2]}}
parallelism: {dp: 2, zero: 3}
"""
LLAMA_7B = "layers: 32, hidden: 4096, heads: 32, ffn: 11008"
LLAMA_70B = "layers: 80, hidden: 8192, heads: 64, kv_heads: 8, ffn: 28672"


def adapted(folder, shapes, base, batch, **changed):
    """Return the result of a step of adapters on two GPUs whose hosts have the weights. base: key of the weights' format."""
    text = ADAPTED.replace("SHAPES", shapes).replace("BASE", base)
    (folder / "t.yaml").write_text(CONSUMER)
    (folder / "w.yaml").write_text(text.replace("BATCH", str(batch)).replace("BOTH", str(2 * batch)))
    return step(folder / "t.yaml", folder / "w.yaml", **changed)


@pytest.mark.parametrize(
    "shapes, base, batch, seconds, weights, trained",
    [
        (LLAMA_7B, "", 10, 482, 2 * 6.74e9, 0.142e9),
        (LLAMA_7B, "base: nf4,", 12, 464, 2 * 0.26e9 + 0.516 * 6.48e9, 0.142e9),
        (LLAMA_70B, "base: nf4,", 2, 4399, 2 * 0.52e9 + 0.516 * 68.5e9, 0.744e9),
    ],
    ids=["7B LoRA", "7B QLoRA", "70B QLoRA"],
)
def test_two_consumer_gpus_train_70b_with_frozen_weights_on_the_host(
    shapes, base, batch, seconds, weights, trained, tmp_path
):
    """AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md: seconds for 1,024 samples on two RTX 4090."""
    found = adapted(tmp_path, shapes, base, batch).summary
    assert found["step_time_s"] * 1024 / (2 * batch) == pytest.approx(seconds, rel=0.16)
    rank = found["memory"]["by_pipeline_rank"][0]
    assert rank["parameters_bytes"] == 0 and rank["total_bytes"] < 24 * 2**30
    assert found["memory"]["host_bytes"] == pytest.approx(weights + 8 * trained, rel=0.01)


def test_both_engines_copy_frozen_weights_from_the_host(tmp_path):
    found = [adapted(tmp_path, LLAMA_7B, "", 1, engine=engine).record.end for engine in ("simpy", "auto")]
    assert found[0] == pytest.approx(found[1], rel=1e-11)
    slow = adapted(tmp_path, LLAMA_7B, "", 1, cluster__node__host__effective="1GB/s").record.end
    assert slow == pytest.approx(2 * 13.48, rel=0.1)  # twice: half from the host, half from the other GPU by way of it
