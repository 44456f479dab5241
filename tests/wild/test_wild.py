"""Questions that people asked in public about real runs, with the answers that they measured or that sources give."""

import gzip
import json
import re
import tracemalloc
from functools import cache
from pathlib import Path

import commands
import pytest
import yaml

from clustersim.config.shipped import files as shipped
from clustersim.errors import ConfigError, InputError
from clustersim.explain.gpu_trace import measured
from clustersim.hardware import gpus
from clustersim.model.attention import core
from clustersim.model.kernel import Kernel
from clustersim.model.sharding import ShardedModel
from clustersim.parallel.flops import attention_flop
from clustersim.parallel.load import load
from clustersim.topology.build import load as load_topology

INPUTS = Path(__file__).parent / "inputs"


def command(*words, code=0):
    """Return what a command prints: its JSON where it says so, else its text; of one that fails, the sentence."""
    given = [str(INPUTS / word) if (INPUTS / str(word)).is_file() else str(word) for word in words]
    out, err = commands.command(*given, code=code)
    return err if code else json.loads(out) if "--json" in words else out


def run(*words):
    return command("run", *words, "--json", "--no-save")


def test_tensor_parallel_ranks_beyond_the_key_value_heads_share_them_in_megatron_core():
    """Megatron-Core d98e8a6: transformer_config.py takes a multiple of num_query_groups; pytorch/torchtitan PR 4016."""
    assert run("hgx_h100_8", "s03_tp_over_kv_heads.yaml")["step_time_s"] > 0
    job = load(INPUTS / "s03_tp_over_kv_heads.yaml")
    shard = ShardedModel(job.model, job.training, job.parallelism)
    assert 2 * shard.kv_heads * shard.dim * job.model.hidden == 2 * 4096 * 128


def test_torchtitan_refuses_what_megatron_core_replicates(tmp_path):
    text = (INPUTS / "s03_tp_over_kv_heads.yaml").read_text().replace("seq: 4096", "seq: 4096, framework: torchtitan")
    (tmp_path / "w.yaml").write_text(text)
    said = command("run", "hgx_h100_8", tmp_path / "w.yaml", code=2)
    assert "tp: 8 does not divide 4 key/value heads, as torchtitan needs; use 1, 2, 4" in said


@pytest.mark.parametrize("framework, legal", [("deepspeed", True), ("megatron-core", False), (None, True)])
def test_ulysses_repeats_heads_where_the_framework_does(framework, legal, tmp_path):
    """DeepSpeed runtime/sequence_parallel/ulysses_sp.py, kv_replication_factor; Transformer Engine's context_parallel.py."""
    one = yaml.safe_load((INPUTS / "s03_tp_over_kv_heads.yaml").read_text())
    one["parallelism"] = {"cp": 8, "cp_type": "a2a", "zero": 1}
    one["training"] |= {"framework": framework} if framework else {}
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(one))
    if legal:
        assert run("hgx_h100_8", tmp_path / "w.yaml")["step_time_s"] > 0
    else:
        assert "4 key/value heads" in command("run", "hgx_h100_8", tmp_path / "w.yaml", code=2)


@pytest.mark.parametrize("batch, group, legal", [(20, 5, True), (18, 5, True), (12, 4, False)])
def test_interleaved_groups_are_those_of_megatron_core(batch, group, legal, tmp_path):
    """Group size from pp to m, and m mod N zero or at least pp: schedules.py of Megatron-Core d98e8a6."""
    text = (INPUTS / "s04_interleaved_group.yaml").read_text().replace("vp_stage: 5", f"vp_stage: {group}")
    (tmp_path / "w.yaml").write_text(text)
    words = ("hgx_h100_8", tmp_path / "w.yaml", "--global-batch", str(batch))
    if legal:
        assert run(*words)["step_time_s"] > 0
    else:
        assert "in groups of 4 leave 2, and Megatron-Core's last group" in command("run", *words, code=2)


def test_slurm_says_how_many_gpus_a_node_has():
    text = command("import", "megatron", "s13_sbatch.sh")
    assert "launched on: 32 nodes of 4 GPUs" in text
    split = yaml.safe_load(text)["parallelism"]
    assert (split["tp"], split["pp"]) == (4, 8)


def bus_bandwidth(topology, *words):
    """Return GB/s of an all-reduce of 8 GiB."""
    found = command("collective", "all_reduce", "-t", topology, "-b", "8G", "-e", "8G", "--json", *words)
    return found["lines"][0]["busbw_gb_per_s"]


PAIRS = """
cluster: {name: pairs, nodes: 1, node: pc}
nodes:
  pc:
    gpus: {model: a100-pcie-80gb, count: 4}
    scale_up: {kind: pairs, pairs: [[0, 1, 12], [2, 3, 12]], link: 25GB/s, payload_efficiency: 0.8}
    host: {cpu: amd, pcie: gen4x16}
"""
CUBE = """
cluster: {name: cube, nodes: 1, node: dgx1}
nodes:
  dgx1:
    gpus: {model: v100-sxm2-32gb, count: 8}
    scale_up:
      kind: pairs
      pairs: [[0, 1], [0, 2], [0, 3, 2], [0, 4, 2], [1, 2, 2], [1, 3], [1, 5, 2], [2, 3, 2], [2, 6], [3, 7],
              [4, 5], [4, 6], [4, 7, 2], [5, 6, 2], [5, 7], [6, 7, 2]]
      link: 25GB/s
      payload_efficiency: 0.8
    host: {cpu: intel, pcie: gen3x16}
"""


@pytest.mark.parametrize("gpus, low, high", [(2, 183, 233), (3, 15, 24), (4, 15, 24)])
def test_bridges_join_pairs_and_a_third_gpu_makes_the_ring_cross_pcie(gpus, low, high, tmp_path):
    """NVIDIA/nccl-tests issue 178: 208 GB/s on two A100 with a bridge, 20 with a third."""
    (tmp_path / "t.yaml").write_text(PAIRS)
    assert low <= bus_bandwidth(tmp_path / "t.yaml", "-g", str(gpus)) <= high


@pytest.mark.parametrize("gpus, low, high", [(2, 183, 233), (3, 15, 24), (4, 15, 24)])
def test_bridges_in_nccls_dump(gpus, low, high):
    assert low <= bus_bandwidth("s01_bridged_pairs.xml", "-g", str(gpus)) <= high


def shown(*words):
    return command("show", *words, "--json")


def test_what_clouds_give_nccl_is_read_with_the_gpu():
    found = shown("s15_cloud_topology.xml", "--gpu", "h100")
    assert (found["gpus"], found["nics"], found["sockets"], found["gpu"]) == (8, 8, 2, "h100-sxm")
    assert "give --gpu h100" in command("show", "s15_cloud_topology.xml", code=2)


