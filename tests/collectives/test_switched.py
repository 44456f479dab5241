"""Algorithms that a user names: what they ask of a cluster's switches, and that `collective` tells the times of `run`."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import cluster, simulate

from clustersim import plugins
from clustersim.collectives.levels import by_node
from clustersim.collectives.nccl import request, table
from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.topology.build import build
from clustersim.topology.model import Topology

PLAIN = "{kind: fat_tree, rails: none, tiers: [{radix: 64}], link: {rate: 400Gb/s}}"
ADDING = f"{PLAIN[:-1]}, reduction: sharp}}"
AT = "job.yaml (command line): parallelism.algorithms.dp: "
NOT_BETWEEN = (
    "{} cannot do all_reduce here: the switches between nodes do not add up; write fabric.reduction: sharp, which fat trees "
    "and switch have, or name another algorithm"
)
NOT_INSIDE = (
    "{} cannot do all_reduce here: the nodes have no switches that add up; write scale_up.multicast: true{}, or name another "
    "algorithm"
)


def of(node: str, nodes: int = 2, fabric: str = PLAIN) -> Topology:
    """Return nodes of a type on a fabric."""
    own = f"fabric: {fabric}\n" if nodes > 1 else ""
    return build(parse(f"cluster: {{nodes: {nodes}, node: {node}}}\n{own}", "test.yaml"))


def data_parallel(topology: Topology, algorithm: str, tp: int = 1, **more: object) -> object:
    return simulate(
        topology,
        parallelism__tp=tp,
        parallelism__dp=topology.gpus // tp,
        parallelism__zero=0,
        parallelism__algorithms__dp=algorithm,
        parallelism__overlap__grad_reduce=False,
        **{"training__global_batch": topology.gpus // tp, **more},
    )


SWITCHED = ["nvls", "nvls_tree", "collnet_direct", "collnet_chain"]
MESH = (
    "{} cannot do all_reduce here: SHARP between nodes needs NVLink or PCIe to a switch in the node, not scale_up.kind: mesh; "
    "name another algorithm, such as hierarchical"
)
ALONE = (
    "{} cannot do all_reduce here: its groups need as many GPUs, two or more, on each of their nodes; name another algorithm, "
    "such as ring"
)
REFUSED = [
    *((of("hgx-h100"), a, 1, NOT_BETWEEN.format(a)) for a in ("nvls", "collnet_direct", "collnet_chain")),
    (of("hgx-h100", 2, "{kind: torus, dims: [2], link: {rate: 400Gb/s}}"), "nvls", 1, NOT_BETWEEN.format("nvls")),
    *((of("hgx-a100", 2, ADDING), a, 1, NOT_INSIDE.format(a, "")) for a in ("nvls", "nvls_tree")),
    (of("hgx-a100", 1), "nvls", 1, NOT_INSIDE.format("nvls", "")),
    *((of("mi300x", 2, ADDING), a, 1, NOT_INSIDE.format(a, " and scale_up.kind: nvswitch")) for a in SWITCHED[:2]),
    *((of("mi300x", 2, ADDING), a, 1, MESH.format(a)) for a in SWITCHED[2:]),
    *((of("hgx-h100", 2, ADDING), a, 8, ALONE.format(a)) for a in SWITCHED[:2]),
]


@pytest.mark.parametrize(("topology", "algorithm", "tp", "message"), REFUSED, ids=lambda x: x if x in SWITCHED else "")
def test_switches_that_are_not_there_are_said(topology, algorithm, tp, message):
    with pytest.raises(ConfigError) as caught:
        data_parallel(topology, algorithm, tp)
    assert str(caught.value) == AT + message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("algorithm", SWITCHED)
def test_switches_that_are_there_are_used(algorithm):
    """Two nodes under SHARP; one node of NVSwitches with multicast needs no SHARP."""
    assert data_parallel(of("hgx-h100", 2, ADDING), algorithm).summary["step_time_s"] > 0
    if algorithm == "nvls":
        assert data_parallel(of("hgx-h100", 1), algorithm).summary["step_time_s"] > 0


@pytest.mark.parametrize("algorithm", ["collnet_direct", "collnet_chain"])
def test_one_gpu_a_node_meets_the_others_in_the_network(algorithm):
    """Each sends its array once through its own NIC, whatever the number of nodes on its leaf."""
    topology = of("hgx-h100", 4, ADDING)
    row = table.line(topology, np.arange(0, 32, 8), "all_reduce", 1 << 40, algorithm=algorithm)
    assert row.choice.rate_bytes_per_s == pytest.approx(topology.node.nic)


def test_groups_by_node():
    assert by_node(np.array([[0, 0, 1, 1], [2, 2, 5, 5]])) == (2, 2)
    assert by_node(np.array([[0, 1, 2, 3]])) == (1, 4)
    for uneven in ([[0, 0, 1]], [[0, 0, 1, 2]], [[0, 0, 1, 1], [2, 3, 3, 3]], [[0, 0, 1, 1, 0, 0]]):
        assert by_node(np.array(uneven))[0] == 1


OWN = ["halving_doubling", "hierarchical", "rail_ring", "rail_tree", "mesh_ring", "mesh_tree", "direct"]


@pytest.mark.parametrize("algorithm", [*OWN, "clustersim.collectives.algorithms.ring:phases"])
@pytest.mark.parametrize("extra", ["", "nccl: {launch: 24us}"])
def test_a_named_algorithm_takes_in_a_table_what_it_takes_in_a_step(algorithm, extra):
    topology = cluster(4, extra=extra)
    with plugins.permitted("clustersim.collectives.algorithms.ring:phases"):
        result = data_parallel(topology, algorithm)
    [span] = [s for s in result.record.spans if s.stream == "dp"]
    [call] = [c for c in result.plan.network.plans if (c.group, c.op) == ("dp", "all_reduce")]
    with plugins.permitted("clustersim.collectives.algorithms.ring:phases"):
        row = table.line(topology, np.arange(16), "all_reduce", call.size, algorithm=algorithm)
    assert row.time == pytest.approx(span.end - span.start, rel=1e-9)
    assert row.choice.protocol == "-"
    assert row.columns()["channels"] is None


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_pat_as_named_is_for_any_group(op):
    """Its steps are proved whatever the nodes; NCCL's tuner alone has it for one GPU a node."""
    times = [table.line(cluster(4), np.arange(16), op, 1 << 20, algorithm=a).time for a in ("pat", "ring")]
    assert times[0] != times[1]
    with plugins.permitted("clustersim.collectives.algorithms.pat:phases"):
        assert simulate(
            cluster(4),
            parallelism__dp=16,
            parallelism__zero=1,
            parallelism__algorithms__dp="clustersim.collectives.algorithms.pat:phases",
        )


def test_the_launch_of_the_command_line_is_that_of_the_file():
    asked, written = request.forced(cluster(4), launch="24us"), cluster(4, extra="nccl: {launch: 24us}")
    rows = [table.line(t, np.arange(16), "all_reduce", 1 << 20, algorithm="hierarchical") for t in (asked, written)]
    assert rows[0].time == rows[1].time
