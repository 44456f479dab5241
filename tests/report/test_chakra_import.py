"""Traces of Chakra played on a cluster: as long as the step that was exported, and by hand; what is no trace is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import output_cases
import pytest

from clustersim.config.yaml import parse
from clustersim.convert.chakra import NodeType, TraceNode, TraceSet, decoded, encoded
from clustersim.engine.chakra import replay_tasks
from clustersim.engine.compile import families_of
from clustersim.engine.replay import replay
from clustersim.errors import InputError
from clustersim.parallel.load import build as build_workload
from clustersim.report.chakra import RankTrace, group_ranks
from clustersim.report.replay import facts, lines
from clustersim.report.terminal import PLAIN
from clustersim.simulation import run
from clustersim.topology.build import build as build_topology

NODES = output_cases.NODES.replace("nodes: 4", "nodes: 2")
STRAGGLER = NODES + "faults: [{gpu: 3, slowdown: 1.5}]\n"
CASES = {
    "pipeline": (NODES, {"parallelism.tp": 2, "parallelism.pp": 4, "training.clip_gradients": True}),
    "overlap": (NODES, {"parallelism.tp": 4, "parallelism.pp": 2, "parallelism.overlap.p2p": True}),
    "interleaved": (NODES, {"parallelism.pp": 4, "parallelism.vpp": 2, "parallelism.schedule": "interleaved"}),
    "zero 1": (NODES, {"parallelism.tp": 8, "parallelism.zero": 1, "training.global_batch": 16}),
    "encoder": (NODES, {"model.encoder_layers": 8, "training.encoder_seq": 256, "parallelism.pp": 4}),
    "zero 3": (NODES, {"parallelism.zero": 3, "training.global_batch": 32}),
    "host that is late": (NODES, {"parallelism.pp": 4, "training.framework": "nanotron"}),
    "asynchronous tensor parallelism": (NODES, {"parallelism.tp": 2, "parallelism.overlap.tp": "async"}),
    "straggler": (STRAGGLER, {"parallelism.pp": 2}),
}


def exported(cluster, change):
    result = run(build_topology(parse(cluster)), build_workload(parse(output_cases.JOB), change))
    families = families_of(result.work, result.topology)
    nodes = [
        list(decoded(encoded(RankTrace(result.plan, rank, families).written()), "step"))
        for rank in range(result.job.mesh.size)
    ]
    return result, TraceSet("step", nodes, {name: tuple(ranks) for name, ranks in group_ranks(families).items()})


@pytest.mark.parametrize(("cluster", "change"), CASES.values(), ids=CASES)
def test_a_step_that_is_exported_and_imported_takes_as_long_for_the_same_reasons(cluster, change):
    result, traces = exported(cluster, change)
    asked = replay_tasks(traces, result.topology)
    found = replay(result.topology, asked)
    assert found.end == pytest.approx(result.record.end, rel=1e-9)
    assert len(found.plan.first) <= 2 * len(result.plan.first)
    summary = facts(result.topology, traces, asked, found)
    assert sum(summary["critical_path_s"].values()) == pytest.approx(found.end, rel=1e-9)
    assert sum(summary["breakdown_s"].values()) == pytest.approx(found.end, rel=1e-9)
    for part, seconds in result.summary["breakdown_s"].items():
        assert summary["breakdown_s"].get(part, 0.0) == pytest.approx(seconds, abs=0.02 * found.end)
    assert lines(summary, PLAIN)


def test_every_rank_for_itself_takes_as_long():
    _, traces = exported(*CASES["pipeline"])
    cluster = build_topology(parse(NODES))
    asked = replay_tasks(traces, cluster)
    folded, single = (replay(cluster, asked, fold=fold) for fold in (True, False))
    assert len(folded.plan.first) < len(single.plan.first) == 16
    assert folded.end == pytest.approx(single.end, rel=1e-9)


# traces by hand


def comp(number, seconds, *before, **said):
    return TraceNode(
        number, f"comp {number}", NodeType.COMP, before, round(seconds * 1e6), {"is_cpu_op": False, **said}
    )


def coll(number, size, *before, kind=0, **said):
    return TraceNode(number, f"coll {number}", NodeType.COLL, before, 0, {"comm_type": kind, "comm_size": size, **said})


def message(number, kind, peer, size, *before, tag=0):
    which = "comm_dst" if kind == NodeType.SEND else "comm_src"
    return TraceNode(number, "message", kind, before, 0, {which: peer, "comm_size": size, "comm_tag": tag})


def played(*ranks, groups=None, roofline=False):
    cluster = build_topology(parse(NODES))
    traces = TraceSet("hand", [list(row) for row in ranks], groups or {})
    asked = replay_tasks(traces, cluster, roofline)
    return replay(cluster, asked).end


def test_computations_of_a_rank_take_turns_and_its_cpu_goes_on_beside_them():
    assert played([comp(0, 0.003), comp(1, 0.004)]) == pytest.approx(0.007)
    host = comp(1, 0.004)._replace(attributes={"is_cpu_op": True})
    assert played([comp(0, 0.003), host]) == pytest.approx(0.004)
    assert played([comp(0, 0.003), host, comp(2, 0.002, 1)]) == pytest.approx(0.006)


def test_a_collective_begins_when_the_last_rank_is_there_and_the_next_of_its_group_after_it():
    alone = played([coll(0, 1e6)], [coll(0, 1e6)])
    late = [comp(0, 0.005), coll(1, 1e6, 0)]
    assert played(late, [coll(0, 1e6)]) == pytest.approx(0.005 + alone)
    assert played(*[[coll(0, 1e6), coll(1, 1e6)]] * 2) == pytest.approx(2 * alone)


def test_two_groups_of_the_same_ranks_are_two():
    """As NCCL's communicators: those of one wait for each other, those of different ones share the links."""
    slow, fast = coll(0, 4e9, pg_name="1"), [coll(1, 1e3, pg_name="2"), comp(2, 0.0, 1)]
    groups = {"1": (0, 1), "2": (0, 1)}
    assert played(*[[slow, *fast]] * 2, groups=groups) == pytest.approx(played(*[[slow]] * 2, groups=groups), rel=1e-3)


