"""Training steps of all kinds of jobs on all kinds of clusters: every engine and every fold finds the same step."""

from __future__ import annotations

import numpy as np
import pytest
from columns import near
from examples import examples
from folding_cases import same as same_when_unfolded
from hypothesis import HealthCheck, Phase, event, given, reject, settings
from hypothesis import strategies as st
from longest_path import longest_path, members, passes
from same_steps import by_task
from same_steps import same as same_step
from step_cases import clusters, jobs, same

from clustersim.engine.compiled import PYTHON
from clustersim.engine.player import execute_together
from clustersim.engine.times import Tasks, loop_times
from clustersim.errors import InputError
from clustersim.report.breakdown import breakdown, critical_path
from clustersim.report.parquet import Texts
from clustersim.report.tables import links_table, memory_table, ranks_table, spans_table
from clustersim.report.terminal import timeline
from clustersim.simulation import Simulator

CHECKS = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink a job takes minutes and says little
)


def drawn(data, **options):
    """Return a simulator and a job that it can place."""
    topology = data.draw(clusters())
    one, simulator = data.draw(jobs(topology.gpus, **options)), Simulator(topology)
    try:
        return simulator, simulator.placed(one)
    except InputError:
        reject()


def looped(tasks, python=False):
    """Return the record of a step that a loop executes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON, "python" if python else "")
        [[record]] = execute_together([tasks])
    return record


@settings(CHECKS, max_examples=examples(100))
@given(st.data())
def test_every_engine_executes_the_same_training_step(data):
    simulator, one = drawn(data)
    work = simulator.preparation.work(one, np.arange(one.mesh.size))
    wanted = simulator.simulate(work, "simpy")
    plan = wanted.plan
    tasks = Tasks(plan)
    step = loop_times(tasks, plan.network.capacity)
    event("shares links" if wanted.solves else "shares no link")
    for python in (False, True):
        found = looped(tasks, python)
        same_step(step, found, wanted)
        assert found.waits.kinds == wanted.waits.kinds
        for mine, its in zip(found.waits[:-1], wanted.waits[:-1], strict=True):
            assert near(mine, its, 1e-11, 1e-11 * wanted.end)
        if not wanted.solves and not step.losses:
            walked = [passes(plan, cell) for cell in range(len(plan.first))]
            # where flows could have overfilled a link but did not, an end is its rate's, which rounds once more than the sum
            rel = 1e-14 if len(step.held.link) else 0.0
            path = longest_path(walked, members(plan))
            assert by_task(step.shape, found.ends) == pytest.approx(path, rel=rel, abs=0.0)
    for parts in breakdown(found):
        assert sum(parts.values()) == pytest.approx(wanted.end, rel=1e-12)
    assert sum(span.end - span.start for span in critical_path(found)) == pytest.approx(wanted.end, rel=1e-12)


@settings(CHECKS, max_examples=examples(160))
@given(st.data())
def test_a_step_of_rank_classes_is_the_step_of_all_ranks(data):
    simulator, one = drawn(data, microbatches=(4, 6))
    folded, whole = (simulator.run(one, ignore_memory=True, fold=fold, engine="auto") for fold in (True, False))
    same_when_unfolded(folded, whole)


def stages(result):
    split = result.summary["parallelism"]
    width = split["tp"] * split["cp"] * split["dp"]
    return [int(first) // width for first in result.plan.first]


def tables(result):
    record, plan, own = result.record, result.plan, stages(result)
    yield spans_table(record)
    yield ranks_table(plan, result.parts, own)
    yield links_table(record)
    yield memory_table(result.facts.memory, record, own)


@settings(CHECKS, max_examples=examples(16))
@given(st.data())
def test_results_have_the_same_rows_whichever_engine_executed_the_step(data):
    simulator, one = drawn(data)
    found, wanted = (simulator.run(one, ignore_memory=True, engine=engine) for engine in ("auto", "simpy"))
    end = wanted.record.end
    assert simulator.outline(one, "auto")["step_time_s"] == pytest.approx(end, rel=1e-11)
    assert (found.record.player, wanted.record.player) == ("loop", "simpy")
    for own, others in zip(tables(found), tables(wanted), strict=True):
        assert list(own) == list(others)
        for name, column in others.items():
            if isinstance(column, np.ndarray) and column.dtype.kind == "f":
                assert near(own[name], column, 1e-11, 1e-11 * end, nan_ok=True), name
            elif isinstance(column, Texts):
                texts = [np.array(one.names)[one.which].tolist() for one in (own[name], column)]
                assert texts[0] == texts[1], name
            else:
                assert (own[name] == column).all(), name
    same(found.summary, wanted.summary)
    assert found.summary["trace"] == wanted.summary["trace"]
    seconds = [critical_path(result.record).computed().sum() for result in (found, wanted)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)
    assert timeline(found.record, stages(found)) == timeline(wanted.record, stages(wanted))
