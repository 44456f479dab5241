"""Why a step is slow: what-ifs are runs of changed files, the guilty part comes first, results say what they were asked."""

from __future__ import annotations

import json
import re
import shlex

import output_cases
import pytest

from clustersim.config.shipped import find
from clustersim.explain.explanation import explained
from clustersim.optimization.neighbours import what_ifs
from clustersim.question import StepQuestion
from clustersim.simulation import Simulator
from clustersim.simulation import simulate as forecast

FAULTS = """\
faults:
- {link: 'nic[3]', rate: 4GB/s}
- {gpu: 5, slowdown: 1.3}
- {link: 'leaf-up[1]', rate: 30GB/s}
"""
JOB = output_cases.JOB.replace("predictor: roofline", "") + "predictor: roofline\n"
SPLIT = {
    "parallelism.tp": 4,
    "parallelism.pp": 2,
    "parallelism.zero": 1,
    "training.recompute": "full",
    "training.framework": "megatron-2020",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    (folder / "cluster.yaml").write_text(output_cases.NODES + FAULTS)
    (folder / "job.yaml").write_text(JOB)
    return folder / "cluster.yaml", folder / "job.yaml"


@pytest.fixture(scope="module")
def found(files):
    return explained(StepQuestion(*files, SPLIT))


def test_every_what_if_is_the_run_of_the_changed_files(files, found):
    made = [one for one in found.outcomes if one.changes and one.step_time is not None]
    names = {one.name for one in made}
    assert {
        "host twice as fast",
        "NIC × 2",
        "NVLink × 2",
        "recompute none",
        "all overlap on",
        "tp 8",
        "tp 8, pp 1",
    } <= names
    assert sum(name.startswith("micro batch ") for name in names) >= 1
    assert sum(name.startswith("healed: ") for name in names) == 3
    for one in made:
        step = forecast(*files, {**SPLIT, **one.changes}).record.end
        assert one.step_time == pytest.approx(step, rel=1e-12), one.name


def test_what_ifs_stand_by_what_they_gain_and_those_without_a_step_last(found):
    times = [(not one.changes, one.step_time) for one in found.outcomes if one.step_time is not None]
    assert times == sorted(times), "what no file can say comes behind what can be had"
    assert [one.step_time for one in found.outcomes[len(times) :]] == [None] * (len(found.outcomes) - len(times))


def test_the_flags_beside_a_what_if_make_it(files, call):
    options = [word for key, value in SPLIT.items() for word in ("--set", f"{key}={value}")]
    code, out, err = call("run", *map(str, files), *options, "--why", "--json", "--no-save")
    assert (code, err) == (0, "")
    rows = [one for one in json.loads(out)["why"]["what_ifs"] if one["run"]]
    assert rows
    for one in rows[:3]:
        code, out, err = call(*shlex.split(one["run"])[1:], "--json", "--no-save")
        assert (code, err) == (0, "")
        assert json.loads(out)["step_time_s"] == one["step_time_s"]


def test_what_cannot_be_had_says_why(files):
    alone = StepQuestion(
        find("topologies", "neusight_1"), find("workloads", "gpt2_large"), {"training.global_batch": 8}
    )
    outcomes = explained(alone).outcomes
    why = {one.name: one.reason for one in outcomes if one.step_time is None}
    assert "no training.framework" in why["host twice as fast"]
    assert "one node" in why["NIC × 2"]
    assert not any("recompute none" in one.name or "schedule" in one.name for one in outcomes), "it is so already"
    tight = StepQuestion(
        *files, {**SPLIT, "model.hidden": 8192, "training.seq": 8192, "model.max_positions": 8192, "model.layers": 24}
    )
    tight = tight.changed({"training.recompute": "full", "training.micro_batch": 16, "training.framework": None})
    [off] = [one for one in explained(tight).outcomes if one.name == "recompute none"]
    assert off.step_time is None
    assert re.match(
        r"does not fit: parallelism: pipeline rank [01] needs [0-9.]+ GiB and h100-sxm has 79.6 GiB", off.reason
    )


def test_a_nic_gets_the_slot_that_it_needs(files):
    [nic] = [
        one
        for one in what_ifs(StepQuestion(*files).document, StepQuestion(*files).job.place(32, 8))
        if one.name == "NIC × 2"
    ]
    assert nic.changes["cluster.nic"] == "800Gb/s"
    assert nic.changes["cluster.node.host.pcie"] == "gen6x16"


MIXED = """\
cluster: {name: mixed, pools: [{nodes: 2, node: hgx-h100}, {nodes: 1, node: hgx-h100}, {nodes: 1, node: NODE}]}
fabric: {kind: fat_tree, rails: optimized, radix: 16, link: {rate: 400Gb/s}}
nodes:
  slow_nics: {extends: hgx-h200, nics: {rate: 200Gb/s}}
"""


@pytest.mark.parametrize("node", ["hgx-b200", "slow_nics"])
def test_what_ifs_of_a_mixed_cluster_change_every_type_of_node(files, tmp_path, node):
    (tmp_path / "mixed.yaml").write_text(MIXED.replace("NODE", node))
    asked = tmp_path / "mixed.yaml", files[1]
    outcomes = {one.name: one for one in explained(StepQuestion(*asked, SPLIT)).outcomes}
    for name in ("host twice as fast", "NIC × 2", "NVLink × 2"):
        one = outcomes[name]
        assert {key.split(".")[2] for key in one.changes if key.startswith("cluster.pools")} >= {"0", "1", "2"}
        assert one.step_time == pytest.approx(forecast(*asked, {**SPLIT, **one.changes}).record.end, rel=1e-12)
        assert one.step_time <= forecast(*asked, SPLIT).record.end
    assert ("cluster.nic" in outcomes["NIC × 2"].changes) == (node == "hgx-b200")


@pytest.mark.parametrize(("cluster", "taken"), [("dragonfly_132", False), ("superpod_h100_128", True)])
def test_only_fabrics_with_leaves_are_tried_with_fewer_uplinks(cluster, taken):
    asked = StepQuestion(find("topologies", cluster), find("workloads", "gpt2_large"), {})
    job = Simulator(asked.cluster).placed(asked.job)
    assert any(one.name == "leaves 4 : 1" for one in what_ifs(asked.document, job)) == taken


def test_a_bottleneck_that_nccl_reads_its_rates_from_is_the_what_if_of_faster_ones(tmp_path):
    """Also on a mixed cluster, whose older nodes have slower links that are no fault."""
    (tmp_path / "mixed.yaml").write_text(MIXED.replace("NODE", "hgx-b200"))
    split = {"parallelism.tp": 4, "parallelism.pp": 2, "training.global_batch": 32}
    found = explained(StepQuestion(tmp_path / "mixed.yaml", find("workloads", "gpt2_large"), split))
    steps = {one.name: one.step_time for one in found.outcomes}
    by_tier = {one.share["link"].partition("-")[0]: one for one in found.bottlenecks}
    assert by_tier["nvlink"].what_if == "NVLink × 2"
    assert found.bottlenecks[0].step_time < found.step_time
    for one in found.bottlenecks:
        assert not one.share["slow"]
        assert one.what_if in ("NVLink × 2", "NIC × 2")
        assert one.step_time == steps[one.what_if]


def test_a_link_that_the_rates_of_nccl_follow_is_the_bottleneck_though_it_is_never_full():
    """NCCL's own rate holds tensor-parallel traffic below what NVLinks would carry, and rises with them."""
    found = explained(StepQuestion(find("topologies", "superpod_h100_128"), find("workloads", "llama3_70b"), {}))
    faster = next(one for one in found.outcomes if one.name == "NVLink × 2")
    first = found.bottlenecks[0]
    assert first.share["link"] == "nvlink-up[0]"
    assert (first.what_if, first.step_time) == ("NVLink × 2", faster.step_time)
    assert first.share["links"] == 2 * 1024
    assert [one.step_time for one in found.bottlenecks] == sorted(one.step_time for one in found.bottlenecks)


def test_what_ifs_are_the_neighbourhood_of_the_search_and_free_ones_are_marked():
    """Each split, schedule and overlap next to the job's that its framework can run, besides hardware with its price."""
    asked = StepQuestion(find("topologies", "fattree_3840"), find("workloads", "gpt3"), {})
    found = explained(asked)
    first, step = found.outcomes[0], found.step_time
    assert (first.name, first.free) == ("schedule zero_bubble", True)
    assert first.step_time < 0.85 * step
    names = {one.name: one for one in found.outcomes}
    assert {
        "tp 4",
        "pp 8",
        "tp 4, pp 32",
        "cp 2",
        "zero 1",
        "recompute full",
        "micro batch 2",
        "NIC ÷ 2",
    } <= names.keys()
    assert names["NIC × 2"].usd > 0 > names["NIC ÷ 2"].usd
    assert all(
        one.free == (not any(key.startswith(("cluster", "fabric", "faults")) for key in one.changes))
        for one in found.outcomes
        if one.changes
    )


GUILTY = """\
cluster: {name: faulty-512, nodes: 64, node: hgx-h100}
fabric:
  kind: fat_tree
  rails: optimized
  tiers: [{name: leaf, down: 32, up: 32}, {name: spine, radix: 64}]
  link: {rate: 400Gb/s}
faults:
- {gpu: 77, slowdown: 1.02}
- {link: 'leaf-up[3]', rate: 600GB/s}
- {link: 'nic[137]', rate: 6GB/s}
- {link: 'nic[300]', rate: 40GB/s}
"""


def test_the_guilty_nic_of_512_gpus_is_named_first(files, tmp_path, call):
    split = "--tp", "8", "--pp", "2", "--global-batch", "512"
    (tmp_path / "faulty.yaml").write_text(GUILTY)
    out = str(tmp_path / "result")
    code, _, err = call("run", str(tmp_path / "faulty.yaml"), str(files[1]), *split, "--out", out, "-q")
    assert (code, err) == (0, "")
    code, text, err = call("explain", out)
    assert (code, err) == (0, "")
    lines = text.splitlines()
    [bottleneck] = [line for line in lines if line.startswith("  bottleneck")]
    assert "nic-up[137] (node 17 NIC 1 to leaf[1], slow at 6 GB/s)" in bottleneck
    first = lines[lines.index(next(line for line in lines if line.startswith("what if"))) + 1]
    assert first.startswith("  healed: nic[137] at 6 GB/s ")
    assert len(lines[: lines.index("")]) <= 12
