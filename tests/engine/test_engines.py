"""All engines execute the same step: SimPy, the reference, the loop in C and the same loop in Python."""

from __future__ import annotations

import math
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from activities import activity_of
from examples import examples
from flows import flow as flow_of
from hypothesis import given, settings
from hypothesis import strategies as st
from longest_path import Message, StuckError, longest_path
from random_steps import CAPACITY, PlainProgram, Step, moving, program, steps, task
from same_steps import by_task, same

import clustersim as cs
from clustersim.engine import compiled as extension
from clustersim.engine.compiled import PYTHON, is_compiled, loop, new_loop
from clustersim.engine.fabric import Segment
from clustersim.engine.loop import Loop
from clustersim.engine.program import Wait
from clustersim.engine.simulate import simulate
from clustersim.errors import DeadlockError
from clustersim.report.breakdown import critical_path
from clustersim.schedules.action import Action


def looped(jobs, steps=1, starts=(), compiled=True):
    """Return the steps that the loop finds. compiled: in C where that is built, else in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON, "" if compiled else "python")
        return loop(CAPACITY, jobs, steps, starts)


def everywhere(jobs, steps=1, starts=()):
    """Return the steps of jobs as SimPy finds them, after comparing all engines."""
    wanted = simulate(CAPACITY, jobs, steps, starts)
    moved = wanted
    if len(jobs) > 1:
        digit = math.ulp(max(line[-1].end for line in wanted))
        moved = simulate(CAPACITY, jobs, steps, [starts[0] + digit, *starts[1:]])
    for compiled in (True, False):
        found = looped(jobs, steps, starts, compiled)
        for job, mine, its, others in zip(jobs, found, wanted, moved, strict=True):
            # one job may end another step at the time at which all have enough, as sums are rounded
            assert min(len(mine), len(its)) >= steps
            for one, other, nudged in zip(mine, its, others, strict=False):
                same(job, one, other, _tolerance(_rounding(jobs, wanted), other, nudged))
    return wanted


def _tolerance(least, step, nudged):
    """Return by which part of a step's end engines may differ, where they differ by `least` in a step that amplifies nothing.

    nudged: the step where the first job begins a last digit later. Jobs that meet thousands of times amplify the rounding of a
    time, in any engine: that digit may become a hundredth of the step. How far it moves a task's end measures this, step by step.
    Engines round many sums, at other times and of other jobs, so that each may be off by a thousand times as much; a fault is
    found in all steps before it becomes smaller than that, the first ones among them.
    """
    moved = np.abs(nudged.ends - step.ends).max(initial=0.0)
    return least if moved <= 1e-12 * step.end else max(1e-11, 1e3 * moved / step.end)


def _rounding(jobs, lines):
    """Return by which part of a step engines may differ: not at all where no flow uses a link and nothing loses anything."""
    if any(job.losses for job in jobs) or lines[0][0].solves:
        return 1e-11
    return 1e-13 if len(jobs) > 1 or len(jobs[0].held.link) else 0.0


@settings(max_examples=examples(400), deadline=None)
@given(steps())
def test_every_engine_executes_the_same_step(step):
    everywhere([step.job()])


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(steps(), st.sampled_from([0.0, 0.5, 3.0])), min_size=2, max_size=3), st.integers(1, 3))
def test_steps_of_several_jobs_are_the_same(jobs, count):
    """Each begins at a time of its own, and repeats its step on the links that all use, while others have steps to do."""
    starts = [start for _, start in jobs]
    own = [step._replace(programs=[_longer(one) for one in step.programs]).job() for step, _ in jobs]
    for line, start in zip(everywhere(own, count, starts), starts, strict=True):
        assert sum(step.begin >= max(starts) for step in line) >= count
        assert [step.begin for step in line] == [start, *(step.end for step in line[:-1])]


def _longer(one: PlainProgram) -> PlainProgram:
    """Return a program that ends with a computation, so that no step takes no time."""
    return one._replace(finish=(*one.finish, task("optimizer", 20.0)))


@settings(max_examples=examples(200), deadline=None)
@given(steps(links=False, losses=False))
def test_without_shared_links_a_step_is_its_longest_path_to_the_last_digit(step):
    [[found]] = everywhere([step.job()])
    assert found.solves == 0
    assert by_task(step.job().shape, found.ends) == longest_path([one.passes() for one in step.programs], step.members)


@settings(max_examples=examples(100), deadline=None)
@given(steps())
def test_each_task_begins_when_its_cause_ends_and_the_critical_path_sums_to_the_step(step):
    job = step.job()
    [[found]] = looped([job])
    path = critical_path(found)
    begun = np.where(found.cause < 0, found.begin, found.ends[found.cause])
    assert found.starts.tolist() == begun.tolist()
    assert sum(span.end - span.start for span in path) == pytest.approx(found.end - found.begin, rel=1e-12, abs=1e-12)


@settings(max_examples=examples(100), deadline=None)
@given(steps(), st.data())
def test_a_step_that_cannot_end_is_an_error_of_each_engine(step, data):
    """Without one of its messages a step ends in all engines or in none, as the longest path says."""
    programs = list(step.programs)
    rank = data.draw(st.integers(0, len(programs) - 1))
    programs[rank] = _without_message(programs[rank])
    cut = step._replace(programs=programs)
    try:
        longest_path([one.passes() for one in cut.programs], cut.members)
    except StuckError:
        job = cut.job()
        for run in (simulate, *(lambda _, jobs, one=one: looped(jobs, compiled=one) for one in (True, False))):
            with pytest.raises(DeadlockError, match=r"deadlock: rank cell \d cannot begin"):
                run(CAPACITY, [job])
    else:
        everywhere([cut.job()])


def _without_message(one: PlainProgram) -> PlainProgram:
    """Return a program whose first template with a message does not launch it."""
    for key, template in one.steps.items():
        sent = next((task for task in template if task.gives is not None), None)
        if sent is not None:
            lost = tuple(own._replace(gives=None) if own is sent else own for own in template)
            return one._replace(steps={**one.steps, key: lost})
    return one


# steps by hand


def ends(*programs, members=None):
    """Return the end of a step, which all engines and the longest path find."""
    step = Step(programs, members or {})
    [[found]] = everywhere([step.job()])
    if not found.solves:
        assert max(longest_path([one.passes() for one in programs], step.members).values()) == found.end
    return found.end


def test_tasks_of_one_stream_run_in_order_and_other_streams_concurrently():
    alone = (task("F", 2.0), task("send", 5.0, stream="pp"), task("F", 1.0))
    assert ends(program(alone)) == 7.0
    assert ends(program((*alone, task("F", 1.0, Wait("pp"))))) == 8.0
    assert ends(program((*alone, task("send", 5.0, stream="pp")))) == 12.0


def test_some_of_what_was_launched_is_waited_for_in_a_later_pass():
    first = tuple(task("send", x, stream="dp") for x in (1.0, 2.0, 4.0))
    for count, end in ((None, 7.5), (1, 1.5), (2, 3.5), (3, 7.5), (9, 7.5)):
        assert ends(program(first, (task("F", 0.5, Wait("dp", count)),))) == max(end, 7.0)
        assert ends(program((*first, task("F", 8.0)), (task("F", 0.5, Wait("dp", count)),))) == 8.5
    more = task("send", 1.0, stream="dp")
    assert ends(program(first[:1], (more, task("F", 0.5, Wait("dp", 2))))) == 2.5
    assert ends(program((task("F", 0.5, Wait("dp", 2)),))) == 0.5  # nothing was launched


def test_all_microbatches_of_a_template_follow_each_other():
    message = Message(("pp", 0), 1)
    row = [tuple(Action(stage, "F", i) for i in range(5)) for stage in (0, 1)]
    send = (task("F", 2.0), task("send", 1.0, Wait("pp"), stream="pp", gives=message))
    one = PlainProgram(row[0], {("F", 0): send})
    two = PlainProgram(row[1], {("F", 1): (task("F", 3.0, message),)}, finish=(task("optimizer", 0.5),))
    assert ends(one, two) == 2.0 + 1.0 + 5 * 3.0 + 0.5
    slower = one._replace(special={("F", 0): (task("F", 20.0), *send[1:])})
    assert ends(slower, two) == 20.0 + 1.0 + 5 * 3.0 + 0.5


def test_a_message_is_waited_for_and_ranks_of_a_group_start_together():
    message = Message(("pp", 0), 1)
    one = program((task("F", 2.0), task("send", 5.0, stream="pp", gives=message)))
    two = program((task("F", 1.0), task("F", 1.0, message)))
    assert ends(one, two) == 8.0
    group = ("tp", 0)
    one, two = (program((task("F", x), task("F", y, group=group))) for x, y in ((2.0, 1.0), (5.0, 4.0)))
    assert ends(one, two, members={group: 2}) == 9.0  # the slower one decides for both
    assert ends(one, two, members={group: 1}) == 9.0
    assert ends(one, members={group: 1}) == 3.0


def test_the_host_launches_from_the_begin_of_its_first_pass():
    """It launches 3 s of kernels for each pass: the second pass waits for 6 s, the first for 1 s."""
    passes = [
        (task("ready", at, stream="host"), task("F", 1.0, Wait("ready")), task("F", 3.0, stream="host"))
        for at in (1.0, 3.0)
    ]
    assert ends(program(*passes)) == 7.0


@pytest.mark.parametrize("group", [None, ("tp", 0)])
def test_a_message_that_nobody_sends_a_circle_and_an_incomplete_group_are_deadlocks(group):
    here, there = Message(("pp", 0), 1), Message(("pp", 1), 1)
    alone = program((task("F", 1.0, here),))
    one = program((task("F", 1.0, here), task("send", 1.0, stream="pp", gives=there)))
    two = program((task("F", 1.0, there), task("send", 1.0, stream="pp", gives=here)))
    for programs in (
        ((alone,), (one, two)) if group is None else ((program((task("F", 1.0, group=group),)), program(())),)
    ):
        with pytest.raises(DeadlockError, match=r"deadlock: rank cell \d cannot begin"):
            ends(*programs, members={group: 2} if group else {})


def test_two_messages_share_a_link():
    """The first is half over when the second begins: it ends at 1.5 s instead of 1 s, and the second at 2 s."""
    send = moving([0], 10.0, 10.0)
    one = program((task("send", send, stream="a"), task("F", 0.5), task("send", send, stream="b")))
    job = Step([one], {}).job()
    [[found]] = everywhere([job])
    assert by_task(job.shape, found.ends) == pytest.approx({(0, 1, 0): 1.5, (0, 1, 1): 0.5, (0, 1, 2): 2.0})
    assert sorted(found.segment_ends) == [0, 2]


def test_what_is_computed_beside_a_flow_that_is_over_is_not_slowed():
    """Slowed once before, so that its times are no longer those of its idle ones."""
    send, half = moving([0], 10.0, 10.0), moving([0], 5.0, 10.0)
    beside = Segment(0.0, flow_of("p", 1.0, 0.0, 10.0), overlapped=4.0, share=0.5)
    first = activity_of([*send.segments, beside, *send.segments])
    rank = program(
        (task("a", first, stream="a"), task("b", half, stream="b"), task("optimizer", 4.0), task("c", send, stream="b"))
    )
    job = Step([rank], {}).job()
    [[found]] = everywhere([job])
    assert by_task(job.shape, found.ends) == pytest.approx(
        {(0, 1, 0): 7.0, (0, 1, 1): 1.0, (0, 1, 2): 4.0, (0, 1, 3): 5.0}
    )
    assert found.segment_ends[0] == pytest.approx([0.0, 1.5, 1.5, 6.0, 6.0, 7.0])


def test_what_ends_makes_room_for_what_begins_then():
    send = moving([0], 10.0, 10.0)
    [[found]] = everywhere([Step([program((task("a", send, stream="a"), task("a", send, stream="a")))], {}).job()])
    assert found.ends.tolist() == [1.0, 2.0]
    assert not found.segment_ends and not found.solves


def test_the_environment_chooses_the_loop_in_python(monkeypatch):
    monkeypatch.setenv(PYTHON, "python")
    assert not is_compiled()
    assert isinstance(new_loop(CAPACITY, []), Loop)


def test_an_extension_built_from_another_source_is_not_used(monkeypatch):
    monkeypatch.setattr("clustersim.engine.compiled._loop", SimpleNamespace(SOURCE=1))
    extension._is_current.cache_clear()
    try:
        assert isinstance(new_loop(CAPACITY, []), Loop)
    finally:
        extension._is_current.cache_clear()


@pytest.mark.skipif(not is_compiled(), reason="the loop in C is not built")
def test_an_interruption_ends_a_step_without_contention(monkeypatch):
    """Its 983,056 events take about 50 ms, and run without the queue."""

    class StopError(Exception):
        """What Ctrl-C raises here."""

    def stop(*_):
        raise StopError

    def run_step(self):
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.005)
        try:
            return original(self)
        finally:
            ended.append((self.columns[0][1] >= 0.0).mean())

    original, ended = extension.CompiledLoop.run_step, []
    monkeypatch.setattr(extension.CompiledLoop, "run_step", run_step)
    split = {"tp": 1, "pp": 8, "dp": 1, "micro_batch": 1, "global_batch": 1 << 15}
    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        with pytest.raises(StopError):
            cs.simulate("leaf_spine_32", "llama3_8b", engine="auto", ignore_memory=True, predictor="roofline", **split)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert ended[0] < 1.0