def test_an_empty_speed_of_pcie_is_the_default(tmp_path):
    text = (INPUTS / "s15_cloud_topology.xml").read_text().replace('"32.0 GT/s PCIe"', '""').replace('"16"', '""')
    (tmp_path / "t.xml").write_text(text)
    assert shown(tmp_path / "t.xml", "--gpu", "a100")["gpus"] == 8


def test_slots_of_a_virtual_machine_without_lanes_have_16(tmp_path):
    """IBM Cloud's file for its H100 profile (ibm-cloud-docs/vpc, cluster-network-h100-profile); NCCL reads 0 as 16."""
    found = []
    for width in (16, 0):
        text = (INPUTS / "s15_cloud_topology.xml").read_text()
        (tmp_path / "t.xml").write_text(text.replace('link_width="16"', f'link_width="{width}"'))
        found.append(load_topology(tmp_path / "t.xml", {"cluster.gpu": "h100-sxm"}))
    assert (found[0].capacity == found[1].capacity).all()


CLASSLESS = "".join(f'<cpu numaid="{i}">{"<pci/>" * (4 + i)}</cpu>' for i in range(2))
SWITCHED = '<pci busid="0000:00:0{}.0" class="0x030200" device="0x20b2" link_speed="8 GT/s" link_width="16"/>'
HIDDEN = """<pci busid="000{0}:00:00.0" class="0x030200" device="0x20b5" link_speed="" link_width="0">
<gpu dev="{0}" sm="80" rank="{0}"><nvlink target="000{0}:00:00.0" count="12" tclass="0x030200"/></gpu></pci>"""
UNNAMED = '<pci busid="000{0}:00:00.0" class="0x038000"><gpu dev="{0}" sm="64" gcn="906" rank="{0}"/></pci>'
AMD = """<pci busid="000{0}:00:00.0" class="0x038000" device="0x740c" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="{0}" sm="104" gcn="910" rank="{0}"><xgmi target="000{1}:00:00.0" count="4" tclass="0x038000"/></gpu></pci>"""


@pytest.mark.parametrize(
    "devices, words, gpu, kind, rate",
    [
        (CLASSLESS, ["--gpu", "a10g"], "a10g", "none", None),  # as AWS writes it for g5: NCCL finds the classes itself
        ("".join(map(SWITCHED.format, range(8))), [], "a100-sxm-80gb", "nvswitch", 240e9),  # p4de: the links too
        ("".join(map(HIDDEN.format, range(8))), [], "a100-pcie-80gb", "none", None),  # NC A100 v4: links to themselves
        ("".join(map(UNNAMED.format, range(8))), ["--gpu", "mi100"], "mi100", "none", None),
        ("".join(AMD.format(i, i ^ 1) for i in range(8)), [], "mi250x", "pairs", 4 * 36e9),  # RCCL: MI200_XGMI_WIDTH
    ],
    ids=["classless", "switched", "hidden", "unnamed", "amd"],
)
def test_what_clouds_leave_out_is_the_gpus_own(devices, words, gpu, kind, rate, tmp_path):
    cpus = devices if "<cpu" in devices else f'<cpu numaid="0" vendor="AuthenticAMD">{devices}</cpu>'
    (tmp_path / "t.xml").write_text(f'<system version="1">{cpus}</system>')
    found = shown(tmp_path / "t.xml", *words)
    assert (found["gpus"], found["gpu"]) == (8, gpu)
    topology = load_topology(tmp_path / "t.xml", {"cluster.gpu": words[1]} if words else {})
    assert topology.node.scale_up == kind
    assert rate is None or max(topology.capacity) == pytest.approx(rate)


@pytest.mark.parametrize("devices", [HIDDEN, AMD])
def test_gpus_of_a_file_without_classes_are_counted_once(devices, tmp_path):
    body = "".join(devices.format(i, i ^ 1) for i in range(4))
    for number, text in enumerate((body, re.sub(' class="[^"]*"', "", body))):
        (tmp_path / f"{number}.xml").write_text(f'<system version="1"><cpu numaid="0">{text}</cpu></system>')
        assert shown(tmp_path / f"{number}.xml")["gpus"] == 4


MATRIX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tSYS\tSYS\tPIX\t0-15\t0
GPU1\tNV12\t X \tSYS\tSYS\tNODE\t0-15\t0
GPU2\tSYS\tSYS\t X \tNV12\tSYS\t16-31\t1
GPU3\tSYS\tSYS\tNV12\t X \tSYS\t16-31\t1
NIC0\tPIX\tNODE\tSYS\tSYS\t X

Legend:

  X    = Self
