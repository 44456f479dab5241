"""What a step rests on: the constants that matter to it, and how much longer it takes where they are larger."""

import pickle
from math import exp, log

import pytest

from clustersim.calibration.constants import constants_of
from clustersim.calibration.sensitivity import changed_step, sensitivities
from clustersim.config.mapping import document
from clustersim.config.overrides import parted
from clustersim.convert.override import override
from clustersim.parallel.load import load as load_workload
from clustersim.simulation import Simulator, simulate
from clustersim.topology.build import build, document_of

CLUSTER, WORKLOAD = "dgx_a100_8", "gpt3_2.7b"
MIXED = {
    "cluster": {
        "pools": [
            {"nodes": 1, "node": "hgx-h100"},
            {"nodes": 1, "node": {"extends": "hgx-h100", "gpus": {"model": "h100-sxm", "count": 8}}},
        ]
    },
    "fabric": {"kind": "switch"},
}


def asked(cluster=CLUSTER, **overrides):
    """Return the document of a cluster, its simulator and a placed job on it."""
    of_cluster, of_job = parted({key.replace("__", "."): value for key, value in overrides.items()})
    found = override(document_of(cluster) if isinstance(cluster, str) else document(cluster, "cluster"), of_cluster)
    simulator = Simulator(build(found))
    return found, simulator, simulator.placed(load_workload(WORKLOAD, of_job))


def test_a_step_rests_on_its_gpus_its_links_and_its_host():
    cluster, _, job = asked(training__framework="megatron-core")
    names = {one.name: one for one in constants_of(cluster, job)}
    assert {"clock under load, 16-bit, ampere", "host, megatron-core", "NVLink, ampere"} <= names.keys()
    assert not any(name.startswith("network") for name in names), "one node sends nothing through a NIC"
    assert all(one.spread > 0 and one.source and one.keys for one in names.values())
    assert names["host, megatron-core"].scope == "framework"


def test_a_constant_as_it_is_changes_nothing():
    cluster, simulator, job = asked(training__framework="megatron-core")
    usual = simulator.seconds(job)
    for one in constants_of(cluster, job):
        assert changed_step(cluster, job, one.changes(1.0), simulator) == pytest.approx(usual, rel=1e-12), one.name


def test_keys_of_a_constant_are_those_of_set():
    cluster, simulator, job = asked()
    [clock] = [one for one in constants_of(cluster, job) if one.family == "clock under load"]
    [run] = {simulate(CLUSTER, WORKLOAD, clock.changes(0.8), engine="auto").summary["step_time_s"]}
    assert run == pytest.approx(changed_step(cluster, job, clock.changes(0.8), simulator), rel=1e-12)
    assert run > simulator.seconds(job)


def test_the_seconds_of_a_step_are_those_of_its_run():
    _, simulator, job = asked(training__framework="megatron-core")
    assert simulator.seconds(job) == simulator.run(job, engine="auto").summary["step_time_s"]


def test_sensitivities_say_by_how_much_a_step_changes():
    cluster, simulator, job = asked()
    constants = constants_of(cluster, job)
    found = sensitivities(cluster, job, constants, simulator)
    usual = simulator.seconds(job)
    for one in constants:
        changed = changed_step(cluster, job, one.changes(exp(-0.02)), simulator)
        assert log(changed / usual) == pytest.approx(-0.02 * found[one.name], abs=2e-3), one.name
    assert -1 <= min(found.values()) < -0.4, "products take most of it"


def test_all_parts_of_a_step_together_make_it():
    """Times that all grow by a share make the step grow by it: the sensitivities to everything that takes time add up to one."""
    cluster, simulator, job = asked(parallelism__tp=1)
    found = sensitivities(cluster, job, constants_of(cluster, job), simulator)
    kernels = [key for key in found if key.startswith(("clock", "vector", "fused", "NVLink"))]
    assert 0.75 < -sum(found[key] for key in kernels) < 1.02


def test_a_host_that_is_never_late_has_no_share_in_a_step():
    cluster, simulator, job = asked(training__framework="megatron-core", cluster__node__host__slowdown=1e-6)
    found = sensitivities(cluster, job, constants_of(cluster, job), simulator)
    assert found["host, megatron-core"] == pytest.approx(0, abs=1e-6)


def test_types_of_nodes_with_one_gpu_share_its_constants():
    cluster, _, job = asked(MIXED)
    [clock] = [one for one in constants_of(cluster, job) if one.family == "clock under load"]
    assert {key.rsplit(".", 1)[0] for key in clock.keys} == {
        "cluster.pools.0.node.gpus.sustained",
        "cluster.pools.1.node.gpus.sustained",
    }


def test_kernels_run_as_fast_as_their_group():
    """Twice the speed of all groups is half the computing time."""
    plain = simulate(CLUSTER, WORKLOAD, {"parallelism.tp": 1, "parallelism.dp": 1}, engine="auto")
    groups = dict.fromkeys(("products", "attention", "vector"), 2.0)
    twice = simulate(
        CLUSTER, WORKLOAD, {"parallelism.tp": 1, "parallelism.dp": 1, "cluster.node.gpus.speed": groups}, engine="auto"
    )
    assert twice.summary["step_time_s"] == pytest.approx(plain.summary["step_time_s"] / 2, rel=1e-9)


def test_a_simulator_of_another_cluster_or_process_refuses_what_this_one_does():
    """A dead node leaves fewer GPUs: what is known of jobs on all of them does not hold there."""
    simulator = asked("superpod_h100_128")[1]
    strict = Simulator(simulator.cluster, unlikely=False)
    for made in (pickle.loads(pickle.dumps(strict)), strict.with_cluster(simulator.cluster)):
        assert made.preparation.fullest == strict.preparation.fullest < simulator.preparation.fullest
    fewer = build(override(document_of("superpod_h100_128"), {"faults": [{"node": 3, "dead": True}]}))
    unplaced = load_workload(WORKLOAD, {})
    simulator.placed(unplaced)
    assert simulator.with_cluster(fewer).placed(unplaced).mesh.size == Simulator(fewer).placed(unplaced).mesh.size
