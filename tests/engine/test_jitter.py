"""Steps whose GPUs compute faster or slower: laws of order statistics, and each draw as the step that it stands for."""

import shlex
from dataclasses import replace

import numpy as np
import pytest
from engine_cases import cluster, job
from examples import examples
from law_cases import free

from clustersim.cli.main import main
from clustersim.config.topology import Jitter, Stragglers
from clustersim.simulation import Simulator
from clustersim.topology.faults import factors

MANY = examples(300)
QUICK = {"training__clip_gradients": False, "parallelism__algorithms__dp": "ring"}


def simulator(topology, **jitter):
    """Return what simulates on a cluster with jitter."""
    return Simulator(replace(topology, jitter=Jitter(**jitter)))


def nominal(topology, **changes):
    """Return the seconds of the step without jitter."""
    return Simulator(topology).run(job(**changes), ignore_memory=True).summary["step_time_s"]


def test_no_variation_is_no_jitter():
    found = simulator(cluster(2), cv=0.0).draw(job(parallelism__tp=2), 3)
    assert found == pytest.approx([nominal(cluster(2), parallelism__tp=2)] * 3, rel=1e-12)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_replicas_wait_for_the_slowest_as_order_statistics_say(ranks):
    """The largest of n exponential variables of mean 1 is 1 + 1/2 + … + 1/n on average."""
    split = {"parallelism__dp": ranks, "training__global_batch": 4 * ranks, **QUICK}
    found = simulator(free(ranks), distribution="gamma", cv=1.0).draw(job(**split), MANY) / nominal(
        free(ranks), **split
    )
    harmonic = sum(1 / k for k in range(1, ranks + 1))
    error = np.sqrt(sum(1 / k**2 for k in range(1, ranks + 1)) / MANY)
    assert found.mean() == pytest.approx(harmonic, abs=3 * error)


def test_stages_in_a_row_average_out():
    split = {"parallelism__pp": 4, "training__global_batch": 32, "training__micro_batch": 32, "model__vocab": 64}
    split |= QUICK
    found = simulator(free(4), cv=0.4).draw(job(**split), MANY) / nominal(free(4), **split)
    assert found.mean() == pytest.approx(1.0, abs=3 * 0.2 / np.sqrt(MANY))
    assert found.std() == pytest.approx(0.2, rel=0.25)


def test_a_step_without_a_straggler_is_as_likely_as_that_no_gpu_is_one():
    split = {"parallelism__dp": 8, "training__global_batch": 32, **QUICK}
    found = simulator(free(8), stragglers=Stragglers(share=0.1, slowdown=1.5)).draw(job(**split), MANY)
    usual = nominal(free(8), **split)
    alone = np.isclose(found, usual, rtol=1e-9)
    assert alone.mean() == pytest.approx(0.9**8, abs=3 * np.sqrt(0.25 / MANY))
    assert found[~alone] == pytest.approx(1.5 * usual, rel=1e-6)


@pytest.mark.parametrize("distribution", ["lognormal", "gamma"])
@pytest.mark.parametrize("cv", [0.03, 0.5])
def test_factors_have_mean_one_and_the_stated_variation(distribution, cv):
    found = factors(Jitter(distribution=distribution, cv=cv), 200_000, 0)
    assert found.mean() == pytest.approx(1.0, abs=4 * cv / np.sqrt(200_000))
    assert found.std() == pytest.approx(cv, rel=0.05)


def test_a_draw_depends_on_seed_and_number_alone():
    wanted = job(parallelism__tp=2)
    few, many = (simulator(cluster(2), cv=0.1, seed=3).draw(wanted, count) for count in (2, 4))
    assert few.tolist() == many[:2].tolist()
    assert simulator(cluster(2), cv=0.1, seed=4).draw(wanted, 2).tolist() != few.tolist()


NARROW = "{kind: switch, link: {rate: 4Gb/s}}"
CASES = {
    "tensor and pipeline": (cluster(2), {"parallelism__tp": 2, "parallelism__pp": 2, "training__global_batch": 8}),
    "overlapped reduction": (
        cluster(4, fabric=NARROW),
        {"parallelism__tp": 2, "parallelism__zero": 1, "parallelism__overlap__grad_reduce": True},
    ),
    "beside products": (
        cluster(2),
        {"parallelism__tp": 4, "parallelism__sequence_parallel": True, "parallelism__overlap__tp": "ring"},
    ),
    "host": (cluster(2), {"parallelism__tp": 2, "parallelism__pp": 2, "training__framework": "megatron-deepspeed"}),
    "host ahead": (cluster(2), {"training__framework": "torchtitan"}),
    "fsdp": (cluster(2), {"parallelism__zero": 3}),
}


@pytest.mark.parametrize("engine", ["simpy", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_a_draw_is_the_step_of_gpus_with_these_speeds(case, engine):
    topology, split = CASES[case]
    own = simulator(topology, cv=0.2, seed=1)
    found = own.draw(job(**split), 2, engine)
    for number, seconds in enumerate(found.tolist()):
        slow = factors(own.cluster.jitter, topology.gpus, number)
        alone = Simulator(replace(topology, slowdown=slow)).run(job(**split), fold=False, ignore_memory=True)
        assert seconds == pytest.approx(alone.record.end, rel=1e-12)


def test_what_is_said():
    own = simulator(cluster(2), cv=0.1, draws=20)
    found = own.run(job(), ignore_memory=True).summary["jitter"]
    steps = np.sort(own.draw(job()))
    assert found["draws"] == 20
    assert (found["step_time_p50_s"], found["step_time_p99_s"]) == (steps[9], steps[19])
    assert found["step_time_mean_s"] == pytest.approx(steps.mean())


def test_the_command_draws(capsys, monkeypatch):
    asked = shlex.split("clustersim run hgx_h100_8 gpt2_large --tp 2 --no-save --engine auto --draws 7")
    monkeypatch.setattr("sys.argv", asked)
    with pytest.raises(SystemExit):
        main()
    assert "nothing says how steps differ" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [*asked, "--set", "cluster.jitter.cv=0.05"])
    with pytest.raises(SystemExit):
        main()
    assert "half of 7 steps take at most" in capsys.readouterr().out
