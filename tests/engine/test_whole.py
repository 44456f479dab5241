"""A run whose periods were counted shows all of them: what SimPy plays of the whole step, row by row."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import cluster, job
from examples import examples
from folding_cases import FABRICS, FAULTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from static_cases import OPTIONS, TWO_LEAVES, asked, by_label, same

from clustersim.report.breakdown import critical_path
from clustersim.report.folded_time import folded_time
from clustersim.report.parquet import Texts
from clustersim.report.tables import links_table, memory_table, ranks_table, spans_table
from clustersim.report.terminal import timeline as lines
from clustersim.simulation import Simulator


def stages(result):
    split = result.summary["parallelism"]
    width = split["tp"] * split["cp"] * split["dp"]
    return [int(first) // width for first in result.plan.first]


def tables(result):
    record, plan, own = result.record, result.plan, stages(result)
    yield spans_table(record, plan)
    yield ranks_table(plan, result.parts, own)
    yield links_table(plan, result.topology, record.end)
    yield memory_table(result.facts.memory, record, own)


def complete(found, played):
    """Assert that a result has all that another has, which was played whole."""
    assert found.played.skipped is not None and found.record.skipped is None and played.played is played.record
    one, other = found.record, played.record
    near = {"rel": 1e-12, "abs": 1e-12 * other.end}
    assert one.end == pytest.approx(other.end, **near)
    for own, wanted in zip(by_label(one), by_label(other), strict=True):
        assert own == pytest.approx(wanted, **near)
    for own, wanted in zip(tables(found), tables(played), strict=True):
        assert list(own) == list(wanted)
        for name, column in wanted.items():
            if isinstance(column, np.ndarray) and column.dtype.kind == "f":
                assert own[name] == pytest.approx(column, rel=1e-12, abs=2e-12 * other.end, nan_ok=True), name
            elif isinstance(column, Texts):
                assert (
                    np.array(own[name].names)[own[name].which].tolist() == np.array(column.names)[column.which].tolist()
                )
            else:
                assert (own[name] == column).all(), name
    same(found.summary, played.summary)
    assert found.summary["trace"] == played.summary["trace"]
    seconds = [critical_path(record).computed().sum() for record in (one, other)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)
    assert lines(one, stages(found)) == lines(other, stages(played))


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    **{name: values for name, values in OPTIONS.items() if name not in ("schedule", "layers")},
    schedule=st.sampled_from(["1f1b", "zero_bubble", "interleaved", "dualpipe", "dualpipev", "zbv", "v_min"]),
    more=st.integers(0, 3),
    nics=st.sampled_from([1, 4]),
)
def test_a_run_that_counted_periods_has_every_row_of_the_whole_step(nodes, fabric, fault, more, nics, **options):
    if options["split"][1] == 1:
        options["split"] = (1, 2)
    topology = cluster(
        nodes, fabric=FABRICS[fabric], extra=FAULTS[fault], nics=nics, attach="shared" if nics == 1 else "per_gpu"
    )
    copies = nodes * 4 // (options["split"][0] * options["split"][1])
    one, simulator = asked(**options, layers=8, batch=copies * 4 * (18 + more)), Simulator(topology)
    found = simulator.run(one, ignore_memory=True, engine="auto")
    if found.played.skipped is not None:
        complete(found, simulator.run(one, ignore_memory=True))


def test_so_have_replicas_that_drift_apart():
    simulator = Simulator(cluster(6, fabric=TWO_LEAVES))
    one = job(training__global_batch=3 * 4 * 40, parallelism__pp=2, parallelism__tp=4)
    found = simulator.run(one, ignore_memory=True, engine="auto")
    assert found.played.skipped.lateness is not None
    complete(found, simulator.run(one, ignore_memory=True))


def test_so_has_every_rank_by_itself():
    simulator = Simulator(cluster(2))
    one = job(training__global_batch=400, parallelism__pp=2, parallelism__tp=2)
    found = simulator.run(one, ignore_memory=True, engine="auto", fold=False)
    assert len(found.plan.programs) == 8
    complete(found, simulator.run(one, ignore_memory=True, fold=False))


def test_a_fold_of_the_time_counts_what_was_not_played():
    simulator = Simulator(cluster(2))
    one = job(training__global_batch=2000, parallelism__pp=2, parallelism__tp=4)
    quick, whole = (simulator.run(one, ignore_memory=True, engine=engine).record for engine in ("auto", "simpy"))
    found, wanted = [folded_time(record, 2) for record in (quick, whole)]
    assert found[2:] == wanted[2:] and found[:2] == pytest.approx(wanted[:2], rel=1e-9)