@pytest.mark.parametrize("name", ["compute", "host", "p2p", "p2p-forward"])
def test_a_group_may_have_the_name_of_a_stream(name):
    """Its collectives keep their order, and run beside computations."""
    one, two = (coll(i, 1e6, pg_desc=name) for i in (0, 1))
    alone = played(*[[coll(0, 1e6)]] * 2)
    assert played(*[[one, two]] * 2) == pytest.approx(2 * alone)
    assert played(*[[comp(2, 5e-6), one]] * 2) == pytest.approx(alone)


def test_a_message_is_on_its_way_when_it_is_sent_and_received_where_it_is_waited_for():
    send, receive = message(1, NodeType.SEND, 1, 1e6, 0), message(0, NodeType.RECV, 0, 1e6)
    quick = played([message(1, NodeType.SEND, 1, 1e6)], [receive, comp(1, 0.002, 0)]) - 0.002
    assert 0 < quick < 1e-4
    assert played([comp(0, 0.005), send], [receive, comp(1, 0.002, 0)]) == pytest.approx(0.007 + quick)
    assert played([comp(0, 0.001), send], [comp(5, 0.01), message(6, NodeType.RECV, 0, 1e6, 5)]) == pytest.approx(0.01)


def test_messages_are_told_apart_by_their_tags():
    first, second = (message(i, NodeType.SEND, 1, 1e6, *[0] * (i == 2), tag=i) for i in (1, 2))
    late = message(1, NodeType.RECV, 0, 1e6, tag=2)
    end = played([comp(0, 0.005), first, second], [late, message(2, NodeType.RECV, 0, 1e6, tag=1)])
    assert end > 0.005


def test_a_roofline_takes_the_peak_rates_of_the_gpu():
    gpu = build_topology(parse(NODES)).kinds[0].gpu
    heavy = comp(0, 0.5, num_ops=10**12, tensor_size=1000)
    assert played([heavy], roofline=True) == pytest.approx(1e12 / gpu.matrix_peak("bf16"))
    assert played([heavy]) == pytest.approx(0.5)
    light = comp(0, 0.0, num_ops=1000, tensor_size=10**9)
    assert played([light]) == pytest.approx(1e9 / gpu.memory_bandwidth)


def test_groups_that_overlap_are_played_side_by_side():
    groups = {"1": (0, 1), "2": (1, 2)}
    ranks = [[coll(0, 1e6, pg_name="1")], [coll(0, 1e6, pg_name="1"), coll(1, 1e6, 0, pg_name="2")]]
    both = played(*ranks, [coll(0, 1e6, pg_name="2")], groups=groups)
    assert both == pytest.approx(2 * played(*[[coll(0, 1e6)]] * 2), rel=1e-6)


# refusals