"""


@pytest.mark.parametrize(
    "gpu, links, rate", [("rtx-3090", 4, 48), ("a40", 4, 48), ("rtx-a6000", 4, 48), ("a100-pcie-80gb", 12, 240)]
)
def test_bridges_of_gpus_without_hbm_have_links_of_14_gigabytes(gpu, links, rate, tmp_path):
    """huggingface/transformers issue 9371 (NV4 of two RTX 3090: 56.25 GB/s each way); NCCL takes 12 GB/s for payload."""
    (tmp_path / "topo.txt").write_text(f"\tGPU0\tGPU1\nGPU0\t X \tNV{links}\nGPU1\tNV{links}\t X \n")
    topology = load_topology(tmp_path / "topo.txt", {"cluster.gpu": gpu})
    assert max(topology.capacity) == pytest.approx(rate * 1e9, rel=0.01)


@pytest.mark.parametrize("gpus, cores, watts", [(4, 144, 6667.0), (72, 2592, 120e3)])
def test_a_tray_of_superchips_has_its_own_part_of_the_rack(gpus, cores, watts, tmp_path):
    """sgl-project/sglang issue 11208: four GB200 in one operating system, not the CPUs and 120 kW of 72."""
    names = [f"GPU{i}" for i in range(gpus)]
    rows = [[name, *("X" if name == other else "NV18" for other in names)] for name in names]
    (tmp_path / "topo.txt").write_text("\n".join("\t".join(line) for line in [["", *names], *rows]))
    topology = load_topology(tmp_path / "topo.txt", {"cluster.gpu": "gb200"})
    assert (topology.node.host.cores, topology.counts["power"]) == (cores, pytest.approx(watts, rel=1e-3))
    assert topology.node.host.memory == pytest.approx(17.3e12 * gpus / 72, rel=1e-3)


@pytest.mark.parametrize("count", [0, -4])
def test_a_tray_without_superchips_is_refused_by_their_number(count, tmp_path):
    node = f"{{extends: gb200-nvl72, gpus: {{count: {count}}}}}"
    (tmp_path / "t.yaml").write_text(f"cluster: {{name: c, nodes: 1, node: {node}}}\n")
    with pytest.raises(ConfigError, match=rf"cluster\.node\.gpus\.count: {count} must be at least 1"):
        load_topology(tmp_path / "t.yaml")


def test_the_matrix_of_nvidia_smi_is_read(tmp_path):
    (tmp_path / "topo.txt").write_text(MATRIX)
    words = ("--gpu", "a100-pcie-80gb")
    assert bus_bandwidth(tmp_path / "topo.txt", "--ranks", "0,1", *words) > 180
    assert bus_bandwidth(tmp_path / "topo.txt", *words) < 24
    assert shown(tmp_path / "topo.txt", *words)["sockets"] == 2


def test_ns3_is_read_and_written_back_as_it_is(tmp_path):
    """astra-sim/astra-sim issue 299."""
    assert (shown("s12_ns3_topology.txt")["gpus"], shown("s12_ns3_topology.txt")["cables"]) == (8, 16)
    command("show", "s12_ns3_topology.txt", "--export", "ns3", tmp_path / "back.txt")
    assert (tmp_path / "back.txt").read_text() == (INPUTS / "s12_ns3_topology.txt").read_text()


@pytest.mark.parametrize("node", ["mi300x", "frontier", "gh200-quad"])
def test_clusters_of_joined_gpus_are_written_for_ns3_and_read_again(node, tmp_path):
    fabric = "fabric: {kind: switch, link: {rate: 200Gb/s}}"
    (tmp_path / "t.yaml").write_text(f"cluster: {{name: c, nodes: 2, node: {node}}}\n{fabric}")
    command("show", tmp_path / "t.yaml", "--export", "ns3", tmp_path / "one.txt")
    command("show", tmp_path / "one.txt", "--export", "ns3", tmp_path / "two.txt")
    lines = (tmp_path / "one.txt").read_text().splitlines()
    assert sorted(lines) == sorted((tmp_path / "two.txt").read_text().splitlines())
    inside = next(
        line for line in lines[2:] if line.split()[0] == "0" and int(line.split()[1]) < int(lines[0].split()[1])
    )
    (tmp_path / "bad.txt").write_text(
        "\n".join(lines).replace(f"{inside}\n", "", 1).replace(lines[0], fewer(lines[0]), 1)
    )
    assert "servers have different cables between GPUs" in command("show", tmp_path / "bad.txt", code=2)


def fewer(header):
    """Return a header with one link less."""
    *counts, links, gpu = header.split()
    return " ".join([*counts, str(int(links) - 1), gpu])


def test_another_gpu_keeps_the_cables_of_a_list():
    found = shown("s12_ns3_topology.txt", "--gpu", "h200")
    assert (found["gpu"], found["gpus"], found["cables"]) == ("h200-sxm", 8, 16)


@pytest.mark.parametrize(
    "node",
    [
        "{extends: hgx-a100, scale_up: {kind: pairs, pairs: [[0, 1, 3], [2, 3, 3]]}}",
        "{gpus: {model: a100, count: 8}, scale_up: {kind: pairs, pairs: [[0, 1, 3], [2, 3, 3]]}}",
        "own",
    ],
)
def test_another_gpu_keeps_the_pairs_of_a_list(node, tmp_path):
    own = "{extends: hgx-a100, scale_up: {kind: pairs, pairs: [[0, 1, 3], [2, 3, 3]]}}"
    (tmp_path / "t.yaml").write_text(f"cluster: {{nodes: 1, node: {node}}}\nnodes: {{own: {own}}}\n")
    topology = load_topology(tmp_path / "t.yaml", {"cluster.gpu": "h100"})
    assert (topology.gpu.name, topology.gpus, topology.node.scale_up) == ("h100-sxm", 8, "pairs")
    kept = "only the GPU changes; the file's links, host and NICs stay"
    for words in (["show"], ["collective", "all_reduce", "-b", "1M", "-e", "1M", "-t"], ["run"]):
        workload = ["gpt3_xl", "--no-save", "--ignore-memory", "--predictor", "roofline"] if words == ["run"] else []
        for gpu in ([], ["--gpu", "h100"], ["--set", "cluster.node=hgx-h100"]):
            found = command(*words, tmp_path / "t.yaml", *workload, *gpu, "--json")
            assert any(kept in said for said in found["warnings"]) == (gpu == ["--gpu", "h100"])


NODES = ["mi250x", "l40s", "rtx-4090", "h100-nvl", "h200-nvl", "gh200", "v100-sxm2-32gb", "a100-pcie-80gb"]
EXPORTED = ["explicit_8", "leaf_spine_32", "mi300x_8", "hgx_h100_8", "rail_optimized", "s01_bridged_pairs.xml"]


@pytest.mark.parametrize(
    "words", [[name] for name in EXPORTED] + [["hgx_h100_8", "--gpu", gpu] for gpu in NODES], ids=str
)
def test_what_is_exported_can_be_read_again(words, tmp_path):
    command("show", *words, "--export", "ns3", tmp_path / "one.txt")
    command("show", tmp_path / "one.txt", "--export", "ns3", tmp_path / "two.txt")
    assert (tmp_path / "one.txt").read_text() == (tmp_path / "two.txt").read_text()


def test_gpus_of_two_bridges_reach_each_other_over_pcie(tmp_path):
    (tmp_path / "t.yaml").write_text(PAIRS)
    assert bus_bandwidth(tmp_path / "t.yaml", "--ranks", "2,3") == bus_bandwidth(tmp_path / "t.yaml", "--ranks", "0,1")
    assert bus_bandwidth(tmp_path / "t.yaml", "--ranks", "1,2") <= 24


@pytest.mark.parametrize("ranks, links", [("0,1", 1), ("0,3", 2), ("0-3", 4), ("0-7", 6)])
def test_rings_of_a_cube_mesh_take_the_links_that_its_gpus_have(ranks, links, tmp_path):
    """Eight V100 of a DGX-1 have three rings each way over their six links; a pair has one link or two."""
    (tmp_path / "t.yaml").write_text(CUBE)
    assert bus_bandwidth(tmp_path / "t.yaml", "--ranks", ranks) == pytest.approx(20 * links, rel=0.05)


@pytest.mark.parametrize("shape", ["kind: ring", "kind: torus, shape: [2, 2]"])
def test_rings_of_a_grid_take_all_links_to_a_neighbour(shape, tmp_path):
    """One way around, each of four links of 25 GB/s carries 20 GB/s of payload."""
    text = PAIRS.replace("kind: pairs, pairs: [[0, 1, 12], [2, 3, 12]]", f"{shape}, links_per_peer: 4")
    (tmp_path / "t.yaml").write_text(text)
    assert bus_bandwidth(tmp_path / "t.yaml") == pytest.approx(4 * 20, rel=0.05)


def test_islands_are_as_whole_nodes_and_pcie_lies_between(tmp_path):
    text = "cluster: {{name: x, nodes: 1, node: {{extends: hgx-a100, scale_up: {{island: {}}}}}}}"
    (tmp_path / "islands.yaml").write_text(text.format(4))
    (tmp_path / "whole.yaml").write_text(text.format("null"))
    alone = bus_bandwidth(tmp_path / "whole.yaml", "--ranks", "4-7")
    assert bus_bandwidth(tmp_path / "islands.yaml", "--ranks", "4-7") == pytest.approx(alone)
    assert bus_bandwidth(tmp_path / "islands.yaml", "-g", "8") <= 24


def test_pcie_lies_between_bridges_of_two_gpus_and_of_four():
    """Only the link between the two CPUs bounds all eight GPUs, whatever joins the GPUs of one."""
    whole, pair = (bus_bandwidth("hgx_h100_8", "--gpu", gpu) for gpu in ("h200-nvl", "h100-nvl"))
    assert whole == pytest.approx(pair)


def test_nvls_goes_by_links():
    """480 GB/s on 18 links (NVIDIA/nccl-tests issue 212), 215 on the H800's eight (NVIDIA/nccl issue 1374)."""
    assert bus_bandwidth("s02_h800_8.yaml") == pytest.approx(215, rel=0.05)


