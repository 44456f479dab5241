"""The static player finds what SimPy finds where it says that it is proved, and steady periods are those of the whole step."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from engine_cases import cluster, job
from examples import examples
from folding_cases import FABRICS, FAULTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from static_cases import OPTIONS, TWO_LEAVES, asked, by_label, same, seconds

from clustersim.engine.compile import draft
from clustersim.engine.compiled import compiling_told
from clustersim.engine.contention import NO_CONTENTION, peaks
from clustersim.engine.fold.saturation import saturated_links
from clustersim.engine.instances import build, ordered
from clustersim.engine.program import COMPUTE, Launched, Message, Program, Task
from clustersim.engine.record import Period
from clustersim.engine.static import _node_by_node, longest
from clustersim.engine.steady_state import Periods
from clustersim.errors import InputError, SimulationError
from clustersim.report.breakdown import critical_path
from clustersim.schedules.action import Action
from clustersim.schedules.check import load, period
from clustersim.simulation import Simulator

LOSSES = {
    "sms": st.sampled_from([0, 24, 100]),
    "memory": st.sampled_from([0, "nccl", 0.5]),
    "framework": st.sampled_from(["", "megatron-core", "megatron-deepspeed"]),
    "seq": st.sampled_from([256, 2048]),
}


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(**OPTIONS)
def test_where_it_is_proved_the_longest_path_is_what_simpy_plays(nodes, fabric, fault, **options):
    simulator = Simulator(cluster(nodes, fabric=FABRICS[fabric], extra=FAULTS[fault]))
    one = asked(**options, batch=8 * nodes * 4)
    played = simulator.run(one, ignore_memory=True)
    assert played.record.player == "simpy"
    found = simulator.run(one, ignore_memory=True, engine="auto")
    assert found.record.player in ("static", "loop", "simpy")
    same(found.summary, played.summary)
    if not played.record.solves:  # nothing met on a link: float for float, but for periods that were counted
        assert found.record.player == "static"
    if not played.record.solves and found.played.skipped is None:
        assert found.record.end == played.record.end
        assert [s[:8] for s in sorted(found.record.spans)] == [s[:8] for s in sorted(played.record.spans)]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(**OPTIONS)
def test_where_few_tasks_meet_all_agree_on_what_simpy_plays(nodes, fabric, fault, **options):
    simulator = Simulator(cluster(nodes, fabric=FABRICS[fabric], extra=FAULTS[fault], nics=1, attach="shared"))
    one = asked(**options, batch=8 * nodes * 4)
    played = simulator.run(one, ignore_memory=True)
    found = simulator.run(one, ignore_memory=True, engine="auto")
    same(found.summary, played.summary)
    assert by_label(found.record)[1] == pytest.approx(
        by_label(played.record)[1], rel=1e-12, abs=1e-12 * played.record.end
    )


def test_a_long_simulation_by_simpy_is_told_with_the_faster_way(monkeypatch):
    simulator, told = Simulator(cluster(8, nics=1, attach="shared")), []
    one = job(parallelism__tp=1, parallelism__pp=2, training__global_batch=256)
    with compiling_told(told.append):
        simulator.run(one, ignore_memory=True)
        assert told == []
        monkeypatch.setattr("clustersim.engine.simulate.LONG", 0.0)
        simulator.run(one, ignore_memory=True)
    [text] = [text for text in told if "SimPy" in text]
    assert re.fullmatch(r"simulate .* by SimPy: about \d+ s; --engine auto .*", text)


def test_simpy_plays_what_could_overfill_a_link_and_nothing_else():
    simulator = Simulator(cluster(8, nics=1, attach="shared"))
    one = job(parallelism__tp=1, parallelism__pp=2, training__global_batch=256)
    found = simulator.run(one, ignore_memory=True, engine="auto").record
    played = simulator.run(one, ignore_memory=True).record
    assert found.player == "loop"
    assert 0 < found.events < played.events
    assert found.segment_ends.keys() == played.segment_ends.keys()
    for node, ends in found.segment_ends.items():
        assert ends == pytest.approx(played.segment_ends[node], rel=1e-12)
    assert found.ends.tolist() == pytest.approx(played.ends.tolist(), rel=1e-12)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(**OPTIONS, more=st.integers(0, 3))
def test_a_steady_pipeline_is_its_whole_step(nodes, fabric, fault, more, **options):
    if options["split"][1] == 1:
        options["split"] = (1, 2)
    simulator = Simulator(cluster(nodes, fabric=FABRICS[fabric], extra=FAULTS[fault]))
    copies = nodes * 4 // (options["split"][0] * options["split"][1])
    one = asked(**options, batch=copies * 4 * (18 + more))
    quick = simulator.outline(one, "auto")
    played = simulator.outline(one, "simpy")
    same(quick, played)
    assert quick["critical_path_kernels"] == pytest.approx(played["critical_path_kernels"], rel=1e-9)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(**OPTIONS, **LOSSES, nics=st.sampled_from([1, 4]), more=st.integers(0, 3))
def test_a_steady_pipeline_whose_passes_are_slowed_is_its_whole_step(
    nodes, fabric, fault, nics, more, sms, memory, framework, seq, **options
):
    if options["split"][1] == 1:
        options["split"] = (1, 2)
    attach = "per_gpu" if nics == 4 else "shared"
    simulator = Simulator(cluster(nodes, fabric=FABRICS[fabric], extra=FAULTS[fault], nics=nics, attach=attach))
    copies = nodes * 4 // (options["split"][0] * options["split"][1])
    losing = {"parallelism__overlap__sms": sms, "parallelism__overlap__memory": memory, "training__seq": seq}
    if framework:
        losing["training__framework"] = framework
    one = asked(**options, batch=copies * 4 * (12 + more), **losing)
    quick, played = simulator.outline(one, "auto"), simulator.outline(one, "simpy")
    assert quick["step_time_s"] == pytest.approx(played["step_time_s"], rel=1e-9)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(**OPTIONS, clocks=st.lists(st.sampled_from([0.6, 0.7, 0.8, 0.9]), min_size=2, max_size=2, unique=True))
def test_what_was_compiled_serves_other_clocks(nodes, fabric, fault, clocks, **options):
    if options["split"][1] == 1:
        options["split"] = (1, 2)
    topology = cluster(nodes, fabric=FABRICS[fabric], extra=FAULTS[fault])
    one, other = (asked(**options, batch=nodes * 64, clocks=clock) for clock in clocks)
    simulator = Simulator(topology)
    simulator.outline(one, "auto")
    again, fresh = simulator.outline(other, "auto"), Simulator(topology).outline(other, "auto")
    same(again, fresh)
    assert again["critical_path_kernels"] == pytest.approx(fresh["critical_path_kernels"], rel=1e-12)


def test_what_is_skipped_is_said_and_adds_up():
    simulator = Simulator(cluster(2))
    one = job(training__global_batch=2000, parallelism__pp=2, parallelism__tp=4)
    work, _, record = simulator._quickly(simulator.placed(one), "auto")
    assert record.skipped is not None
    whole = simulator.run(one, ignore_memory=True)
    assert len(record.spans) < len(whole.record.spans) / 10
    assert record.end == pytest.approx(whole.record.end, rel=1e-12)
    assert len(work.scripts[0].row) + record.skipped.periods * record.skipped.period.passes == 2 * 2000


@pytest.mark.parametrize("fault", ["none", "slow GPU"])
@pytest.mark.parametrize("zero", [0, 1])
def test_replicas_that_drift_apart_have_a_period_each_until_the_end_of_the_step_joins_them(fault, zero):
    """Three replicas of which one or two go from leaf to leaf, or one has a slow GPU."""
    simulator = Simulator(cluster(6, fabric=TWO_LEAVES, extra=FAULTS[fault]))
    one = job(training__global_batch=3 * 4 * 40, parallelism__pp=2, parallelism__tp=4, parallelism__zero=zero)
    _, _, record = simulator._quickly(simulator.placed(one), "auto")
    assert record.skipped is not None and record.skipped.lateness is not None
    quick, played = simulator.outline(one, "auto"), simulator.outline(one, "simpy")
    same(quick, played)
    assert quick["critical_path_kernels"] == pytest.approx(played["critical_path_kernels"], rel=1e-9)
    whole = simulator.run(one, ignore_memory=True)
    assert critical_path(record).computed().sum() == pytest.approx(
        critical_path(whole.record).computed().sum(), rel=1e-9
    )


def test_replicas_that_drift_apart_may_meet_on_a_link_at_any_of_their_times():
    """So no link that they could fill together is left out, whether or not the short step shows them there at once."""
    simulator = Simulator(cluster(6, fabric=TWO_LEAVES))
    one = simulator.placed(job(training__global_batch=3 * 4 * 40, parallelism__pp=2, parallelism__tp=4))
    work, plan, record = simulator._quickly(one, "auto")
    demand = draft([work], simulator.cluster).demand
    assert record.skipped is not None and record.skipped.lateness is not None
    at_once = saturated_links(demand, [plan.network], [[replace(record, skipped=None)]])
    assert (at_once <= saturated_links(demand, [plan.network], [[record]])).all()


@pytest.mark.parametrize("nics", [1, 4])
def test_what_was_compiled_is_timed_anew_also_where_simpy_plays_a_part(nics):
    topology = cluster(8, nics=nics, attach="per_gpu" if nics == 4 else "shared")
    slow, fast = (asked((1, 2), "1f1b", 0, False, False, False, 8, 512, clocks) for clocks in (0.6, 0.9))
    simulator = Simulator(topology)
    simulator.outline(slow, "auto")
    same(simulator.outline(fast, "auto"), Simulator(topology).outline(fast, "simpy"))


@pytest.mark.parametrize("wide", [False, True])
def test_nodes_on_a_circle_or_behind_one_have_no_place_in_the_order(wide):
    a, b = np.array([0, 0, 0, 1, 1, 3, 4]), np.array([0, 0, 1, 2, 1, 4, 4])
    assert ordered(a, b, wide).tolist() == [0, 1, 2, 4, 3, 6, 5]
    circle = np.array([0, 0, 3, 2])
    assert ordered(circle, circle, wide).tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_loops_find_the_same_to_the_last_digit_compiled_or_not(seed, monkeypatch):
    """On graphs whose nodes stand in any order, the begin first."""
    draw = np.random.default_rng(seed)
    count = 500
    number = np.append(0, 1 + draw.permutation(count - 1))
    a, b = np.zeros((2, count), np.int64)
    for column in (a, b):
        column[number[1:]] = number[[draw.integers(0, node) for node in range(1, count)]]
    seconds = draw.exponential(size=count - 1)
    found = []
    for enough, wide in ((np.inf, False), (np.inf, True), (-1, False)):
        monkeypatch.setattr("clustersim.engine.compiled.ENOUGH", enough)
        order = ordered(a, b, wide)
        place = np.argsort(order)
        ends = np.zeros(count)
        _node_by_node(place[a[order]][1:], place[b[order]][1:], seconds, ends)
        assert (np.maximum(place[a], place[b])[1:] < place[1:]).all()
        found.append((order.tolist(), ends.tolist()))
    assert found[0] == found[1] == found[2] and len(order) == count


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero_bubble"])
@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_one_period_more_is_one_more_copy_of_the_middle(name, stages, chunks):
    """What every rank does before and after the middle stays; so does the action before each one in the middle."""
    if (name == "1f1b" and chunks > 1) or (name == "interleaved" and chunks == 1):
        pytest.skip("this schedule has no such chunks")
    each = period(name, stages, chunks)
    few = 6 * max(stages, each) // each * each
    short, long = (load(name, stages, count, chunks) for count in (few, few + each))
    begin = few // 3 // each * each
    for row, longer in zip(short, long, strict=True):
        before, more = (dict(zip(x[1:], x[:-1], strict=True)) for x in (row, longer))

        def late(action, from_=begin):
            return action._replace(microbatch=action.microbatch + each) if action.microbatch >= from_ else action

        for action, one in before.items():
            if begin <= action.microbatch and one.microbatch >= 0:
                assert more[late(action)] == one._replace(microbatch=one.microbatch + each)
            if action.microbatch < begin:
                assert more[action] == one


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero_bubble"])
@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_period_more_is_put_in_at_one_place_after_the_first_backward_pass_of_each_rank(name, stages, chunks):
    if (name == "1f1b" and chunks > 1) or (name == "interleaved" and chunks == 1):
        pytest.skip("this schedule has no such chunks")
    each = period(name, stages, chunks)
    few = 6 * max(stages, each) // each * each
    short, long = (load(name, stages, count, chunks) for count in (few, few + each))
    passes = len(long[0]) - len(short[0])
    for row, longer in zip(short, long, strict=True):
        first = next(i for i, action in enumerate(row) if action.letter in "BI")
        for periods in range(2 + stages // each, (few - 2 * stages) // each - 1):
            place = first + periods * passes
            late = tuple(action._replace(microbatch=action.microbatch + each) for action in row)
            assert longer[:place] == row[:place]
            assert longer[place:] == late[place - passes :]


def test_a_period_is_not_skipped_when_what_follows_waits_as_long_for_what_no_period_delays():
    """Else the critical path of two that end at one time could go on from the one that stays where it is."""
    rows = [np.array(row) for row in ([-1, 0, 1, 2, 3], [-1, 2, 3, -1, -1])]  # nodes by place, and one period later
    follows = np.array([False, False, False, False, True])
    last, graph = Period(1, 1, rows[1], rows[0], np.array([0]), follows), build([program((task("F", 1.0),))], {})
    found = Periods(graph, last, 0, 1, np.array([0]), np.array([2]))
    assert found.seconds(np.array([0.5, 1.0, 2.0, 3.0, 4.0]), NO_CONTENTION) == 1.0
    assert found.seconds(np.array([2.0, 1.0, 2.0, 3.0, 4.0]), NO_CONTENTION) is None


def test_periods_are_not_skipped_in_which_a_last_digit_grows():
    """Here by a factor of four a period: after twenty the step has another period, in both players."""
    simulator = Simulator(cluster(2, fabric=FABRICS["4 to 1"], extra=FAULTS["slow NIC"]))
    one = asked((1, 2), "interleaved", 0, False, False, True, 16, 4 * 4 * 18)
    same(simulator.outline(one, "auto"), simulator.outline(one, "simpy"))


def test_schedules_that_do_not_repeat_are_played_whole():
    assert period("gpipe", 4) is None
    simulator = Simulator(cluster(1))
    one = job(training__global_batch=400, parallelism__pp=4, parallelism__schedule="gpipe")
    _, _, record = simulator._quickly(simulator.placed(one), "auto")
    assert record.skipped is None


def test_the_static_player_alone_refuses_what_it_cannot_prove():
    simulator = Simulator(cluster(8, nics=1, attach="shared"))
    one = job(parallelism__tp=1, parallelism__pp=2, parallelism__overlap__grad_reduce=True)
    assert simulator.run(one, ignore_memory=True, engine="auto").record.player != "static"
    with pytest.raises(InputError, match="use engine='auto' or simpy"):
        simulator.run(one, ignore_memory=True, engine="static")


# graphs by hand


def task(kind, time, *waits, stream=COMPUTE, gives=None, group=None):
    return Task(stream, kind, 0, group, waits, gives, seconds(time))


def program(*passes):
    row = tuple(Action(0, "F", i) for i in range(len(passes)))
    return Program((), row, {}, dict(zip(row, passes, strict=True)), ())


def ends(*programs, members=None):
    graph = build(programs, members or {})
    idle = [*(activity.idle for activity in graph.activities(graph.found(programs))), 0.0]
    return max(longest(graph, np.array(idle)[graph.slot]))


def test_tasks_of_one_stream_run_in_order_and_other_streams_beside_it():
    alone = (task("F", 2.0), task("send", 5.0, stream="pp"), task("F", 1.0))
    assert ends(program(alone)) == 7.0
    assert ends(program((*alone, task("F", 1.0, Launched("pp"))))) == 8.0
    assert ends(program((*alone, task("send", 5.0, stream="pp")))) == 12.0


def test_some_of_what_was_launched_is_waited_for_in_a_later_pass():
    first = tuple(task("send", x, stream="dp") for x in (1.0, 2.0, 4.0))
    for count, end in ((None, 7.5), (1, 1.5), (2, 3.5), (3, 7.5), (9, 7.5)):
        assert ends(program(first, (task("F", 0.5, Launched("dp", count)),))) == max(end, 7.0)
        assert ends(program((*first, task("F", 8.0)), (task("F", 0.5, Launched("dp", count)),))) == 8.5
    more = task("send", 1.0, stream="dp")
    assert ends(program(first[:1], (more, task("F", 0.5, Launched("dp", 2))))) == 2.5
    assert ends(program((task("F", 0.5, Launched("dp", 2)),))) == 0.5  # nothing was launched


def test_all_microbatches_of_a_template_follow_each_other():
    message = Message(("pp", 0), 1)
    row = [tuple(Action(stage, "F", i) for i in range(5)) for stage in (0, 1)]
    send = (task("F", 2.0), task("send", 1.0, Launched("pp"), stream="pp", gives=message))
    one = Program((), row[0], {("F", 0): send}, {}, ())
    two = Program((), row[1], {("F", 1): (task("F", 3.0, message),)}, {}, (task("optimizer", 0.5),))
    assert ends(one, two) == 2.0 + 1.0 + 5 * 3.0 + 0.5
    slower = one._replace(special={row[0][4]: (task("F", 20.0), *send[1:])})
    assert ends(slower, two) == 4 * 2.0 + 20.0 + 1.0 + 3.0 + 0.5


def test_what_is_launched_and_waited_for_at_once_needs_no_node_to_wait():
    sent = task("send", 1.0, stream="p2p", gives=Message(("p2p", 0), 0))
    graph = build([program((task("F", 1.0), sent, task("", 0.0, Launched("p2p"))), (task("F", 1.0),))], {})
    assert len(graph) == 1 + 3


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


def test_a_message_that_nobody_sends_and_a_circle_are_deadlocks():
    here, there = Message(("pp", 0), 1), Message(("pp", 1), 1)
    with pytest.raises(SimulationError, match="deadlock: rank cell 0 cannot begin"):
        ends(program((task("F", 1.0, here),)))
    one = program((task("F", 1.0, here), task("send", 1.0, stream="pp", gives=there)))
    two = program((task("F", 1.0, there), task("send", 1.0, stream="pp", gives=here)))
    with pytest.raises(SimulationError, match="deadlock: rank cell 0 cannot begin"):
        ends(one, two)
    with pytest.raises(SimulationError, match="deadlock"):
        ends(program((task("F", 1.0, group=("tp", 0)),)), members={("tp", 0): 2})


def test_what_ends_makes_room_for_what_begins_then():
    rows, begun, over = np.array([0, 0, 0, 1]), np.array([0.0, 1.0, 1.5, 0.0]), np.array([1.0, 2.0, 3.0, 9.0])
    assert peaks(rows, begun, over, np.array([0.6, 0.6, 0.3, 0.5]), 3).tolist() == pytest.approx([0.9, 0.5, 0.0])
