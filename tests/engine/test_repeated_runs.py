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
from activities import activity_of
from engine_cases import ROOT, cluster, job

from clustersim.cache import Cache, fingerprint, frozen, of_arrays
from clustersim.collectives.nccl.table import line
from clustersim.engine.fabric import Segment
from clustersim.garbage import aged, uncollected
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


def test_a_cache_keeps_no_more_arrays_than_have_room():
    cache = Cache(1e6, frozen, alone=False)
    for number in range(4):
        cache.once(number, lambda: {"a": (np.zeros(50_000), None)})  # 400 kB each
    assert len(cache) == 2
    assert cache.once("large", lambda: np.zeros(500_000)).nbytes == 4e6
    assert len(cache) == 2  # what has no room at all is not kept, and drives nothing else out
    assert cache.once("thin", lambda: np.broadcast_to(1.0, 500_000)).sum() == 500_000
    assert len(cache) == 3


def test_a_cache_keeps_up_to_a_weight_and_the_newest_alone():
    cache = Cache(10, lambda one: one[0])
    for number in range(6):
        assert cache.once(number, lambda n=number: (4, n)) == (4, number)
    assert len(cache) == 2
    assert cache.once(5, tuple) == (4, 5)
    assert cache.once(0, lambda: (3, 3)) == cache.get(0) == (3, 3)
    assert cache.keep(0, (1, 1)) == cache.get(0) == (1, 1)  # in place of the older, whose weight is gone
    assert [question for question, _ in cache.items()] == [5, 0]
    assert cache.once("heavy", lambda: (99, 0)) == (99, 0)
    assert len(cache) == 1
    assert cache.get(0) is None


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


def test_the_least_recently_used_goes_first():
    cache = Cache(3, 1)
    for number in (1, 2, 3, 1, 4):
        cache.once(number, lambda n=number: n)
    assert [question for question, _ in cache.items()] == [3, 1, 4]
    assert cache.get(3) == 3
    cache.keep(5, 5)
    assert [question for question, _ in cache.items()] == [4, 3, 5]


def test_a_communicator_of_many_gpus_is_a_short_question():
    one, other = np.arange(30720), np.arange(30720)
    other[[0, 1]] = 1, 0
    assert len(fingerprint(one)) == 16
    assert fingerprint(one) == fingerprint(one.copy()) != fingerprint(other)
    assert len({fingerprint(x) for x in (one, one[1:], one[:-1], one[::-1], one[:0], one * 2)}) == 6


def test_no_function_remembers_objects_for_good():
    """A cache of a module lives as long as the process, so nothing that a run builds may be one of its keys."""
    values = {
        "NodeFacts", "CommunicatorShape", "Group", "MeasuredConstants", "Constants", "str", "float", "int", "bool",
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


def test_what_is_old_is_not_searched_for_cycles_at_once() -> None:
    before = gc.isenabled()
    gc.enable()
    try:
        with uncollected():
            made: list[list[int]] = [[] for _ in range(50_000)]
            aged()
        assert gc.isenabled()
        assert gc.get_count()[0] < len(made) / 10
        assert not gc.get_freeze_count()
    finally:
        if not before:
            gc.disable()


def test_an_activity_is_gone_with_the_last_who_refers_to_it() -> None:
    with uncollected():
        gc.collect()
        for _ in range(100):
            activity_of((Segment(1.0, None),))
        assert gc.collect() == 0


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