@pytest.mark.parametrize("gpus, measured", [(4, 35), (8, 28)])
def test_what_the_cpus_carry_bounds_gpus_without_peer_to_peer(gpus, measured):
    """NVIDIA/nccl issue 1639: eight RTX 5090 on two Xeons."""
    assert bus_bandwidth("s14_rtx5090_8.yaml", "-g", str(gpus)) == pytest.approx(measured, rel=0.15)


OWNED = ["rtx-5090", "rtx-pro-6000", "rtx-4090", "l40s", "h20", "mi350x"]
OWNED += ["mi250x", "a100-pcie-80gb", "h100-nvl", "h200-nvl", "rtx-3090", "a10g", "l4", "t4"]


@pytest.mark.parametrize("gpu", OWNED)
def test_nodes_of_what_people_own_are_shipped(gpu):
    assert run("hgx_h100_8", "llama3_8b", "--gpu", gpu, "--ignore-memory")["step_time_s"] > 0


def test_pools_of_unlike_nodes_run_and_are_as_alone(tmp_path):
    assert run("s16_gh200_and_nvl72.yaml", "llama3_8b", "--global-batch", "1056")["step_time_s"] > 0
    for node, ranks in (("gh200-quad", "4-7"), ("gb200-nvl72", "32-103")):
        (tmp_path / "one.yaml").write_text(f"cluster: {{name: one, nodes: 1, node: {node}}}")
        assert bus_bandwidth("s16_gh200_and_nvl72.yaml", "--ranks", ranks) == pytest.approx(
            bus_bandwidth(tmp_path / "one.yaml")
        )


def test_pure_bf16_has_no_fp32_copy():
    """34 GB measured (huggingface/trl PR 6869): weights, gradients and both moments of two bytes each on eight GPUs."""
    assert run("hgx_h100_8", "s08_pure_bf16.yaml")["memory"]["peak_bytes"] == pytest.approx(34e9, rel=0.08)


@pytest.mark.parametrize("zero", [0, 1])
def test_main_weights_in_16_bits_are_those_of_the_model(zero, tmp_path):
    split = (
        "--set",
        f"parallelism.zero={zero}",
        "--set",
        f"parallelism.overlap.param_gather={bool(zero)}".lower(),
        "--ignore-memory",
    )
    fp32, bf16 = (
        run("hgx_h100_8", "llama3_8b", *split, "--set", f"training.main_params={kind}")["memory"]["by_pipeline_rank"][0]
        for kind in ("fp32", "bf16")
    )
    assert (fp32["optimizer_bytes"] / bf16["optimizer_bytes"]) == pytest.approx(12 / 8)


def test_muon_keeps_one_moment_of_matrices_and_takes_little_of_a_step(tmp_path):
    """MoonshotAI/Moonlight issue 33; AMD-AGI/Primus PR 729: about 1 % of GPU time at 32 microbatches a step."""
    command("import", "megatron", "s05_muon.sh", "-o", tmp_path / "w.yaml")
    muon = run("hgx_h100_8", tmp_path / "w.yaml")
    adam = run("hgx_h100_8", tmp_path / "w.yaml", "--set", "training.optimizer=adam", "--ignore-memory")
    assert 0 < muon["breakdown_s"]["optimizer"] / muon["step_time_s"] <= 0.02
    ratio = [found["memory"]["by_pipeline_rank"][0]["optimizer_bytes"] for found in (muon, adam)]
    assert 8 / 12 <= ratio[0] / ratio[1] < 8 / 12 * 1.04  # embeddings and head are Adam's


@pytest.mark.parametrize(
    "optimizer, bytes_", [("adam8bit", 6), ("lion8bit", 5), ("adafactor", 4), ("lion", 8), ("sgd", 8), ("adam", 12)]
)
def test_states_of_optimizers(optimizer, bytes_):
    words = ("--tp", "8", "--dp", "1", "--ignore-memory", "--set", f"training.optimizer={optimizer}")
    rank = run("hgx_h100_8", "llama3_8b", *words)["memory"]["by_pipeline_rank"][0]
    assert rank["optimizer_bytes"] / rank["parameters_bytes"] * 2 == pytest.approx(bytes_, rel=0.01)


def test_torchtitans_policy_saves_no_grouped_products():
    """mlc-ai/pith-train issue 79: 19.5 thousand tokens/s a GPU and 141.8 GiB."""
    found = run("s09_b200_8.yaml", "s09_titan_moe_op.yaml")
    assert found["memory"]["peak_bytes"] / 2**30 == pytest.approx(141.8, rel=0.06)
    assert found["tokens_per_s_per_gpu"] == pytest.approx(19.5e3, rel=0.10)


PAIRED = ("--ep", "4", "--pp", "2", "--vpp", "2", "--schedule", "dualpipev")


@cache
def pith(*words):
    """Return the simulated seconds of a step of PithTrain."""
    return run("s09_b200_8.yaml", "s10_ep_fsdp_b200.yaml", "--ignore-memory", *words)["step_time_s"]


