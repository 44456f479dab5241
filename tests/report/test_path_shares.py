"""The critical path by stream, link and rank: every cut adds up to the step, and what is slow is named."""

from __future__ import annotations

import math

import output_cases
import pytest
from summary_cases import simulate

from clustersim.report.path_shares import COMPUTING, SHARING

FAULTY = output_cases.NODES + "faults:\n"


def seconds(rows):
    return math.fsum(row["path_s"] for row in rows)


@pytest.mark.parametrize("name", output_cases.SPLITS)
def test_every_cut_adds_up_to_the_step(name):
    summary = output_cases.simulate(name).summary
    step, path = summary["step_time_s"], summary["critical_path"]
    kinds, streams = (math.fsum(cut.values()) for cut in (summary["critical_path_s"], path["by_stream_s"]))
    for total in (kinds, streams, seconds(path["by_link"]), seconds(path["by_rank"])):
        assert total == pytest.approx(step, rel=1e-12)
    assert min(row["path_s"] for row in (*path["by_link"], *path["by_rank"])) > 0


def test_communication_by_stream_is_that_by_kind():
    summary = output_cases.simulate("tensor parallel").summary
    kinds, streams = summary["critical_path_s"], summary["critical_path"]["by_stream_s"]
    assert streams["tp"] == pytest.approx(kinds["tp"], rel=1e-12)
    sends = sum(s for name, s in streams.items() if name.startswith("p2p"))
    assert sends == pytest.approx(kinds["pp"], rel=1e-12)


def test_a_slow_nic_stands_alone_and_first_among_links():
    sound = simulate().summary["critical_path"]["by_link"]
    rows = simulate(FAULTY + "- {link: 'nic[3]', rate: 2GB/s}\n").summary["critical_path"]["by_link"]
    assert not any(row.get("slow") for row in sound)
    first = next(row for row in rows if row["link"])
    assert (first["link"], first["slow"], first["from"]) == ("nic-up[3]", True, "node 0 NIC 3")
    assert first["capacity_bytes_per_s"] == 2e9
    assert seconds(rows) > seconds(sound)


def test_a_straggler_is_the_first_rank():
    summary = simulate(FAULTY + "- {gpu: 5, slowdown: 3}\n").summary
    rows, kinds = summary["critical_path"]["by_rank"], summary["critical_path_s"]
    assert rows[0]["rank"] == 5
    assert rows[0]["path_s"] == pytest.approx(kinds["compute"] + kinds["optimizer"], rel=1e-9)


@pytest.mark.parametrize(("up", "shared"), [(1, True), (2, False)])
def test_what_transfers_take_from_each_other_stands_apart(up, shared):
    """Two nodes a leaf: with one cable a NIC pair upwards the rings of both share it."""
    cluster = output_cases.NODES.replace("up: 1", f"up: {up}")
    rows = simulate(cluster, parallelism__tp=4, parallelism__pp=2).summary["critical_path"]["by_link"]
    whats = {row["what"] for row in rows if not row["link"]}
    assert COMPUTING in whats
    assert (SHARING in whats) == shared


def test_a_slower_type_of_node_is_no_slow_link():
    from clustersim.simulation import simulate as forecast

    rows = forecast("topologies/mixed_h100_b200_64.yaml", "workloads/llama3_70b.yaml", engine="auto").summary[
        "critical_path"
    ]
    assert not any(row.get("slow") for row in rows["by_link"])
