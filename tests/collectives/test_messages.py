"""A message of a step takes what `clustersim collective send` says, in the communicator in which NCCL sends it."""

import csv
import os
from itertools import pairwise
from math import fsum
from pathlib import Path

import numpy as np
import pytest
from engine_cases import cluster, job, simulate

from clustersim.collectives.nccl import table
from clustersim.collectives.nccl.p2p import COPIED, SLOWER
from clustersim.config.yaml import parse
from clustersim.engine.compile import families_of
from clustersim.simulation import run
from clustersim.topology.build import build

MIB = 1 << 20
LARGE = {"training__seq": 4096, "model__hidden": 2048, "model__layers": 16}  # messages of 16 MiB
VERSIONS = ("2.18", "2.21", "2.30")


def of_release(version, nodes, gpus):
    return cluster(nodes, gpus=gpus, nics=gpus, extra=f'nccl: {{version: "{version}"}}')


def seconds(result):
    """Return what messages take on an idle fabric, by the two ranks."""
    found = {}
    for call in (one for one in result.plan.network.plans if one.op == "send"):
        pairs = families_of(result.work, result.topology)[call.group].tolist()
        for ranks, cell in zip(pairs, result.plan.network.cells.groups[call.group].of, strict=True):
            flows = result.plan.network.flows(call)[int(cell)]
            found[tuple(ranks)] = call.size, fsum(flow.idle for flow in flows)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 1), (4, 1), (16, 1), (1, 4), (2, 4)])
def test_a_message_beside_passes_takes_what_the_command_says_of_its_two_ranks(version, nodes, gpus):
    split = {"parallelism__pp": nodes * gpus, "parallelism__overlap__p2p": True, **LARGE}
    found = seconds(simulate(of_release(version, nodes, gpus), **split))
    assert len(found) == 2 * (nodes * gpus - 1)
    for ranks, (size, took) in found.items():
        line = table.line(of_release(version, nodes, gpus), np.array(sorted(ranks)), "send", int(size))
        assert took == pytest.approx(line.time, rel=1e-12), ranks


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("nodes", "gpus"), [(4, 1), (16, 1), (1, 4)])
def test_a_message_that_is_waited_for_takes_what_the_command_says_of_its_pipeline(version, nodes, gpus):
    found = seconds(simulate(of_release(version, nodes, gpus), parallelism__pp=nodes * gpus, **LARGE))
    for size, took in found.values():
        line = table.line(of_release(version, nodes, gpus), np.arange(nodes * gpus), "send", int(size))
        assert took == pytest.approx(line.time, rel=1e-12)


def test_larger_steps_let_a_channel_carry_what_it_copies():
    ranks, rates = np.array([0, 4]), []
    for chunk in ("128KiB", "512KiB", "2MiB"):
        two = cluster(2, gpus=4, nics=4, extra=f'nccl: {{version: "2.21", p2p_chunk: {chunk}}}')
        rates.append([table.line(two, ranks, "send", size).time for size in (64 * MIB, 128 * MIB)])
    carried = [64 * MIB / (large - small) for small, large in rates]
    assert carried[0] == pytest.approx(2 * SLOWER)
    assert carried == sorted(carried)
    assert carried[-1] == pytest.approx(2 * COPIED, rel=0.03)


def test_releases_of_nccl_differ_in_the_messages_of_a_step():
    """Two channels of 14 GB/s up to 2.19, one where ranks are many up to 2.28, as many as the NIC needs later."""
    rates = []
    for version in VERSIONS:
        node = "{extends: hgx-h100, gpus: {model: h100-sxm, count: 1}, nics: {count: 1, rate: 400Gb/s}}"
        text = f'cluster: {{nodes: 16, node: {node}}}\nfabric: {{kind: switch}}\nnccl: {{version: "{version}"}}\n'
        found = run(build(parse(text)), job(parallelism__pp=16, **LARGE), ignore_memory=True)
        rates += [next(iter(own.values())).rate for call, own in found.plan.network.plans.items() if call.op == "send"][
            :1
        ]
    assert rates == [2 * SLOWER, SLOWER, 2 * SLOWER]


