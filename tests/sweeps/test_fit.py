"""What makes a job fit that does not: lists of changes, the shortest, each of which runs."""

import subprocess
import sys
from collections import ChainMap
from itertools import combinations, product

import pytest

from clustersim.errors import OutOfMemoryError
from clustersim.optimization.fit import _Search, _spread, advice, remedies
from clustersim.optimization.neighbours import smaller
from clustersim.parallel.load import load
from clustersim.report.verdicts import largest_share
from clustersim.simulation import Simulator, simulate
from clustersim.topology.build import load as cluster
from clustersim.units import duration, gibibytes

HGX, SUPERPOD = "topologies/hgx_h100_8.yaml", "topologies/superpod_h100_128.yaml"
SMALL = {
    "parallelism.tp": 2,
    "parallelism.sequence_parallel": False,
    "parallelism.zero": 0,
    "parallelism.overlap.param_gather": False,
    "training.global_batch": 32,
}


def found(topology, name, overrides, grow=None, most=99):
    return remedies(Simulator(cluster(topology)), load(f"workloads/{name}.yaml", overrides), grow, most)


def test_every_list_runs_and_gives_the_step_and_the_memory_that_it_says():
    given = {"parallelism.tp": 4, "parallelism.pp": 2}
    with pytest.raises(OutOfMemoryError):
        simulate(SUPERPOD, "workloads/llama3_70b.yaml", given)
    lists = found(SUPERPOD, "llama3_70b", given)
    assert {frozenset(one.changes.items()) for one in lists} >= {
        frozenset({("parallelism.tp", 8)}),
        frozenset({("parallelism.pp", 8)}),
        frozenset({("parallelism.cp", 4)}),
    }
    assert [one.step for one in lists] == sorted(one.step for one in lists)
    for one in lists[:1]:
        summary = simulate(SUPERPOD, "workloads/llama3_70b.yaml", given | one.changes, engine="auto").summary
        assert summary["expected_step_time_s"] == pytest.approx(one.step, rel=1e-12)
        assert summary["memory"]["peak_bytes"] == pytest.approx(one.memory, rel=1e-12)
        assert summary["memory"]["fits"]


def test_one_change_comes_before_two_and_of_a_kind_the_mildest():
    """With microbatches of 8 sequences recomputation alone is enough, and fewer layers of it than all."""
    lists = found(HGX, "llama3_8b", SMALL | {"parallelism.zero": 1, "training.micro_batch": 4})
    assert lists and {one.length for one in lists} == {1}
    [block] = [one for one in lists if "training.recompute" in one.changes]
    assert block.changes["training.recompute_method"] == "block"
    layers = block.changes["training.recompute_layers"]
    assert 1 < layers < 32
    fewer = block.changes | {"training.recompute_layers": layers - 2}
    given = SMALL | {"parallelism.zero": 1, "training.micro_batch": 4} | fewer
    done = simulate(HGX, "workloads/llama3_8b.yaml", given, ignore_memory=True, engine="auto")
    assert done.summary["memory"]["peak_bytes"] > largest_share(unlikely=False) * cluster(HGX).gpu.memory


def test_two_changes_where_none_alone_is_enough():
    lists = found(HGX, "llama3_8b", SMALL | {"parallelism.tp": 1, "training.micro_batch": 8})
    assert {one.length for one in lists} == {2}
    assert all(one.memory < 0.97 * cluster(HGX).gpu.memory for one in lists)


def test_more_nodes_are_a_change_where_the_cluster_may_have_them():
    given = {"parallelism.tp": 8, "parallelism.pp": 2, "training.global_batch": 512}
    few = {"cluster.nodes": 2}

    def grow(nodes):
        return cluster(SUPERPOD, {"cluster.nodes": nodes})

    case = Simulator(cluster(SUPERPOD, few)), load("workloads/llama3_70b.yaml", given)
    with pytest.raises(OutOfMemoryError):
        case[0].run(case[1])
    lists = remedies(*case, grow, 99)
    grown = [one for one in lists if "cluster.nodes" in one.changes]
    assert grown and grown[0].changes["cluster.nodes"] in (4, 8, 16)
    assert f"--nodes {grown[0].changes['cluster.nodes']}" in grown[0].options


def test_the_command_says_what_fits_below_the_error():
    asked = [sys.executable, "-m", "clustersim", "run", SUPERPOD, "llama3_70b", "--tp", "4", "--pp", "2", "--no-save"]
    done = subprocess.run(asked, check=False, capture_output=True, text=True)
    sentence, *lines = done.stderr.splitlines()
    assert done.returncode == 2 and "needs 93.7 GiB" in sentence
    assert lines[0] == "what fits by one change, each simulated, the fastest first:"
    given = {"parallelism.tp": 4, "parallelism.pp": 2, "parallelism.cp": 4}
    fits = simulate(SUPERPOD, "workloads/llama3_70b.yaml", given, engine="auto").summary
    step, peak = duration(fits["expected_step_time_s"]), gibibytes(fits["memory"]["peak_bytes"])
    assert lines[1] == f"  --cp 4  (parallelism.cp: 4): {step} a step, {peak}"


def test_nothing_is_said_where_nothing_fits():
    beyond = load("workloads/llama3_70b.yaml", {"parallelism.tp": 8, "parallelism.pp": 1, "training.global_batch": 8})
    assert advice(remedies(Simulator(cluster(HGX)), beyond)) == ""


UNFUSED = {"training.recompute": "none", "training.attention": "unfused"}


@pytest.mark.parametrize(
    ("topology", "nodes", "name", "given"),
    [
        (SUPERPOD, 2, "llama3_70b", {"parallelism.tp": 2, "parallelism.pp": 1, "training.global_batch": 512}),
        # selective recomputation saves more than half of all layers do, and pp 8 needs more memory than pp 4
        (HGX, 1, "gpt2_large", UNFUSED | {"training.micro_batch": 24, "training.global_batch": 192}),
        (HGX, 1, "gpt2_large", UNFUSED | {"training.micro_batch": 23, "training.global_batch": 184}),
    ],
)
def test_no_list_of_changes_is_missed(topology, nodes, name, given):
    """The lists of one, two and three changes are the first that fit of all."""
    whole = Simulator(cluster(topology, {"cluster.nodes": nodes}))
    search = _Search(whole, load(f"workloads/{name}.yaml", given), None)
    singles, pairs, triples = search.lists()
    kinds = [[one for one in kind if search._placed(one)] for kind in smaller(search.job, 8, 0)]
    first = [next((one for one in kind if search._fits(search._trial(one))), None) for kind in kinds]
    assert [one.changes for one in singles] == [one for one in first if one]
    helping = [_spread([one for one in kind if search._peak_bytes(one) < search.need]) for kind in kinds]
    for trials, length in ((pairs, 2), (triples, 3)):
        every = [
            [one for several in product(*chosen) if search._fits(one := search._trial(dict(ChainMap(*several[::-1]))))]
            for chosen in combinations(filter(None, helping), length)
        ]
        assert [one.memory for one in trials] == [some[0].memory for some in every if some]
