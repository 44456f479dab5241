"""Many runs in one process: what one of them worked out about its cluster is gone with that."""

from __future__ import annotations

import ast
import ctypes
import gc
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from engine_cases import ROOT, cluster, job
from hypothesis import given
from hypothesis import strategies as st

from clustersim.cache import Cache, fingerprint, of_arrays
from clustersim.collectives.nccl.table import line
from clustersim.garbage import uncollected
from clustersim.simulation import run
from clustersim.sweeps.evaluate import Files, evaluate, load

GROWTH = """
import ctypes, sys
from clustersim.simulation import simulate

give_back = ctypes.CDLL(None).malloc_trim  # of glibc, which keeps 30 to 45 MiB that runs no longer use, now more and now less

def held(runs):
    for _ in range(runs):
        simulate(sys.argv[1], sys.argv[2], ignore_memory=True)
    give_back(0)
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

before = held(20)
print(held(80) - before)
"""
GLIBC = Path("/proc/self/statm").exists() and hasattr(ctypes.CDLL(None), "malloc_trim")


def _forgotten(use) -> bool:
    topology = cluster(2)
    use(topology)
    arrays = weakref.ref(topology.capacity)  # a slotted object has no weak reference; its arrays go with it
    del topology
    gc.collect()
    return arrays() is None


@pytest.mark.parametrize("algorithm", ["nccl", "ring"])
def test_a_cluster_is_gone_after_its_run(algorithm):
    split = {"parallelism__tp": 4, "parallelism__dp": 2, "parallelism__algorithms": {"tp": algorithm, "dp": algorithm}}
    assert _forgotten(lambda topology: run(topology, job(**split)))


@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_a_cluster_is_gone_after_its_table(algorithm):
    assert _forgotten(lambda topology: line(topology, np.arange(8), "all_reduce", 1 << 20, algorithm=algorithm))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12)), max_size=40))
def test_a_cache_answers_as_nothing_kept_and_keeps_the_newest_that_have_room(asked):
    """Answers weigh up to 12 of 10: one that is too heavy drives out all others, or is not kept where none may stand alone."""
    for alone in (True, False):
        cache, kept = Cache(10, lambda answer: answer[1], alone=alone), dict[int, tuple[int, int]]()
        for question, weight in asked:
            answer = kept.pop(question, (question, weight))
            assert cache.once(question, lambda answer=answer: answer) == answer
            if alone or answer[1] <= 10:
                kept[question] = answer  # the newest stands last
            while sum(one[1] for one in kept.values()) > 10 and len(kept) > 1:
                del kept[next(iter(kept))]
            for known in (*kept, *{*range(6)} - kept.keys()):  # in the order of their last use, which this keeps
                assert cache.get(known) == kept.get(known)
            assert cache.weight == sum(one[1] for one in kept.values())


def test_arrays_of_a_cache_are_read_only():
    found = of_arrays().once("x", lambda: (np.zeros(2), {"y": np.zeros(2)}))
    for array in (found[0], found[1]["y"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


def test_a_cache_keeps_no_error():
    cache = of_arrays()
    with pytest.raises(ZeroDivisionError):
        cache.once("x", lambda: 1 / 0)
    assert cache.once("x", lambda: 1) == 1


def test_an_array_that_repeats_one_number_weighs_nothing():
    cache = of_arrays()
    thin = cache.once("thin", lambda: np.broadcast_to(1.0, 1 << 40))  # 8 TiB as it is counted
    least = cache.weight
    assert cache.get("thin") is thin and least < 1 << 20
    whole = cache.once("whole", lambda: {"a": (np.zeros(50_000), thin)})["a"][0]
    assert cache.weight == least + whole.nbytes
    assert not whole.flags.writeable


def test_a_communicator_of_many_gpus_is_a_short_question():
    one, other = np.arange(30720), np.arange(30720)
    other[[0, 1]] = 1, 0
    assert len(fingerprint(one)) == 16
    assert fingerprint(one) == fingerprint(one.copy()) != fingerprint(other)
    assert len({fingerprint(x) for x in (one, one[1:], one[:-1], one[::-1], one[:0], one * 2)}) == 6


def test_no_function_remembers_objects_for_good():
    """A cache of a module lives as long as the process, so nothing that a run builds may be one of its keys."""
    values = {
        "NodeFacts", "CommunicatorShape", "Group", "MeasuredConstants", "Constants", "ExpertRouter",
        "str", "float", "int", "bool",
    }  # fmt: skip
    found = set()
    for path in sorted((ROOT / "clustersim").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            decorators = {ast.unparse(d).split("(")[0] for d in getattr(node, "decorator_list", [])}
            if decorators & {"cache", "lru_cache", "functools.cache", "functools.lru_cache"}:
                keys = {ast.unparse(argument.annotation) for argument in node.args.args}
                found |= {f"{path.name}: {node.name}({key})" for key in keys - values}
    assert not found


@pytest.mark.slow
@pytest.mark.skipif(not GLIBC, reason="memory of this process is read from /proc, and glibc keeps none that is unused")
@pytest.mark.parametrize(
    ("topology", "workload"), [("superpod_h100_128", "gpt3_xl"), ("fattree_3840", "gpt3")], ids=["1024", "30720"]
)
def test_memory_is_flat_over_a_hundred_runs(topology, workload):
    inputs = ROOT / "topologies" / f"{topology}.yaml", ROOT / "workloads" / f"{workload}.yaml"
    done = subprocess.run([sys.executable, "-c", GROWTH, *inputs], capture_output=True, text=True, check=True, cwd=ROOT)
    assert float(done.stdout) <= 2  # MiB


def test_points_of_a_sweep_leave_no_cycles() -> None:
    files = (str(ROOT / "topologies" / "superpod_h100_128.yaml"), str(ROOT / "workloads" / "gpt3_xl.yaml"))
    case = load(Files(*files, {}, "auto"))
    points = [{"parallelism.tp": tp, "parallelism.pp": pp} for tp in (1, 2) for pp in (1, 2)]
    for clocks in (0.8, 0.7):
        with uncollected():
            gc.collect()
            rows = [evaluate(case, {**point, "clocks": clocks}) for point in points]
            assert {row["player"] for row in rows} == {"loop"}
            assert gc.collect() == 0
