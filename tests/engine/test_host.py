"""The host that launches kernels: a queue's laws, in passes, over a step, at the update, for both engines."""

import numpy as np
import pytest
from engine_cases import cluster, job
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from script_cases import by_action
from sweep_cases import keywords

from clustersim.config.yaml import parse
from clustersim.engine.fabric import HOST
from clustersim.engine.launching import launching
from clustersim.engine.program import Wait
from clustersim.frameworks.table import load
from clustersim.model.kernel import Kernel
from clustersim.parallel.host import Launcher, LaunchQueue, host
from clustersim.simulation import Simulator, run
from clustersim.topology.build import build

TIMES = st.floats(1e-6, 1e-2)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=30))
def test_a_row_of_launches_ends_as_a_max_plus_product(row):
    queue = LaunchQueue()
    waits = [queue.run(*one) for one in row]
    launch, seconds = (np.array(column) for column in zip(*row, strict=True))
    ends = np.cumsum(launch) + np.cumsum(seconds[::-1])[::-1]
    assert queue.over == pytest.approx(ends.max(), rel=1e-12)
    assert queue.launched == pytest.approx(launch.sum(), rel=1e-12)
    assert waits[0]
    assert queue.over >= max(launch.sum(), seconds.sum())


CLUSTER = """
cluster:
  name: test
  nodes: 2
  node: {{extends: hgx-h100, gpus: {{model: h100-sxm, count: 4}}, nics: {{count: 4, rate: 400Gb/s}}, host: {{slowdown: {}}}}}
fabric: {{kind: switch}}
"""


def node(slowdown):
    return build(parse(CLUSTER.format(slowdown), "test.yaml"))


def step(slowdown=1.0, engine="simpy", fold=True, **overrides):
    overrides = {"training__framework": "megatron-deepspeed"} | overrides
    overrides = {key: value for key, value in overrides.items() if value is not None}
    return run(node(slowdown), job(**overrides), fold=fold, ignore_memory=True, engine=engine)


def seconds(result):
    return result.summary["step_time_s"]


CHUNKS = "pp=2 vpp=2 schedule=interleaved"
BUCKETS = "dp=8 parallelism.overlap.grad_reduce=true parallelism.bucket=100000"
CORE = "training.framework=megatron-core"
CASES = {
    "alone": "dp=1",
    "tensor parallel": "tp=4 dp=2",
    "pipeline": "pp=4 dp=2",
    "pipeline without waiting": "pp=2 dp=4 parallelism.overlap.p2p=true",
    "chunks": f"{CHUNKS} dp=2",
    "buckets": BUCKETS,
    "all": "tp=2 pp=2 dp=2 parallelism.sequence_parallel=true",
    "loss": f"{CORE} tp=2",
    "loss and buckets": f"{CORE} {BUCKETS}",
    "loss of chunks": f"{CORE} {CHUNKS} parallelism.overlap.p2p=true",
    "experts": f"{CORE} model.experts=4 model.topk=2 ep=2 dp=4",
    "experts in a pipeline": f"{CORE} recompute=full model.experts=4 model.topk=2 ep=2 pp=2 dp=2",
    "sharded": "training.framework=fsdp zero=3 dp=4",
}
CASES = {name: keywords(words) for name, words in CASES.items()}