REFUSED = {
    "comm_type 3": ([[coll(0, 1, kind=3)]], "rank 0: node 0 (coll 0) is of comm_type 3; give one of"),
    "unknown group": (
        [[coll(0, 1, pg_name="7")]],
        "rank 0: node 0 runs in the group 7, of which no file says the ranks",
    ),
    "dimensions": ([[coll(0, 1, involved_dim=(True, False))]], "rank 0: node 0 says dimensions of a network"),
    "circle": ([[comp(0, 1, 1), comp(1, 1, 0)]], "rank 0: node 0 (comp 0) waits for nodes that wait for it"),
    "twice": ([[comp(0, 1), comp(0, 1)]], "rank 0: two nodes have the number 0"),
    "never sent": (
        [[message(0, NodeType.RECV, 1, 1)], []],
        "rank 0: node 0 (message) receives a message that rank 1 never sends",
    ),
    "to nobody": (
        [[message(0, NodeType.SEND, 9, 1)]],
        "rank 0: node 0 (message) has the comm_dst 9; name another rank",
    ),
    "different": (
        [[coll(0, 8)], [coll(0, 16)]],
        "collective 0 of the group [0, 1]: rank 0 runs all_reduce of 8 bytes and rank 1 runs all_reduce of 16 bytes",
    ),
    "one does not come": ([[coll(0, 8)], []], "rank 0 runs all_reduce of 8 bytes and rank 1 runs none"),
    "too many": ([[]] * 17, "hand: 17 ranks, and nodes has 16 GPUs"),
}


@pytest.mark.parametrize(("ranks", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_cluster_can_play_is_refused_with_its_place(ranks, message):
    with pytest.raises(InputError, match=re.escape(message)):
        played(*ranks)


def test_dependencies_on_what_is_not_there_count_as_met_and_are_told():
    cluster = build_topology(parse(NODES))
    asked = replay_tasks(TraceSet("hand", [[comp(0, 0.001, 99)]], {}), cluster)
    assert asked.notes == ["1 dependencies are on nodes that are not there, and count as met"]


@pytest.mark.parametrize("cut", [1, 5, 20, 40])
def test_a_file_that_is_cut_or_is_none_is_refused(call, cut):
    whole = encoded([comp(0, 0.001), coll(1, 5, 0)])
    for data in (whole[:-cut], b"\xff" * 40, b"\xff" * 9 + b"\x01", b"name: llama\n" * 9):
        with pytest.raises(InputError, match=r"a\.0\.et: not a Chakra execution trace"):
            list(decoded(data, "a.0.et"))


def test_the_command_plays_what_export_wrote(call):
    code, _, err = call("run", "hgx_h100_8", "gpt2_large", "--predictor", "roofline", "--out", "r", "-q")
    assert (code, err) == (0, "")
    assert call("export", "chakra", "r", "--out", "et", "-q")[0] == 0
    code, out, err = call("import", "chakra", "et", "hgx_h100_8", "--json", "--trace", "t.json.gz")
    assert (code, err) == (0, "")
    step = json.loads(Path("r/summary.json").read_text())["step_time_s"]
    assert json.loads(out)["step_time_s"] == pytest.approx(step, rel=1e-9)
    assert Path("t.json.gz").stat().st_size
    code, out, _ = call("import", "chakra", "et", "hgx_h100_8", "--set", "cluster.node.scale_up.link=400Gb/s", "--json")
    assert json.loads(out)["step_time_s"] < step
    code, out, _ = call("import", "chakra", "et", "hgx_h100_8")
    assert code == 0
    assert out.startswith("step on hgx-h100-8: 8 execution traces, 152 nodes, h100-sxm\n")


def test_a_folder_without_all_ranks_is_refused(call):
    code, _, err = call("import", "chakra", ".", "hgx_h100_8")
    assert (code, err) == (
        2,
        "clustersim: .: has no file NAME.RANK.et; give the folder of a job's Chakra execution traces\n",
    )
    Path("a.1.et").write_bytes(encoded([]))
    code, _, err = call("import", "chakra", ".", "hgx_h100_8")
    assert (code, err) == (2, "clustersim: .: rank 0 has no trace, rank 1 has; give those of all ranks\n")
    Path("a.0.et").write_bytes(encoded([]))
    Path("comm_groups.json").write_text('{"1": [0, 5]}')
    code, _, err = call("import", "chakra", ".", "hgx_h100_8")
    assert (code, err) == (2, "clustersim: .: group 1 has the ranks [0, 5]; they must differ and have a trace\n")