@pytest.mark.parametrize(
    "words, thousand",
    [(("--ep", "4"), 20.3), (("--ep", "8"), 19.4), (PAIRED, 19.7), ((*PAIRED, "--precision", "fp8"), 18.2)],
    ids=str,
)
def test_sharded_parameters_with_expert_groups_and_pipelines(words, thousand):
    """mlc-ai/pith-train issue 79, balanced by force: tokens/s of a GPU.

    The trainer pairs a forward with a backward pass at pp 1 too, gathers parameters once and reduces gradients once a step
    (dualpipe/dualpipev.py; modules/training.py: fully_shard with reshard_after_forward False).
    """
    assert 1024 * 8192 / 8 / pith(*words) == pytest.approx(1e3 * thousand, rel=0.08)


def test_fp8_is_no_faster_where_small_experts_are_cast():
    assert pith(*PAIRED, "--precision", "fp8") >= pith(*PAIRED)


def test_packed_documents_attend_to_themselves():
    """NovaSky-AI/SkyRL PR 1734: passes of 0.41 s with packs, 1.85 s padded; attention costs the sum of squares of the lengths."""
    job = load(INPUTS / "s07_packed.yaml")
    alone = job.changed({"training.packed": None})
    assert attention_flop(job) / attention_flop(alone) == pytest.approx(2 * 340 / 32768, rel=0.02)
    steps = [
        run("nvlink_h100_4", "s07_packed.yaml", *words)["step_time_s"]
        for words in ((), ("--set", "training.packed=null"))
    ]
    assert steps[0] == pytest.approx(0.41, rel=0.25)
    assert steps[1] > 1.8 * steps[0]


@pytest.mark.parametrize("kind", ["a2a", "all_gather", "p2p"])
def test_packed_documents_are_cut_over_context_parallel_ranks(kind):
    """Transformer Engine's context_parallel.py cuts each document of a pack (THD); with Ulysses each rank has all of it."""
    heads = {"model.heads": 16, "model.kv_heads": 4, "training.packed.spread": 0}
    job = load(INPUTS / "s07_packed.yaml").changed(heads)

    def flop(training=job.training, **split):
        shard = ShardedModel(job.model, training, job.parallelism.model_copy(update=split))
        return sum(step.flop for step in core(shard, 4, 64, 64).backward_input if isinstance(step, Kernel))

    assert flop() < flop(job.training.model_copy(update={"packed": None})) / 50
    assert 4 * flop(cp=4, cp_type=kind) == pytest.approx(flop(), rel=0.02)


PADDED = {"packed": "null", "padded.mean": 340, "padded.max": 4096, "seq": 4096, "global_batch": 256, "micro_batch": 8}


def padded(**changed):
    """Return the step of the same conversations padded to the longest of each microbatch."""
    said = {**PADDED, **changed}.items()
    words = [word for key, value in said for word in ("--set", f"training.{key}={value}")]
    return run("nvlink_h100_4", "s07_packed.yaml", "--ignore-memory", *words)


def test_packs_have_almost_three_times_the_tokens_of_padded_microbatches():
    """NovaSky-AI/SkyRL PR 1734: 45 and 124 thousand tokens/s of 256 conversations in microbatches of 8."""
    packed = run("nvlink_h100_4", "s07_packed.yaml", "--ignore-memory")
    assert packed["tokens_per_s"] / padded()["tokens_per_s"] == pytest.approx(2.75, rel=0.15)


def test_padding_is_to_the_longest_of_a_microbatch():
    """The mean of the longest of n exponential lengths is the harmonic number of n times theirs."""
    job = load(
        INPUTS / "s07_packed.yaml", {f"training.{key}": value for key, value in {**PADDED, "packed": None}.items()}
    )

    def longest(**changed):
        return job.changed({f"training.{key}": value for key, value in changed.items()}).shard.training.seq

    assert longest() == pytest.approx(340 * sum(1 / i for i in range(1, 9)), rel=0.005)
    assert longest(micro_batch=1) == longest(**{"padded.spread": 0}) == 340
    assert longest(**{"padded.spread": 0.001}) == 340
    assert longest(**{"padded.max": 400}) < 400


def test_documents_are_packed_or_padded():
    words = ("--set", "training.packed.mean=340", "--set", "training.padded.mean=340")
    assert "and training.packed exclude each other" in command(
        "run", "nvlink_h100_4", "s07_packed.yaml", *words, code=2
    )


def test_documents_no_longer_than_a_sequence_are_packed(tmp_path):
    text = (INPUTS / "s07_packed.yaml").read_text().replace("max: 4096", "max: 65536")
    (tmp_path / "w.yaml").write_text(text)
    said = command("run", "nvlink_h100_4", tmp_path / "w.yaml", code=2)
    assert "documents of 340 to 65536 tokens do not fit; write mean ≤ max ≤ seq 32768" in said


@pytest.mark.parametrize("kind, least, most", [("p2p", -0.45, -0.12), ("a2a", -0.05, 0.05)])
def test_an_eager_ring_costs_much_and_ulysses_little(kind, least, most):
    """PrimeIntellect-ai/prime-rl PR 2418: −32 and +1 % of tokens/s at cp 4."""
    words = ("s11_h200_8.yaml", "s11_ring_or_ulysses.yaml", "--ignore-memory", "--set", f"parallelism.cp_type={kind}")
    one, four = (run(*words, "--cp", cp)["tokens_per_s"] for cp in (1, 4))
    assert least <= four / one - 1 <= most


@pytest.mark.parametrize(
    "kind, cp, change, within",
    [("p2p", "2", -0.29, 0.05), ("p2p", "4", -0.32, 0.05), ("a2a", "2", -0.08, 0.08), ("a2a", "4", 0.01, 0.05)],
)
def test_a_ring_of_neighbouring_tokens_waits_for_its_last_rank(kind, cp, change, within):
    """PrimeIntellect-ai/prime-rl PR 2418, whose ring gathers keys and values head by head, and cuts sequences in order."""
    words = ("--set", f"parallelism.cp_type={kind}", "--set", "training.framework=prime-rl", "--ignore-memory")
    one, many = (
        run("s11_h200_8.yaml", "s11_ring_or_ulysses.yaml", *words, "--cp", ranks)["tokens_per_s"] for ranks in ("1", cp)
    )
    assert many / one - 1 == pytest.approx(change, abs=within)


def test_what_ifs_of_another_tools_topology(tmp_path, monkeypatch):
    """They change keys of the cluster, which ASTRA-sim's network.yml does not have."""
    monkeypatch.chdir(tmp_path)
    Path("n.yml").write_text("{topology: [Switch], npus_count: [16], bandwidth: [50.0], latency: [500.0]}")
    command("run", "n.yml", "llama3_8b", "--ignore-memory", "-q")
    (found,) = Path("results").iterdir()
    assert "--set cluster.node.scale_up.link=" in command("explain", found)
    command("report", found)