@pytest.mark.parametrize("case", CASES)
def test_a_fast_host_changes_nothing(case):
    without = seconds(step(**CASES[case] | {"training__framework": None}))
    assert seconds(step(1e-9, **CASES[case])) == pytest.approx(without, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_graphs_of_all_passes_leave_the_launches_of_the_update(case):
    without = step(**CASES[case] | {"training__framework": None})
    captured = step(training__cuda_graphs="full", **CASES[case])
    more = seconds(captured) - seconds(without)
    update = captured.summary["breakdown_s"]["optimizer"] - without.summary["breakdown_s"]["optimizer"]
    assert more == pytest.approx(update, abs=2e-5)  # the mean of ranks, whose tensors differ in number
    assert "host" not in captured.summary["breakdown_s"]


@pytest.mark.parametrize("case", CASES)
def test_a_slower_host_makes_no_step_shorter(case):
    times = [seconds(step(slowdown, **CASES[case])) for slowdown in (0.01, 0.1, 1.0, 3.0)]
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_a_slow_host_takes_the_sum_of_its_launches():
    result = step(30.0, parallelism__dp=1)
    work = Simulator(result.topology).preparation.work(result.job, np.arange(1))
    [script] = work.scripts
    kernels = [item for lines in by_action(script) for line in lines for item in line.items]
    assert all(isinstance(item, Kernel) for item in kernels)
    launched = sum(work.hosts[0].seconds(kernel) for kernel in kernels)
    parts = result.summary["breakdown_s"]
    last = work.seconds[0][kernels[-1]]
    assert seconds(result) - parts["optimizer"] == pytest.approx(launched + last, rel=1e-9)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("slowdown", [0.02, 0.05, 0.1, 0.3, 3.0])
def test_a_host_runs_on_as_one_row_of_all_passes_or_begins_anew_where_it_reads_the_loss(slowdown, reads):
    result = step(slowdown, parallelism__dp=1, training__check_nan=reads)
    work = Simulator(result.topology).preparation.work(result.job, np.arange(1))
    [script] = work.scripts
    queue = LaunchQueue()
    for action, lines in zip(script.row, by_action(script), strict=True):
        for line in lines:
            for kernel in line.items:
                queue.run(work.hosts[0].seconds(kernel), work.seconds[0][kernel])
        if reads and action.letter == "F":
            queue.launched = queue.over
    passes = seconds(result) - result.summary["breakdown_s"]["optimizer"]
    assert passes == pytest.approx(queue.over, rel=1e-9)


def test_whether_the_loss_is_read_is_the_frameworks_habit_unless_a_job_says_so():
    def late(**options):
        return seconds(step(0.5, parallelism__dp=1, **options))

    never, always = ({"training__check_nan": value} for value in (False, True))
    core, deepspeed = ({"training__framework": name} for name in ("megatron-core", "megatron-deepspeed"))
    assert late(**core) == late(**core, **always) > late(**core, **never)
    assert late(**deepspeed) == late(**deepspeed, **never) < late(**deepspeed, **always)
    graphs = {"training__cuda_graphs": "full"}  # have no place to read it
    assert late(**core, **graphs) == late(**core, **graphs, **never)


def test_a_host_that_reads_the_norm_of_each_bucket_begins_anew_before_its_reduction():
    options = {"parallelism__dp": 8, "parallelism__overlap.grad_reduce": True, "parallelism__bucket": 100_000}
    result = step(0.05, **options, training__check_nan=True)
    [script] = Simulator(result.topology).preparation.work(result.job, np.arange(8)).scripts
    [last] = script.layout.special.values()
    launched = [place for place, line in enumerate(last) if line.collective]
    assert len(launched) > 10
    assert all(last[place - 1].kind == "synchronise" for place in launched)
    unread = step(0.05, **options, training__check_nan=False)
    assert seconds(result) > seconds(unread)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_host_in_time_costs_one_launch_behind_each_count_of_rows(recompute):
    """The host reads how many rows go where: the kernel behind that begins one launch later, and no other does."""
    options = keywords(f"training.framework=nemo recompute={recompute} model.experts=4 model.topk=2 ep=2 dp=2")
    known = {"training__capacity_factor": 1.0, "training__pad_to_capacity": True}  # as many rows, whose number is known
    counted, padded = step(1e-3, **options), step(1e-3, **options, **known)
    often = counted.job.microbatches * 8 * (2 if recompute == "full" else 1)
    launch = 1e-3 * load("nemo").host.kernel.value
    waited = counted.summary["breakdown_s"]["host"] - padded.summary["breakdown_s"].get("host", 0.0)
    assert waited == pytest.approx(often * launch, rel=1e-6)


def test_a_host_that_waits_at_every_message_begins_each_pass_anew():
    result = step(10.0, parallelism__pp=2, parallelism__dp=1, training__global_batch=8)
    # each pass is as long as its launches, whatever came before
    assert "host" not in {task.stream for task in result.record.shape.lines}
    work = Simulator(result.topology).preparation.work(result.job, np.arange(2))
    plan = result.plan
    for script, program, begin in zip(work.scripts, plan.programs, plan.begins[:-1], strict=True):
        for key, lines in script.layout.steps.items():
            queue = LaunchQueue()
            for line in lines:
                for kernel in line.items:
                    queue.run(work.hosts[0].seconds(kernel), work.seconds[0][kernel])
            [place] = [i for i in program.layout.templates["steps", key] if program.layout.tasks[i].kind == key[0]]
            assert plan.activities[plan.does[begin + place]].timing.idle == pytest.approx(queue.over, rel=1e-12)


@settings(deadline=None, max_examples=examples(30))
@given(st.floats(1e-7, 1e-3))
def test_who_is_said_to_be_prompt_is_never_waited_for(launch):
    placed = job(parallelism__dp=1).place(8, 4)
    work = Simulator(node(1.0)).preparation.work(placed, np.arange(1))
    host = Launcher(launch, launch, launch, 0.0, 0.0, False, launch)
    found = launching(placed, work.scripts, work.seconds, (host,))
    [script] = work.scripts
    queue, late = LaunchQueue(), []
    for number, lines in enumerate(by_action(script)):
        for line in lines:
            late += [number for kernel in line.items if queue.run(launch, work.seconds[0][kernel])]
    if found.mode == "prompt":
        assert set(late) == {0}


def test_gathered_parameters_are_put_back_one_by_one_for_each_rank_where_a_framework_does_so():
    """nanotron's ZeRO-1: an update takes a launch for each tensor and replica more than one whose tensors lie in a buffer."""
    options = {"parallelism__dp": 4, "parallelism__zero": 1, "training__framework": "nanotron"}

    def put_back(slowdown):
        result = step(slowdown, **options)
        [script] = Simulator(result.topology).preparation.work(result.job, np.arange(4)).scripts
        return [line for line in script.layout.finish if line.items], result.summary["breakdown_s"]["optimizer"]

    (lines, slow), (_, slower) = put_back(10.0), put_back(20.0)
    *_, update, copies = lines
    assert copies.launches.parts == 4 * update.launches.tensors > 0
    host = load("nanotron").host
    launched = host.parameter.value * update.launches.tensors + host.unflattens.value * copies.launches.parts
    launched += host.kernel.value * sum(len(line.items) for line in lines) + 2 * host.collective.value
    assert slower - slow == pytest.approx(10 * launched, rel=1e-9)


def test_a_framework_without_a_publisher_runs_without_the_habits_that_were_read_from_it():
    zero = {"parallelism__dp": 4, "parallelism__zero": 1}
    seen, unseen, other = (
        seconds(step(**zero, training__framework=name))
        for name in ("nanotron", "nanotron without ULTRA", "nanotron without VTRAINS")
    )
    assert unseen > seen == other  # as long as other calls of PyTorch


def test_a_framework_that_reduces_whole_gradients_moves_twice_the_bytes_of_their_shards():
    def reductions(framework):
        options = {"parallelism__dp": 4, "parallelism__zero": 1, "training__framework": framework}
        result = step(1.0, **options, training__gradients="fp32")
        [script] = Simulator(result.topology).preparation.work(result.job, np.arange(4)).scripts
        lines = (line.collective for line in script.layout.finish if line.collective and line.collective.group == "dp")
        return [(line.op, line.size) for line in lines if line.op != "all_gather"]

    [(whole, size)], [(sharded, same)] = reductions("nanotron"), reductions("megatron-core")
    assert (whole, sharded, size) == ("all_reduce", "reduce_scatter", same)


def test_ranks_that_own_whole_weights_broadcast_them_one_after_the_other():
    options = {"parallelism__dp": 4, "parallelism__zero": 1, "parallelism__overlap__param_gather": False}

    def collectives(framework):
        result = step(1.0, **options, training__framework=framework)
        [script] = Simulator(result.topology).preparation.work(result.job, np.arange(4)).scripts
        lines = (line.collective for line in script.layout.finish if line.collective)
        return [line.size for line in lines if line.op in ("all_gather", "broadcast")]

    [gathered], owners = collectives("megatron-core"), collectives("internevo")
    assert len(owners) == 4
    assert sum(owners) == pytest.approx(gathered)


def test_megatrons_parameters_are_gathered_where_they_lie():
    result = step(1.0, parallelism__dp=4, parallelism__zero=1, training__framework="megatron-core")
    [script] = Simulator(result.topology).preparation.work(result.job, np.arange(4)).scripts
    assert isinstance(script.layout.finish[-1].waits[-1], Wait)


def test_graphs_of_layers_end_at_the_router_where_rows_of_experts_vary():
    """Shapes that vary cannot be captured (Megatron-Core, cuda_graph_scope): experts are launched one by one, unless padded."""
    experts = {"model__experts": 8, "model__topk": 2, "training__framework": "megatron-core"}
    padded = {"training__pad_to_capacity": True, "training__capacity_factor": 1.0}

    def launches(**more):
        one = host(job(**experts, **more))
        return one.kernel, one.experts

    kernel, each = launches()
    assert kernel == each > 0
    captured, each = launches(training__cuda_graphs="layer")
    assert captured < each == kernel
    assert launches(training__cuda_graphs="layer", **padded) == (captured, captured)
    assert launches(training__cuda_graphs="full") == (0.0, 0.0)


def test_a_step_without_a_modelled_host_has_no_task_of_one():
    result = run(cluster(2), job(parallelism__pp=2, parallelism__dp=1, training__check_nan=True))
    assert not result.plan.hosts
    assert not any(task.stream == HOST for program in result.plan.programs for task in program.layout.tasks)
