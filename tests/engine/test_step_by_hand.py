"""A step of two ranks and two microbatches, executed as worked out by hand in CONTRIBUTING.md."""

import numpy as np
from activities import activity_of
from flows import flow as flow_of
from random_steps import plan

from clustersim.engine.compiled import loop
from clustersim.engine.fabric import Segment
from clustersim.engine.program import Layout, PassMessage, Program, Task
from clustersim.engine.times import Tasks, loop_times
from clustersim.schedules.action import Action


def layout(*tasks):
    """One template: the forward passes of the rank's chunk 0."""
    return Layout(steps={("F", 0): tasks})


def test_a_step_of_two_ranks_is_the_one_worked_out_by_hand():
    link = np.array([10.0])  # bytes/s of link 0
    two, three = (activity_of([Segment(seconds, None)]) for seconds in (2.0, 3.0))
    sent = activity_of([Segment(0.0, flow_of("p2p", 0.5, 10.0, 10.0, (0, 1.0)))])
    first = layout(Task("compute", "F", 0), Task("p2p", "send", 0, gives=PassMessage("p2p", 0, ahead=1)))
    second = layout(Task("compute", "F", 0, waits=(PassMessage("p2p", 0),)))
    rows = [tuple(Action(stage, "F", microbatch) for microbatch in range(2)) for stage in range(2)]
    programs = [Program(first, rows[0], stages=(0,)), Program(second, rows[1], stages=(1,))]
    # both ranks are in the only pair: the one as the sender, the other as the receiver
    tasks = Tasks(plan(programs, [(two, sent), (three,)], [{"p2p/send": 0}, {"p2p/receive": 0}]))

    step = tasks.shape
    assert step.op.tolist() == [0, 2, 0]  # compute, launch, compute: three tasks …
    assert step.events == 6  # … of which each is executed twice
    times = loop_times(tasks, link)
    [[found]] = loop(link, [times])
    assert found.starts.tolist() == [0.0, 2.0, 2.0, 4.0, 3.5, 6.5]
    assert found.ends.tolist() == [2.0, 3.5, 4.0, 5.5, 6.5, 9.5]
    assert found.cause.tolist() == [-1, 0, 0, 2, 1, 4]  # the event whose end let each one begin