@pytest.mark.parametrize("overlap", [True, False])
def test_neighbours_in_a_node_and_on_two_are_told_apart_folded_and_not(overlap):
    """Two stages a node: every other message stays inside, by as many channels as its communicator has."""
    split = {"parallelism__pp": 8, "parallelism__overlap__p2p": overlap, **LARGE}
    folded, whole = (simulate(of_release("2.30", 4, 2), fold=fold, **split) for fold in (True, False))
    assert folded.record.end == pytest.approx(whole.record.end, rel=1e-9)
    found = seconds(folded)
    near, far = (
        [took for ranks, (_, took) in found.items() if (ranks[0] // 2 == ranks[1] // 2) is own] for own in (True, False)
    )
    assert max(near) < min(far)
    rate = 16 * MIB / (max(near) - 13e-6)
    assert rate == pytest.approx(16 * COPIED if overlap else 4 * COPIED, rel=0.01)


def test_more_ranks_never_have_more_channels():
    for version in VERSIONS:
        topology = build(
            parse(f'cluster: {{nodes: 32, node: hgx-h100}}\nfabric: {{kind: switch}}\nnccl: {{version: "{version}"}}\n')
        )
        for each in (1, 2, 4, 8):
            ranks = [(np.arange(nodes)[:, None] * 8 + np.arange(each)).ravel() for nodes in (2, 4, 8, 16, 32)]
            channels = [table.line(topology, one, "send", 256 * MIB).choice.channels for one in ranks]
            assert all(a >= b for a, b in pairwise(channels))


@pytest.mark.parametrize(
    ("nodes", "each", "channels", "gbps"),
    [(2, 1, 4, 39.7), (2, 8, 4, 43.1), (10, 1, 2, 24.9), (10, 2, 2, 25.2), (10, 4, 2, 26.2), (10, 8, 1, 15.2)],
)
def test_channels_of_a_cluster_that_was_measured(nodes, each, channels, gbps):
    """xxrjun/nccl-tests-cluster, NCCL 2.29.2, 10 nodes of 8 H100, 16 GiB: 10 to 15 GB/s a channel, where NCCL counts on 14."""
    topology = build(
        parse(f'cluster: {{nodes: {nodes}, node: hgx-h100}}\nfabric: {{kind: switch}}\nnccl: {{version: "2.29"}}\n')
    )
    ranks = (np.arange(nodes)[:, None] * 8 + np.arange(each)).ravel()
    line = table.line(topology, ranks, "send", 16384 * MIB)
    assert line.choice.channels == channels
    assert line.busbw / 1e9 == pytest.approx(gbps, rel=0.22)


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("CLUSTERSIM_DATA"), reason="$CLUSTERSIM_DATA names no folder of measured tables")
def test_all_rows_of_that_cluster():
    with (Path(os.environ["CLUSTERSIM_DATA"]) / "collectives" / "collectives_clusters.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["op"] == "sendrecv"]
    errors = []
    for row in rows:
        nodes, gpus = int(row["nodes"]), int(row["gpus"])
        fabric = "fabric: {kind: switch}" if nodes > 1 else ""
        topology = build(parse(f'cluster: {{nodes: {nodes}, node: hgx-h100}}\n{fabric}\nnccl: {{version: "2.29"}}\n'))
        ranks = (np.arange(nodes)[:, None] * 8 + np.arange(gpus // nodes)).ravel()
        line = table.line(topology, ranks, "send", int(row["size_bytes"]), float(row["time_us"]) * 1e-6)
        errors.append(abs(line.error))
    assert len(errors) == 44
    assert fsum(errors) / len(errors) < 0.1
    assert max(errors) < 0.2
