"""Execution traces of Chakra, read back by a reader of its own; `test_chakra_import` plays them to the end."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import NamedTuple

import output_cases
import pytest
from protobuf import fields, varint_at, varints

from clustersim.config.yaml import parse
from clustersim.convert.chakra import encoded
from clustersim.engine.compile import families_of
from clustersim.parallel.load import build as build_workload
from clustersim.report.chakra import RankTrace, group_ranks
from clustersim.simulation import StepResult, run
from clustersim.topology.build import build as build_topology

COMP, SEND, RECV, COLL = 4, 5, 6, 7


def read(data):
    """Return the nodes of a file as mappings, after a look at its version."""
    at, found = 0, []
    while at < len(data):
        size, at = varint_at(data, at)
        found.append(data[at : at + size])
        at += size
    assert dict(fields(found[0])) == {1: b"0.0.4"}
    return [node(message) for message in found[1:]]


def plain(value, place):
    """Return the value of an attribute: doubles stand at place 3, texts are the other bytes."""
    if isinstance(value, bytes):
        return struct.unpack("<d", value)[0] if place == 3 else value.decode()
    return value


def node(message):
    one = {"deps": [], "duration": 0}
    names = {1: "id", 3: "type", 7: "duration"}
    for number, value in fields(message):
        if number in names:
            one[names[number]] = value
        elif number == 2:
            one["name"] = value.decode()
        elif number == 5:
            one["deps"] += varints(value)
        elif number == 10:
            attribute = dict(fields(value))
            [place] = [place for place in (3, 7, 9, 13, 27, 29) if place in attribute]
            one[attribute[1].decode()] = plain(attribute[place], place)
    return one


CASES = {
    "pipeline": {"parallelism.tp": 2, "parallelism.pp": 4, "training.clip_gradients": True},
    "overlap": {
        "parallelism.tp": 4,
        "parallelism.pp": 2,
        "parallelism.overlap.p2p": True,
        "parallelism.overlap.grad_reduce": True,
    },
    "interleaved": {"parallelism.pp": 4, "parallelism.vpp": 2, "parallelism.schedule": "interleaved"},
    "zero 1": {"parallelism.tp": 8, "parallelism.zero": 1, "training.global_batch": 16},
    "encoder": {"model.encoder_layers": 8, "training.encoder_seq": 256, "parallelism.pp": 4},
}


class Exported(NamedTuple):
    nodes: dict[int, list[dict]]
    groups: dict[str, list[int]]
    result: StepResult


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def exported(request):
    cluster = output_cases.NODES.replace("nodes: 4", "nodes: 2")
    result = run(build_topology(parse(cluster)), build_workload(parse(output_cases.JOB), request.param))
    families = families_of(result.work, result.topology)
    traces = {
        rank: read(encoded(RankTrace(result.plan, rank, families).written())) for rank in range(result.job.mesh.size)
    }
    return Exported(traces, group_ranks(families), result)


def test_nodes_come_after_what_they_need_and_compute_as_long_as_forecast(exported):
    for nodes in exported.nodes.values():
        assert [one["id"] for one in nodes] == list(range(1, len(nodes) + 1))
        assert all(0 < dep < one["id"] for one in nodes for dep in one["deps"])
    for rank, parts in zip(exported.result.plan.first.tolist(), exported.result.parts, strict=True):
        nodes = [one for one in exported.nodes[rank] if one["type"] == COMP]
        took = sum(one["duration"] for one in nodes) / 1e6
        assert took == pytest.approx(parts["compute"] + parts["optimizer"], abs=1e-6 * len(nodes) + 1e-4)


def test_what_microseconds_round_stands_beside_them(exported):
    nodes = [one for nodes in exported.nodes.values() for one in nodes if one["type"] == COMP]
    assert all(abs(one["seconds"] - one["duration"] / 1e6) <= 0.5e-6 for one in nodes)
    assert any(one["seconds"] != one["duration"] / 1e6 for one in nodes)


def test_a_rank_puts_its_shard_into_an_all_gather_and_the_whole_into_the_others(exported):
    """As Chakra's converter counts, and ASTRA-sim's Ring.cc: `msg_size = data_size` of all-gathers, / n of others."""
    ops = {0: "all_reduce", 2: "all_gather", 7: "reduce_scatter"}
    known = exported.result.plan.network.plans
    for one in (one for nodes in exported.nodes.values() for one in nodes if one["type"] == COLL):
        op, n = ops[one["comm_type"]], len(exported.groups[one["pg_name"]])
        whole = one.get("bytes", one["comm_size"]) * (n if op == "all_gather" else 1)
        assert any(whole == pytest.approx(call.size) for call in known if (call.group, call.op) == (one["pg_desc"], op))


def test_the_command_writes_a_file_a_rank_and_the_groups(call):
    code, _, err = call(
        "run", "hgx_h100_8", "gpt2_large", "--tp", "2", "--predictor", "roofline", "--out", "r", "--quiet"
    )
    assert (code, err) == (0, "")
    code, out, err = call("export", "chakra", "r", "--out", "et", "--ranks", "0,3-4")
    assert (code, out, err) == (0, "3 execution traces written to et/\n", "")
    assert sorted(path.name for path in Path("et").iterdir()) == [
        "comm_groups.json",
        *(f"step.{r}.et" for r in (0, 3, 4)),
    ]
    assert {one["type"] for one in read(Path("et/step.3.et").read_bytes())} == {COMP, COLL}
    assert sorted(json.loads(Path("et/comm_groups.json").read_text()).values())[0][0] == 0


def test_a_folder_that_has_something_is_left_alone(call):
    Path("et").mkdir()
    Path("et/mine").write_text("x")
    code, out, err = call("export", "chakra", "r", "--out", "et")
    assert (code, out) == (2, "")
    assert err == "clustersim: --out et: is there and not an empty folder; choose a new one\n"