def test_a_copied_result_stands_alone(tmp_path, monkeypatch):
    """It was made of files, a GPU's among them, that are gone where it was copied to."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    gpu = yaml.safe_load((gpus.FOLDER / "h100-sxm.yaml").read_text()) | {"name": "mine", "aliases": []}
    Path("gpu.yaml").write_text(yaml.safe_dump(gpu))
    node = {"gpus": {"model": "gpu.yaml", "count": 8}, "scale_up": {"kind": "nvswitch"}}
    Path("c.yaml").write_text(yaml.safe_dump({"cluster": {"name": "c", "nodes": 1, "node": node}}))
    Path("w.yaml").write_text(shipped("workloads")["gpt3_2.7b"].read_text())
    command("run", "c.yaml", "w.yaml", "--global-batch", "8", "--predictor", "roofline", "--out", "a")
    Path("a").rename(tmp_path / "there" / "a")
    monkeypatch.chdir(tmp_path / "there")
    assert "the same comes out" in command("rerun", "a")
    command("report", "a", "--quiet")
    command("plot", "a", "--kind", "timeline", "--out", "step.svg", "--quiet")
    command("export", "chakra", "a", "--out", "chakra", "--quiet")
    command("trace", "a", "--quiet")
    assert command("explain", "a") and command("export", "megatron", "a") and command("compare", "a", "a")


def test_traces_that_unpack_without_end_are_refused_while_they_are_small(tmp_path):
    """Python's own memory is counted, of which a trace of 400 MB would take more than its size."""
    with gzip.open(tmp_path / "t.json.gz", "wb", 9) as file:
        file.write(b'{"traceEvents":[')
        for _ in range(400):
            file.write(b'{"ph":"X","cat":"kernel","name":"x","ts":1,"dur":1,"args":{}},' * 16384)
    tracemalloc.start()
    with pytest.raises(InputError, match="unpacks to over 100 times its size, as no trace does"):
        measured(tmp_path / "t.json.gz")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 20e6


LAUNCHED = {
    "torchrun": (
        "torchrun --nproc-per-node=8 --nnodes 4 --no-python bash -c 'python {0} $LOCAL_WORLD_SIZE'",
        "4 nodes of 8",
    ),
    "OpenMPI": ("mpirun -np 32 -npernode 8 bash -c 'python {0} $OMPI_COMM_WORLD_LOCAL_SIZE'", "4 nodes of 8"),
    "srun": (
        "srun -N 4 --ntasks-per-node=8 --gpus-per-task 1 bash -c 'python {0} $SLURM_NTASKS_PER_NODE'",
        "4 nodes of 8",
    ),
    "flux": ("flux run -N 4 -n 32 -g 1 python {0} 8", "4 nodes of 8"),
    "flux by node": ("flux run --nodes=4 --tasks-per-node=8 python {0} 8", "4 nodes of 8"),
    "default": (
        ': "${{NNODES:=4}}"\ntorchrun --nproc_per_node ${{GPUS:=16}} --nnodes $NNODES python {0} $((GPUS / 2))',
        "4 nodes of 16",
    ),
    "gres": ("#SBATCH -N4 --gres=gpu:a100:8\nsrun python {0} $SLURM_GPUS_ON_NODE", "4 nodes of 8"),
    "tasks": (
        "#SBATCH --ntasks 32\n#SBATCH --ntasks-per-node=8\nsrun python {0} $((SLURM_NTASKS / SLURM_NNODES))",
        "4 nodes of 8",
    ),
    "total": ("#SBATCH --gpus=32\n#SBATCH --nodes=4-4\nsrun python {0} $SLURM_GPUS_PER_NODE", "4 nodes of 8"),
}
PROGRAM = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 --vocab-size 1000"
    " --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size"
)


ACCELERATED = {"": "1 node of 8", "--num_machines 2": "2 nodes of 4", "--config_file a.yaml": ""}


@pytest.mark.parametrize("words", ACCELERATED)
def test_accelerate_launches_on_one_machine_unless_a_number_or_a_file_is_given(words, tmp_path):
    (tmp_path / "train.sh").write_text(f"accelerate launch {words} --num_processes 8 {PROGRAM} 4\n")
    text = command("import", "megatron", tmp_path / "train.sh")
    assert f"launched on: {ACCELERATED[words]} GPUs" in text or ("launched" not in text and not ACCELERATED[words])


@pytest.mark.parametrize("name", LAUNCHED)
def test_what_launchers_set_is_known(name, tmp_path):
    script, machine = LAUNCHED[name]
    (tmp_path / "train.sh").write_text(script.format(PROGRAM))
    text = command("import", "megatron", tmp_path / "train.sh")
    assert f"launched on: {machine} GPUs" in text
    assert yaml.safe_load(text)["parallelism"]["tp"] == 8


def matrix(*rows):
    """Return a matrix of nvidia-smi for cells of GPUs, with the CPUs of each."""
    head = "\t" + "\t".join(f"GPU{i}" for i in range(len(rows))) + "\tCPU Affinity"
    return "\n".join([head, *(f"GPU{i}\t" + "\t".join(row.split()) + "\t0-31" for i, row in enumerate(rows))]) + "\n"


@pytest.mark.parametrize("gpu", ["rtx-3090", "l40s"])
def test_a_matrix_says_sockets_and_adapters_whatever_node_the_gpu_has_elsewhere(gpu, tmp_path):
    """Shipped nodes of these GPUs have two CPUs and up to four NICs; two GPUs of one host bridge have neither."""
    (tmp_path / "m.txt").write_text(matrix("X PHB", "PHB X"))
    found = shown(tmp_path / "m.txt", "--gpu", gpu)
    assert (found["gpus"], found["nics"], found["sockets"]) == (2, 0, 1)


def showtopo(joined):
    """Return what rocm-smi --showtopo prints for GPUs of which each pair in `joined` has an XGMI link."""
    head = "       " + "         ".join(f"GPU{i}" for i in range(8)) + "\n"
    weights = head + "".join(
        f"GPU{i}   " + " ".join("0" if i == j else "15" for j in range(8)) + "\n" for i in range(8)
    )
    cells = [["0" if i == j else "XGMI" if joined(i, j) else "PCIE" for j in range(8)] for i in range(8)]
    links = head + "".join(f"GPU{i}   " + "  ".join(row) + "\n" for i, row in enumerate(cells))
    numa = "".join(f"GPU[{i}]\t\t: (Topology) Numa Node: {i // 4}\n" for i in range(8))
    return f"=== Weight between two GPUs ===\n{weights}\n=== Link Type between two GPUs ===\n{links}\n{numa}"


def test_what_rocm_smi_shows_is_read(tmp_path):
    """Eight MI300X, whose pairs all have a link, are as the shipped node; two hives of MI100 (ROCm issue 2499) are islands."""
    (tmp_path / "m.txt").write_text(showtopo(lambda i, j: True))
    assert shown(tmp_path / "m.txt", "--gpu", "mi300x")["sockets"] == 2
    assert bus_bandwidth(tmp_path / "m.txt", "--gpu", "mi300x") == bus_bandwidth("mi300x_8")
    (tmp_path / "h.txt").write_text(showtopo(lambda i, j: i // 4 == j // 4))
    hives = load_topology(tmp_path / "h.txt", {"cluster.gpu": "mi300x"})
    assert (hives.gpus, hives.node.scale_up) == (8, "mesh")
    assert bus_bandwidth(tmp_path / "h.txt", "--gpu", "mi300x") <= 48  # a slot of PCIe 5
    (tmp_path / "p.txt").write_text(showtopo(lambda i, j: False))  # as MI210 without bridges
    slots = load_topology(tmp_path / "p.txt", {"cluster.gpu": "mi300x"})
    assert (slots.node.scale_up, shown(tmp_path / "p.txt", "--gpu", "mi300x")["sockets"]) == ("none", 2)
    (tmp_path / "c.txt").write_text(
        showtopo(lambda i, j: True).partition("Link Type between two")[0] + "Link Type between"
    )
    text = command("show", tmp_path / "c.txt", "--gpu", "mi300x", code=2)
    assert "no row of GPU0; give all that nvidia-smi topo -m or rocm-smi --showtopo prints" in " ".join(text.split())
    (tmp_path / "u.txt").write_text(showtopo(lambda i, j: max(i, j) < 3))
    assert "joins unequal groups of GPUs" in command("show", tmp_path / "u.txt", "--gpu", "mi300x", code=2)


def test_another_gpu_keeps_the_links_of_a_file_that_is_extended(tmp_path):
    """As it does where the file itself is given."""
    (tmp_path / "t.yaml").write_text(f"cluster: {{nodes: 1, node: {{extends: {INPUTS / 's01_bridged_pairs.xml'}}}}}")
    words = ("--gpu", "h100-pcie")
    assert bus_bandwidth(tmp_path / "t.yaml", *words) == bus_bandwidth("s01_bridged_pairs.xml", *words) < 24


@pytest.mark.parametrize("size, low, high", [("32M", 22, 41), ("2G", 37.6, 41.7)])
def test_workstation_blackwell_over_pcie(size, low, high):
    """Eight RTX PRO 6000: 37.6 to 41.7 GB/s of an all-reduce (voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md)."""
    found = command(
        "collective", "all_reduce", "-t", "hgx_h100_8", "--gpu", "rtx-pro-6000", "-b", size, "-e", size, "--json"
    )
    assert low <= found["lines"][0]["busbw_gb_per_s"] <= high


MISTRAL = (
    "{model_type: mistral, hidden_size: 4096, num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8,"
    " intermediate_size: 14336, vocab_size: 32000, max_position_embeddings: 32768, hidden_act: silu, rms_norm_eps: 1.0e-5,"
    " tie_word_embeddings: false, sliding_window: 4096}"
)
LLAMA2_70B = (
    "{model_type: llama, hidden_size: 8192, num_hidden_layers: 80, num_attention_heads: 64, num_key_value_heads: 8,"
    " intermediate_size: 28672, vocab_size: 32000, max_position_embeddings: 4096, hidden_act: silu, rms_norm_eps: 1.0e-5,"
    " tie_word_embeddings: false}"
)
TUNED = (
    "stage: sft\nfinetuning_type: lora\nlora_rank: 16\nlora_target: q_proj,k_proj,v_proj,o_proj\ncutoff_len: 4096\n"
    "per_device_train_batch_size: 4\ngradient_accumulation_steps: 1\nbf16: true\n"
)
ONE_A100 = (
    "cluster: {nodes: 1, node: {gpus: {model: a100-sxm-80gb, count: 1}, scale_up: {kind: none},"
    " host: {cpu: amd, pcie: gen4x16}}}"
)


@pytest.mark.parametrize(
    "model, packed, tokens, gib",
    [
        (MISTRAL, "", 3597, 26.11),
        (MISTRAL, "quantization_bit: 4", 3428, 15.86),
        (LLAMA2_70B, "quantization_bit: 4", 445, 65.0),
    ],
    ids=["lora", "qlora", "qlora-70b"],
)
def test_adapters_on_one_gpu(model, packed, tokens, gib, tmp_path):
    """foundation-model-stack/fms-acceleration PR 14, issue 12: A100, 4 sequences of 4096 tokens, bitsandbytes."""
    (tmp_path / "config.json").write_text(json.dumps(yaml.safe_load(model)))
    (tmp_path / "f.yaml").write_text(TUNED + packed)
    (tmp_path / "t.yaml").write_text(ONE_A100)
    given = ("--model", tmp_path / "config.json", "--gpus", "1", "-o", tmp_path / "w.yaml")
    command("import", "llama-factory", tmp_path / "f.yaml", *given)
    found = run(tmp_path / "t.yaml", tmp_path / "w.yaml")
    assert 4 * 4096 / found["step_time_s"] == pytest.approx(tokens, rel=0.10)
    assert found["memory"]["peak_bytes"] / 2**30 == pytest.approx(gib, rel=0.06)


def test_a_matrix_pasted_as_a_markdown_table_is_read(tmp_path):
    """Six RTX 4090 (NVIDIA/nccl issue 814)."""
    near = {(0, 1), (1, 0), (3, 4), (4, 3)}
    rows = ["X" if i == j else "PHB" if (i, j) in near else "SYS" for i in range(6) for j in range(6)]
    lines = [" | ".join([f"GPU{i}", *rows[6 * i : 6 * i + 6], "0-63"]) for i in range(6)]
    head = "  | " + " | ".join(f"GPU{i}" for i in range(6)) + " | CPU Affinity\n" + " | ".join(["--"] * 8)
    (tmp_path / "m.txt").write_text("\n".join([head, *lines]))
    assert shown(tmp_path / "m.txt", "--gpu", "rtx-4090")["gpus"] == 6


@pytest.mark.parametrize("nodes, measured", [("8", 232.54), ("16", 86)])
def test_two_nodes_of_a100_with_four_adapters(nodes, measured, tmp_path):
    """NVIDIA/nccl-tests issue 175, in which 86 GB/s are below the 100 that its NICs of 200 Gb/s carry."""
    node = "{extends: hgx-a100, nics: {count: 4, rate: 200Gb/s, attach: shared}}"
    (tmp_path / "t.yaml").write_text(f"cluster: {{nodes: 2, node: {node}}}\nfabric: {{kind: fat_tree, radix: 40}}\n")
    assert bus_bandwidth(tmp_path / "t.yaml", "-g", nodes) == pytest.approx(measured, rel=0.15)


def test_a_key_is_first_one_of_its_own_section(tmp_path):
    """offload.optimizer means offload.optimizer_states, and not training.optimizer."""
    (tmp_path / "w.yaml").write_text("model: {layers: 2}\ntraining: {offload: {optimizer: true}}\n")
    said = command("run", "hgx_h100_8", tmp_path / "w.yaml", code=2)
    assert "unknown key 'optimizer'; did you mean 'optimizer_states'?" in said


def test_one_head_of_keys_and_values_in_bigcodes_fork(tmp_path):
    """bigcode-project/Megatron-LM PR 42: --attention-head-type multiquery, launched by variables in a string for bash."""
    (tmp_path / "train.sh").write_text(
        "#SBATCH --nodes=16 --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\nGPUS_PER_NODE=8\nNNODES=$SLURM_NNODES\n"
        f'CMD=" {PROGRAM} 2 --attention-head-type multiquery"\n'
        'export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"\n'
        'clear; srun --wait=60 --jobid $SLURM_JOB_ID bash -c "$LAUNCHER --role \\$SLURMD_NODENAME: $CMD" 2>&1 | tee log\n'
    )
    text = command("import", "megatron", tmp_path / "train.sh")
    assert "launched on: 16 nodes of 8 GPUs" in text
    assert yaml.safe_load(text)["model"]["kv_heads"] == 1


def test_gpus_without_peer_to_peer_are_written_for_ns3_and_read_again(tmp_path):
    """Their slot is that of the shipped node, PCIe 5 for an RTX 5090, although its SMs are laid out as Ada's."""
    command("show", "s14_rtx5090_8.yaml", "--export", "ns3", tmp_path / "one.txt")
    command("show", tmp_path / "one.txt", "--export", "ns3", tmp_path / "two.txt")
    assert (tmp_path / "one.txt").read_text() == (tmp_path / "two.txt").read_text()


def test_servers_of_several_sizes_are_not_written_for_ns3(tmp_path):
    """A header of SimAI has one number of GPUs per server; the format that the error names is accepted."""
    said = command("show", "s16_gh200_and_nvl72.yaml", "--export", "ns3", tmp_path / "one.txt", code=2)
    assert "one number of GPUs for all servers, and these nodes differ; write graphml" in said
    command("show", "s16_gh200_and_nvl72.yaml", "--export", "graphml", tmp_path / "one.graphml")


@pytest.mark.parametrize("optimizer, gigabytes", [("adam", 54), ("adam8bit", 40.5)])
def test_bf16_weights_gradients_and_moments_on_one_gpu(optimizer, gigabytes, tmp_path):
    """Llama 2 7B in bf16 with AdamW and AdamW8bit (meta-pytorch/torchtune PR 389), without PyTorch's and CUDA's own memory."""
    moments = "" if optimizer == "adam8bit" else "moments: bf16, "
    (tmp_path / "t.yaml").write_text(ONE_A100)
    (tmp_path / "w.yaml").write_text(
        "name: llama2-7b\nmodel: {layers: 32, hidden: 4096, heads: 32, ffn: 11008, vocab: 32000, norm: rmsnorm,"
        " activation: swiglu, positions: rotary, bias: false, tied_embeddings: false}\n"
        "training: {global_batch: 2, micro_batch: 2, seq: 512, framework: pytorch, kernels: eager, recompute: full,"
        f" optimizer: {optimizer}, main_params: bf16, {moments}gradients: bf16, cross_entropy: eager}}\n"
        "parallelism: {dp: 1}\n"
    )
    found = run(tmp_path / "t.yaml", tmp_path / "w.yaml")["memory"]
    own = found["by_pipeline_rank"][0]["framework_bytes"]
    assert (found["peak_bytes"] - own) / 1e9 == pytest.approx(gigabytes, rel=0.03)


def test_a_terabyte_of_host_memory_is_too_little_for_70b(tmp_path):
    """axolotl-ai-cloud/axolotl issue 1439: all of Llama 2 70B on eight A100, ZeRO-3 with all on the host, 1,024 GB."""
    cpu = {"device": "cpu"}
    zero = {"stage": 3, "offload_optimizer": cpu, "offload_param": cpu}
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}))
    (tmp_path / "a.yaml").write_text(
        "sequence_len: 4096\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\noptimizer: adamw_torch\nbf16: true\n"
        "gradient_checkpointing: true\nflash_attention: true\ndeepspeed: ds.json\n"
    )
    (tmp_path / "config.json").write_text(json.dumps(yaml.safe_load(LLAMA2_70B)))
    given = ("--model", tmp_path / "config.json", "--gpus", "8", "-o", tmp_path / "w.yaml")
    command("import", "axolotl", tmp_path / "a.yaml", *given)
    words = ("run", "hgx_h100_8", tmp_path / "w.yaml", "--gpu", "a100", "--set", "cluster.node.host.memory=1024GB")
    said = command(*words, code=2)
    assert "of host memory and has" in said and "host.memory" in said
    assert run(*words[1:-1], "cluster.node.host.memory=1.5TB")["step_time_s"] > 0  # as the remedy says


def test_long_products_of_a_die_of_mi250x_are_no_faster_than_searches_found():
    """stas00/ml-engineering, compute/accelerator: 147 TFLOP/s of one die in bf16 at best; its issue 76: 127 on another."""
    found = command("kernels", "llama3_8b", "--gpu", "mi250x", "--json")["kernels"]
    speeds = [row["flop"] / row["seconds"] / 1e12 for row in found if row["kind"] == "linear" and row["flop"] > 5e11]
    assert speeds and max(speeds) < 147
    assert max(speeds) > 110


def test_rotary_positions_have_no_learned_ones_to_leave_out(tmp_path):
    """flagos-ai/FlagScale, examples/aquila/conf/train: both arguments, as in scripts of Megatron-LM."""
    given = yaml.safe_load((INPUTS / "s06_offload.yaml").read_text())
    given["model"].pop("positions", None)
    given |= {"use_rotary_position_embeddings": True, "no_position_embedding": True}
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(given))
    assert load(tmp_path / "w.yaml").model.positions == "rotary"
    del given["use_rotary_position_embeddings"]
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(given))
    assert "write position_embedding_type: none" in command("run", "hgx_h100_8", tmp_path / "w.yaml", code=2)
