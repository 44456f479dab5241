"""Plans: closed forms and published figures of failures, checkpoints and spares, a run that was published, and bad questions."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from ctrl_c import press_ctrl_c
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import loaded

from clustersim.cli.plan import _progress_text
from clustersim.config.workload import Workload
from clustersim.errors import InputError
from clustersim.optimization.answer import answer as optimized
from clustersim.optimization.objective import objective
from clustersim.optimization.search import Limits, Stop, free
from clustersim.planning.answer import answer, changes
from clustersim.planning.batches import batches, filling, most_tokens
from clustersim.planning.planner import NEAR, Planner
from clustersim.planning.reliability import (
    DAY,
    expected_maximum,
    goodput,
    interval,
    load,
    progress,
    spares,
)
from clustersim.planning.renewal import play
from clustersim.planning.request import MINIMIZED, PlanRequest, amount
from clustersim.sweeps import evaluate
from clustersim.sweeps.legal import legal
from clustersim.sweeps.space import NODES, SweepSpace
from clustersim.units import dollars

LLAMA3 = DAY * 1000 / (3.79 * 2048)
"""Seconds between interruptions of 2,048 nodes at the rate of Llama 3."""


def daly(blocking: float, mtti: float) -> float:
    """Return Daly's interval of higher order (2006)."""
    x = blocking / (2 * mtti)
    return math.sqrt(2 * blocking * mtti) * (1 + math.sqrt(x) / 3 + x / 9) - blocking


@pytest.mark.parametrize(("mtti", "minutes"), [(24 * 3600, 117), (6 * 3600, 57), (900, 9.1)])
def test_intervals_are_those_of_the_paper(mtti, minutes):
    """Checkpoints of five minutes: figures 3 to 5 of Daly 2006."""
    assert round(daly(300, mtti) / 60, 0 if minutes > 10 else 1) == minutes
    assert interval(300, mtti) == pytest.approx(daly(300, mtti), rel=0.004)


@pytest.mark.parametrize(
    ("blocking", "restart", "first", "exact", "share"),
    [(60, 900, 1155.7, 1116.1, 0.82985), (10, 300, 471.8, 465.2, 0.93273), (2, 300, 211.0, 209.7, 0.95507)],
)
def test_goodput_is_that_of_the_worked_example(blocking, restart, first, exact, share):
    assert pytest.approx(11131.27, rel=1e-6) == LLAMA3
    assert round(math.sqrt(2 * blocking * LLAMA3), 1) == first
    assert round(interval(blocking, LLAMA3), 1) == exact
    assert round(progress(LLAMA3, blocking, restart, interval(blocking, LLAMA3)), 5) == share


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(st.floats(0.1, 600), st.floats(600, 1e6), st.floats(0, 2000), st.floats(0.3, 3))
def test_no_other_interval_is_better(blocking, mtti, restart, factor):
    best = interval(blocking, mtti)
    assert progress(mtti, blocking, restart, best) >= progress(mtti, blocking, restart, best * factor) * (1 - 1e-12)


@pytest.mark.parametrize(("blocking", "restart"), [(60.0, 900.0), (10.0, 300.0)])
def test_runs_played_event_by_event_take_the_time_of_the_closed_form(blocking, restart):
    work = interval(blocking, LLAMA3)
    found = [play(30 * DAY, LLAMA3, blocking, restart, work, DAY, 10**6, seed).seconds / DAY for seed in range(120)]
    expected = 30 / progress(LLAMA3, blocking, restart, work)
    assert np.mean(found) == pytest.approx(expected, abs=4 * np.std(found) / math.sqrt(len(found)))
    assert np.mean(found) == pytest.approx(expected, rel=0.004)


def test_a_run_that_never_fails_takes_its_work_and_its_checkpoints():
    found = play(1000.0, 1e30, 2.0, 50.0, 100.0, DAY, 0, 1)
    assert found == (1020.0, 0, 0.0)


def test_failures_wait_where_no_spare_is_free():
    many = [play(20 * DAY, LLAMA3, 10, 300, 465, DAY, spares, 3) for spares in (0, 4, 16)]
    assert many[0].waited > many[1].waited > many[2].waited
    assert many[0].seconds > many[1].seconds > many[2].seconds


@pytest.mark.parametrize(("mean", "least"), [(3.88, 10), (7.76, 16), (23.3, 36), (54.3, 73)])
def test_spares_are_the_least_that_are_rarely_too_few(mean, least):
    assert spares(mean, 0.01) == least


def test_the_largest_of_many_normal_numbers():
    assert expected_maximum(1) == 0
    assert expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-6)
    draws = np.random.default_rng(1).standard_normal((20000, 128)).max(axis=1)
    assert expected_maximum(128) == pytest.approx(draws.mean(), abs=0.01)
    assert expected_maximum(1000) < math.sqrt(2 * math.log(1000))


def test_the_54_days_of_llama_3():
    """419 unexpected interruptions on 16,384 GPUs, more than 90 % of the time effective (arXiv 2407.21783)."""
    found = goodput(load(), 2048, 16384, 405e9, 128)
    assert load().detect.value == 600  # the bound that MegaScale publishes of its mean, not fitted to this run
    assert 54 * DAY / found.mtti == pytest.approx(419, rel=0.01)
    assert 0.90 < found.share < 0.96
    work = 54 * DAY * found.progress
    timing = (found.mtti, found.checkpoint.blocking, found.restart, found.interval)
    runs = [play(work, *timing, load().repair.value * DAY, found.spares, seed) for seed in range(20)]
    assert np.mean([run.failures for run in runs]) == pytest.approx(419, rel=0.05)
    assert 0.90 < work / np.mean([run.seconds for run in runs]) < 0.96
    assert found.checkpoint.size == pytest.approx(5.67e12)


def test_bloom_wrote_a_checkpoint_as_long_as_published(tmp_path):
    """2.3 TB in 40 s at 57 GB/s, every three hours: 0.37 % (BLOOM)."""
    file = tmp_path / "bloom.yaml"
    file.write_text(f"state: 13.1\nwrite: {57 / 384}\n")
    found = goodput(load(file), 48, 384, 176e9, 8, asynchronous=False)
    assert found.checkpoint.size == pytest.approx(2.3e12, rel=0.01)
    assert found.checkpoint.blocking == pytest.approx(40, rel=0.02)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("failures: -1", "bad.yaml:1:11: failures.value"),
        ("repair: 0", "bad.yaml:1:9: repair.value"),
        ("writes: 3", "unknown key 'writes'; did you mean 'write'?"),
    ],
)
def test_rates_that_cannot_be_are_one_sentence(tmp_path, text, sentence):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape(sentence)):
        load(file)


def test_amounts_are_read_as_people_write_them():
    assert amount("--tokens", "15T") == 15e12
    assert amount("--tokens", "300B") == 3e11
    assert amount("--budget", "2.5M") == 2.5e6
    for wrong in ("0", "-3T", "15 tokens", "", "T"):
        with pytest.raises(InputError, match=r"write a number above 0 such as 15T, 300B or 2\.5M"):
            amount("--tokens", wrong)
    with pytest.raises(InputError, match=r"is more than 1e\+18; write a number such as 15T"):
        amount("--tokens", "1e30")
    with pytest.raises(InputError, match=r"above 0 such as 20M"):
        amount("--budget", "0", "20M")


@pytest.fixture(scope="module")
def planner():
    return Planner(loaded("rail_optimized", "llama3_8b"), load())


KIND = {"cluster.gpu": "h100", "predictor": "roofline", "training.global_batch": 512}


SMALL = {
    **KIND,
    "parallelism.cp": 1,
    "parallelism.ep": 1,
    "parallelism.vpp": 1,
    "parallelism.zero": 1,
    "parallelism.schedule": "1f1b",
    "training.micro_batch": 1,
    "training.recompute": "none",
    "parallelism.overlap.tp": "none",
    "parallelism.overlap.p2p": True,
    "parallelism.overlap.grad_reduce": True,
    "parallelism.overlap.param_gather": True,
}
"""A kind of cluster whose splits differ only in tp, pp and the number of replicas."""
FEW = [
    word
    for key, value in SMALL.items()
    if key not in (*KIND, "parallelism.zero", "training.micro_batch")
    for word in ("--set", f"{key}={str(value).lower()}")
]
"""Options of a command that leave as few splits; ZeRO and microbatches are open."""


def test_a_plan_says_how_far_it_is_before_each_simulation(planner):
    """What was simulated for an earlier question is not simulated again, and counts."""
    told = []
    found = replace(planner, show=lambda *now: told.append(now)).plan(PlanRequest(1e12, 10.0, None, (KIND,)), KIND)
    sought, done, left = map(list, zip(*told, strict=True))
    assert done[0] == 0
    assert max(left) < found.screened
    assert done == sorted(done)
    assert found.tried <= len(told)
    assert set(sought) == {"the cheapest plan on h100-sxm within 10 days"}


@pytest.mark.parametrize(
    ("limits", "sought"),
    [
        ({"days": 17.0}, "the cheapest plan on h100-sxm within 17 days"),
        ({"budget": 2e6}, "the fastest plan on h100-sxm within 2,000,000 USD"),
        ({"days": 17.0, "nodes": 9, "objective": "gpus"}, "the smallest plan on h100-sxm within 17 days and 9 nodes"),
        ({}, "the fastest plan on h100-sxm, without a limit"),
    ],
)
def test_a_plan_under_way_says_what_is_looked_for(planner, limits, sought):
    told = []
    asked = replace(PlanRequest(1e11, None, None, (SMALL,)), **limits)
    Planner(planner.case, planner.how, show=lambda *now: told.append(now)).plan(asked, SMALL)  # knows no answer yet
    assert {one[0] for one in told} == {sought}
    said = f"look for {sought}: 0 splits simulated so far, at most {told[0][2]:,} more may be better"
    assert _progress_text(*told[0]) == said


def test_a_plan_is_in_time_and_none_that_was_looked_at_is_a_percent_cheaper(planner):
    asked = PlanRequest(1e12, 10.0, None, (KIND,))
    found = planner.plan(asked, KIND)
    assert found.days <= 10
    assert found.usd == pytest.approx(found.days * 24 * 3.9 * 8 * (found.nodes + found.goodput.spares))
    for nodes in (found.nodes // 4, found.nodes // 2, found.nodes * 3 // 2, found.nodes * 2, found.nodes * 4):
        best = planner.best(KIND, max(nodes, 1), Limits()).best[0]
        other = planner.as_plan(asked, best.point, max(nodes, 1), best.row)
        assert other.days > 10 or other.usd >= found.usd * (1 - NEAR)


@pytest.fixture(scope="module")
def small(planner):
    """Return a request within eight nodes and as many days, and the plan of every split on every number of nodes."""
    asked = PlanRequest(1e11, 8.0, None, (SMALL,), nodes=8)
    axes = {NODES: list(range(1, 9))}
    space = SweepSpace(axes, SMALL, frozenset(), ("parallelism.tp", "parallelism.pp"))
    rows = [(point, evaluate.evaluate(planner.case, point)) for point in legal(planner.case, space)]
    return asked, [planner.as_plan(asked, point, point[NODES], row) for point, row in rows if row["status"] == "ok"]


def least(asked, goal, plans):
    return min(replace(asked, objective=goal).rank(one.amounts)[0] for one in plans)


@pytest.mark.parametrize("goal", MINIMIZED)
def test_the_best_by_each_objective_is_that_of_trying_every_split(planner, small, goal):
    asked, every = small
    assert len({one.nodes for one in every}) > 4
    found = planner.plan(replace(asked, objective=goal), SMALL)
    assert not asked.misses(found.amounts)
    assert 1 - 1e-9 <= least(asked, goal, [found]) / least(asked, goal, every) <= 1 + NEAR


def test_no_plan_beats_one_of_the_front_which_has_the_best_by_each_objective(planner, small):
    asked, every = small
    found = answer(planner, replace(asked, front=True))
    plans = [one for _, one in found.front]
    amounts = [[float(one.amounts[name]) for name in MINIMIZED.values()] for one in plans]
    beaten = [(a, b) for a in amounts for b in amounts if a != b and all(x <= y for x, y in zip(a, b, strict=True))]
    assert len(plans) >= 3
    assert not beaten
    assert sorted(goal for goals in found.winners for goal in goals) == sorted(MINIMIZED)
    for goal in MINIMIZED:
        [winner] = [one for goals, one in zip(found.winners, plans, strict=True) if goal in goals]
        assert least(asked, goal, [winner]) == least(asked, goal, plans) <= least(asked, goal, every) * (1 + NEAR)
    assert found.plans[0][1] in plans
    assert answer(planner, asked).front == ()


def test_a_plan_with_the_only_known_price_is_of_the_front(planned):
    words = "gpt3_xl --tokens 20B --nodes 1 --pareto --gpu a100,h800 --global-batch 512 --json"
    found = json.loads(planned(words, *FEW)[1])
    [rent] = [one for one in found["pareto"] if "rent" in one["best_by"]]
    [days] = [one for one in found["pareto"] if "soonest" in one["best_by"]]
    assert rent["usd"] == min(one["usd"] for one in found["plans"] if one["usd"] is not None)
    assert days["days"] == min(one["days"] for one in found["plans"]) < rent["days"]
    assert days["usd"] is None


@pytest.mark.parametrize(
    ("goal", "remedy"), [("rent", "--price, in USD per GPU-hour"), ("owned", "the price of its node")]
)
def test_an_objective_in_money_without_a_price_says_what_to_add(planned, goal, remedy):
    code, out, err = planned(f"gpt3_xl --tokens 1B --nodes 1 --gpu h20 --objective {goal}")
    assert (code, out) == (2, "")
    assert f"--objective {goal}: the price of h20" in err
    assert remedy in err


def test_clusters_without_a_price_are_no_plans_of_an_objective_in_money(planned):
    words = "gpt3_xl --tokens 20B --nodes 1 --gpu h800,a100 --objective rent --global-batch 512 --json"
    code, out, _ = planned(words, *FEW)
    found = json.loads(out)
    assert code == 0
    assert [one["usd"] > 0 for one in found["plans"]] == [True]
    assert [one["cluster.gpu"] for one in found["without"]] == ["h800"]
    assert "--objective rent: the price of h800" in found["without"][0]["why"]


@pytest.mark.parametrize(("gpus", "goal"), [("h800", "gpus"), ("h800,a100", "rent"), ("a100", "rent")])
def test_a_plan_without_a_price_says_that_it_has_the_fewest_gpus(planned, gpus, goal):
    words = f"gpt3_xl --tokens 20B --days 30 --gpu {gpus} --global-batch 512"
    assert json.loads(planned(words, "--json", *FEW)[1])["objective"] == goal
    out = planned(words, *FEW)[1]
    said = re.findall(r"^  (\S+) has the fewest GPUs, as its price is unknown; add --price$", out, re.M)
    assert said == ["h800"] * ("h800" in gpus)
    assert (": the smallest plan\n" in out) == (goal == "gpus")


def test_more_time_is_never_dearer_and_a_budget_is_kept(planner):
    usd = [planner.plan(PlanRequest(1e12, days, None, (KIND,)), KIND).usd for days in (8.0, 10.0, 14.0)]
    assert usd == sorted(usd, reverse=True)
    assert planner.plan(PlanRequest(1e12, 10.0, usd[1] * 0.5, (KIND,)), KIND) is None
    spent = planner.plan(PlanRequest(1e12, 14.0, usd[0] * 1.5, (KIND,)), KIND)
    assert spent.usd <= usd[0] * 1.5


@pytest.mark.slow
def test_a_plan_is_no_dearer_than_an_earlier_one_or_one_on_fewer_nodes():
    """On up to 64 nodes, 64 are cheapest for 70B parameters; 30 days once gave 48 nodes, 2 % dearer than those for 23 days."""
    planner = Planner(loaded("rail_optimized", "llama3_70b", unlikely=False), load())
    kind = {"cluster.gpu": "h100", "training.global_batch": 512}
    asked = [PlanRequest(1e12, days, None, (kind,), nodes=64) for days in (23.0, 30.0, 40.0)]
    plans = [planner.plan(one, kind) for one in asked]
    alone = (planner.plan(replace(asked[-1], nodes=nodes), kind) for nodes in (40, 48))
    assert all(later.usd * (1 - NEAR) <= earlier.usd for earlier, later in pairwise(plans))
    assert all(plans[-1].usd * (1 - NEAR) <= one.usd for one in alone if one)
    assert all(one.gap is None for one in plans)


def test_a_much_earlier_deadline_is_asked_of_larger_clusters(planner):
    late = planner.plan(PlanRequest(2e12, 8.0, None, (KIND,)), KIND)
    soon = planner.plan(PlanRequest(2e12, 1.5, None, (KIND,)), KIND)
    assert soon.days <= 1.5 < late.days <= 8
    assert soon.nodes > late.nodes
    assert planner.plan(PlanRequest(2e12, 16.0, None, (KIND,)), KIND).usd <= late.usd


@pytest.fixture
def planned(call):
    """Return a function that plans with the roofline predictor, in an empty folder, and gives (exit code, stdout, stderr)."""
    return lambda words, *more: call("plan", *words.split(), "--set", "predictor=roofline", *more)


def test_the_command_answers_with_a_run_that_has_its_step(planned, call):
    words = "llama3_8b --tokens 500B --days 10 --gpu h100,b200"
    code, out, err = planned(words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {one["step"]["gpu"] for one in found["plans"]} == {"h100", "b200"}
    best = found["plans"][0]
    assert best["days"] <= 10
    assert best["usd"] == min(one["usd"] for one in found["plans"])
    assert found["played_days"]["mean"] == pytest.approx(best["days"], rel=0.03)
    assert [one["what"].split(" (")[0] for one in found["changes"]][:2] == ["a week more", "a week less"]
    run = json.loads(call(*shlex.split(best["run"])[1:], "--json", "--no-save")[1])
    assert run["step_time_s"] == best["step"]["step_time_s"]


STOPPED = "gpt3_xl --tokens 30B --days 20 --global-batch 128"


@pytest.mark.parametrize("after", [3])
def test_ctrl_c_gives_the_best_plan_so_far_and_what_is_open(planned, monkeypatch, tmp_path, after):
    """Pressed before some simulation: the plan is one of the whole search or dearer, by no more than is said."""
    whole = json.loads(planned(STOPPED, "--json")[1])["plans"][0]
    assert whole["gap"] is None
    press_ctrl_c(monkeypatch, lambda done, _: done >= after)
    code, out, err = planned(STOPPED, "--out", str(tmp_path / "plan.json"))
    assert (code, err) == (130, "clustersim: interrupted\n")
    found = json.loads((tmp_path / "plan.json").read_text())
    best = found["plans"][0]
    assert best["days"] <= 20
    assert whole["usd"] <= best["usd"]
    assert whole["usd"] >= best["usd"] * (1 - best["gap"]) * (1 - 1e-9)
    assert found["changes"] == []
    assert f"ended early: no plan on such a cluster is better than row 1 by more than {best['gap']:.1%}" in out
    assert "the best one alone:\n  clustersim run" in out
    assert f"\n{found['nearest_run']['said']}\n" in out


def test_ctrl_c_before_any_plan_is_ctrl_c_and_no_refusal(planned, monkeypatch):
    press_ctrl_c(monkeypatch, lambda *_: True)
    assert planned(STOPPED) == (130, "", "clustersim: interrupted\n")


def test_ctrl_c_at_the_second_cluster_keeps_the_plan_of_the_first(planned, monkeypatch):
    press_ctrl_c(monkeypatch, lambda _, point: point["cluster.gpu"] == "b200")
    code, out, err = planned(STOPPED, "--gpu", "h100,b200", "--json")
    assert (code, err) == (130, "clustersim: interrupted\n")
    found = json.loads(out)
    assert [one["step"]["gpu"] for one in found["plans"]] == ["h100"]
    assert [one["why"] for one in found["without"]] == ["b200-sxm: interrupted before a plan"]


def test_a_time_that_is_over_gives_the_first_plan_of_each_cluster(planned):
    found = json.loads(planned(STOPPED, "--gpu", "h100,b200", "--within", "1us", "--json")[1])
    assert {one["step"]["gpu"] for one in found["plans"]} == {"h100", "b200"}
    assert all(one["days"] <= 20 and one["gap"] >= 0 for one in found["plans"])


def test_a_front_is_that_of_the_plans_that_were_found(planned):
    _, out, _ = planned("llama3_8b --tokens 1T --days 10 --gpu h100 --global-batch 512 --pareto --within 1us")
    assert "\nended early: no plan on such a cluster is better than row 1 by more than" in out
    assert "\nno plan that was found beats these in GPUs, days, money and energy:\n" in out


@pytest.mark.parametrize(("key", "name"), [("cluster.gpu", "b200"), ("cluster.node", "hgx-b300")])
def test_a_gpu_that_is_set_is_the_one_of_the_plan(planned, key, name):
    words = f"llama3_8b --tokens 1T --days 10 --set {key}={name}"
    out = planned(words, *FEW)[1]
    assert f"1.  {name}  " in out


def test_rows_say_by_which_network_they_differ(planned):
    words = "llama3_8b --tokens 100B --days 30 --nic 200Gb/s,400Gb/s --oversubscription 2"
    code, out, err = planned(words, *FEW)
    assert (code, err) == (0, "")
    assert {"h100, 200Gb/s", "h100, 400Gb/s"} == {
        line.split("  ")[1] for line in out.splitlines() if line.strip().startswith(("1.", "2."))
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--tokens 15T", "nothing bounds the plan; give --days, --budget, --nodes, or several"),
        ("--tokens 15T --days 0", "--days 0.0: write a number above 0"),
        ("--tokens 15T --days nan", "--days nan: write a number above 0"),
        ("--tokens 15T --days 1e300", "--days 1e+300: write a number above 0, 1e+18 at most"),
        (
            "--tokens 1T --days 30 --nic 400Gb/s --set cluster.nic=200Gb/s",
            "--nic 400Gb/s and --set cluster.nic=200Gb/s set the same key; give one of the two",
        ),
        (
            "--tokens 1T --days 30 --set cluster.nic=400",
            "400 has no unit; write a bandwidth with one, like 400",
        ),
        ("--tokens 1T --days 3 --oversubscription x", "fabric.oversubscription: x must be a number"),
        ("--tokens 1T --days 3 --topology nvlink_h100_4", "has one with --days "),
        ("--tokens -5 --days 30", "--tokens '-5': write a number above 0 such as 15T, 300B or 2.5M"),
        ("--tokens 1T --days 3 --set cluster.nodes=4", "cluster.nodes: is what a plan finds; give"),
        ("--tokens 1T --days 30 --price 0", "--price: rent."),
        ("--tokens 1T --days 30 --gpu h1000", "unknown GPU 'h1000'"),
        (
            "--tokens 15 --days 30",
            "--tokens 15: is less than one step of 512 sequences of 8192 tokens; write 15T or",
        ),
        ("--tokens 4M --days 30", "--tokens 4000000: is less than one step of 512 sequences"),
        (
            "--tokens 1T --days 30 --global-batch 1000003",
            "batches of 1000003 sequences, which 1, 1000003 replicas can share evenly, has none; it has one with "
            "--global-batch 1048576 (",
        ),
    ],
)
def test_a_question_without_an_answer_is_one_sentence(planned, words, sentence):
    code, out, err = planned(f"llama3_8b {words}")
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


IMPOSSIBLE = {
    "too soon": "--tokens 100B --days 0.001",
    "too cheap": "--tokens 100B --budget 10",
    "too cheap in time": "--tokens 100B --days 30 --budget 10",
    "too few nodes": "--tokens 100B --days 0.5 --nodes 1",
    "all of these": "--tokens 100B --days 0.001 --nodes 1 --budget 10",
    "too small a batch": "--tokens 100B --days 0.12 --global-batch 64",
    "two kinds": "--tokens 100B --budget 10 --gpu a100,h100",
    "two kinds in time": "--tokens 100B --days 0.5 --nodes 1 --gpu a100,h100",
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_question_is_told_what_would_do_and_that_does(planned, name):
    """On few splits, as a refusal searches all batches and sizes of clusters.

    ZeRO and microbatches are open: then the first search within a limit can end without a plan although one exists.
    Planner.plan also searches without the limit before it refuses; else a limit that a refusal names would be refused too.
    """
    code, out, err = planned(f"gpt3_xl {IMPOSSIBLE[name]}", *FEW)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    would = re.findall(r"((?:--(?:days|budget|nodes|global-batch) \S+ )+)\(", err)
    assert would
    for limits in would:
        pairs = re.findall(r"(--\S+) (\S+)", IMPOSSIBLE[name])
        kept = " ".join(f"{key} {value}" for key, value in pairs if key not in limits.split())
        code, _, err = planned(f"gpt3_xl {kept} {limits}", *FEW, "--quiet")
        assert (code, err) == (0, "")


@pytest.mark.parametrize(("tokens", "published"), [(15.6e12, 16e6), (9e12, 2304 * 4096), (780e9, 4e6), (300e9, 3.2e6)])
def test_batches_that_learn_most_are_near_published_ones(tokens, published):
    """Llama 3 405B, Nemotron-4 340B, PaLM and GPT-3 175B: within a factor of 1.6."""
    assert 1 / 1.6 < most_tokens(tokens) / published < 1.6


def test_batches_are_the_workloads_and_larger_ones_that_learn_no_less(planner):
    """Those beyond come one by one, for plans that are in time with none of the others."""
    open_ = {key: value for key, value in KIND.items() if key != "training.global_batch"}
    sizes = [
        [kind["training.global_batch"] for kind in some]
        for some in batches(planner.case, open_, 15e12, planner.clusters(open_).simulator.cluster.gpus)
    ]
    assert sizes == [[512, 768, 1024, 1536, 2048], [3072], [4096]]
    assert 2048 * 8192 < most_tokens(15e12) < 3072 * 8192
    assert len(batches(planner.case, open_, 1e11, 8)[0]) == 1
    assert batches(planner.case, KIND, 15e12, 8) == [[KIND]]


@pytest.mark.slow
def test_a_plan_has_the_batch_that_costs_least(planner):
    open_ = {key: value for key, value in KIND.items() if key != "training.global_batch"}
    asked = PlanRequest(15e12, 12.0, None, (open_,))
    tried = batches(planner.case, open_, 15e12, 8)
    alone = [planner.plan(asked, kind) for kind in tried[0]]
    found = planner.first(asked, tried)
    usd = [one.usd for one in alone if one]
    assert found.usd * (1 - NEAR) <= min(usd)
    assert usd[0] > min(usd) * 1.05, "the first batch that is in time is not the cheapest here"


def test_a_change_is_what_the_question_with_that_limit_finds(planner):
    """A week less has a plan with a batch beyond those that learn most alone; without a plan, the refusal names batches."""
    open_ = {key: value for key, value in KIND.items() if key != "training.global_batch"}
    open_ |= {"parallelism.sequence_parallel": True}
    relaxed, urgent = (answer(planner, PlanRequest(15e12, days, None, (open_,))) for days in (8.2, 4.0))
    week = next(one for one in changes(planner, relaxed) if one.what.startswith("a week less"))
    fresh = replace(planner, plans={}, spaces={}, searches={})
    assert week.plan == answer(planner, week.request).plans[0][1]
    assert week.plan.usd == pytest.approx(answer(fresh, week.request).plans[0][1].usd, rel=NEAR)
    assert week.plan.row["global_batch"] > max(relaxed.batches)
    money = next(one for one in changes(planner, urgent) if one.what.startswith("10% less money"))
    assert money.plan == answer(planner, replace(money.request, days=None)).plans[0][1]
    with pytest.raises(InputError, match=r"has one with budget=\S+ \(\d+ nodes, batches of \d+, "):
        answer(planner, replace(money.request, days=None, budget=money.request.budget / 2))


def test_a_planner_answers_as_if_it_was_never_asked_before(planner):
    """Bounds that one question raised, and its plans, lose no plan of another; after the time limit they still give a gap."""
    fresh = Planner(planner.case, planner.how)
    for days, usd, nodes, goal in (
        (10.0, None, None, None),
        (None, None, 16, "soonest"),
        (30.0, None, None, "gpus"),
        (5.0, None, None, "owned"),
    ):
        request = PlanRequest(1e12, days, usd, (KIND,), nodes=nodes, objective=goal)
        warm, cold = planner.plan(request, KIND), replace(fresh, plans={}, spaces={}, searches={}).plan(request, KIND)
        assert float(request.costs(warm.amounts)) == pytest.approx(float(request.costs(cold.amounts)), rel=NEAR)
    late = replace(planner, stop=Stop(interruptible=False, within=0.0)).plan(
        PlanRequest(1e12, 11.0, None, (KIND,)), KIND
    )
    assert late.tried == 0 and 0 <= late.gap < 0.5


@pytest.mark.parametrize("limit", ["Ctrl-C", "time"])
def test_what_ifs_that_were_simulated_outlive_the_limit(planner, monkeypatch, limit):
    """Reached at the first what-if of the cluster: at Ctrl-C that one is lost, at the time limit it is kept."""
    planner = replace(planner, stop=Stop(interruptible=True))
    found = answer(planner, PlanRequest(1e12, 10.0, None, (KIND,)))

    def due(_, point):
        if "cluster.nic" in point and limit == "time":
            planner.stop.within = 0.0
        return "cluster.nic" in point and limit == "Ctrl-C"

    press_ctrl_c(monkeypatch, due)
    names = [one.what for one in changes(planner, found) if one.plan]
    assert ("NIC × 2" in names) == (limit == "time")
    assert "cross entropy fused" in names and not {"NIC ÷ 2", "NVLink × 2"} & {*names}


@pytest.mark.slow
def test_the_nodes_that_a_refusal_names_are_the_least(planned):
    words = "llama3_8b --tokens 15T --days 40 --quiet"
    code, _, err = planned(words, "--nodes", "1")
    nodes = int(re.search(r"--nodes (\d+) ", err)[1])
    assert code == 2
    assert planned(words, "--nodes", str(nodes))[0] == 0
    assert planned(words, "--nodes", str(int(nodes * (1 - NEAR)) - 1))[0] == 2


@pytest.mark.slow
def test_a_plan_likely_fits_unless_the_rest_is_asked_for_too(planned):
    words = "llama3_70b --tokens 1T --nodes 32 --global-batch 256"
    (sure,), (free,) = (json.loads(planned(words, "--json", *more)[1])["plans"] for more in ([], ["--unlikely"]))
    assert (sure["step"]["memory_verdict"], free["step"]["memory_verdict"]) == ("likely", "unlikely")
    assert sure["days"] > free["days"]
    out = planned(words, "--unlikely")[1]
    assert "  ! tp " in out
    assert "! unlikely to fit: " in out


def test_changes_that_miss_a_limit_say_so(planned):
    words = "llama3_70b --tokens 1T --nodes 64 --global-batch 512"
    days = json.loads(planned(words, "--json")[1])["plans"][0]["days"]
    words += f" --days {days * 1.001}"
    found = json.loads(planned(words, "--json")[1])
    slower = next(one for one in found["changes"] if one["what"] == "NIC ÷ 2")
    assert slower["misses"] == (["days"] if slower["plan"]["days"] > days * 1.001 else [])
    assert slower["plan"]["days"] > days * 1.001
    assert ", too late" in planned(words)[1]


@pytest.mark.parametrize(
    ("goal", "name", "unit"), [("rent", "usd", "USD"), ("owned", "usd_owned", "USD owned"), ("energy", "kwh", "kWh")]
)
def test_a_change_is_compared_in_the_quantity_of_the_objective(planned, tmp_path, goal, name, unit):
    words = f"gpt3_xl --tokens 20B --days 30 --nodes 1 --gpu a100 --global-batch 512 --objective {goal}"
    out = planned(words, "--out", str(tmp_path / "plan.json"))[1]
    found = json.loads((tmp_path / "plan.json").read_text())
    row = next(line for line in out.splitlines() if line.startswith("1. ")).split()
    assert min(float(row[-2]), float(row[-1])) > 0
    step = found["plans"][0]["step"]["step_time_s"]
    longer = [one for one in found["changes"] if one["free"] and one["plan"]["step"]["step_time_s"] >= step]
    compared = [one for one in found["changes"] if one["plan"] and one not in longer]
    assert compared
    for one in compared:
        more = one["plan"][name] - found["plans"][0][name]
        [line] = [line for line in out.splitlines() if line.startswith(f"  {one['what']}")]
        assert f", {'+' if more >= 0 else ''}{dollars(more)} {unit}" in line


def test_less_money_says_which_deadline_it_could_keep(planned):
    """Changes of money look for the fastest plan; one beyond the deadline is no answer to the question, and says so first."""
    words = "llama3_8b --tokens 15T --days 4"
    found = json.loads(planned(words, "--json")[1])
    less = next(one for one in found["changes"] if one["what"].startswith("10% less money"))
    assert less["misses"] == ["days"]
    plan, best = less["plan"], found["plans"][0]
    line = next(line for line in planned(words)[1].splitlines() if "less money" in line)
    usd = f"{dollars(plan['usd'] - best['usd'])} USD"
    said = f"none within 4 days, the fastest has {plan['nodes']} nodes, {plan['days']:.1f} days, {usd}"
    assert line.startswith(f"  10% less money ({dollars(0.9 * best['usd'])} USD): {said}")
    out = planned(words.replace("15T", "1T"))[1]
    assert "less money" in out
    assert out.split("less money")[1].splitlines()[0].endswith(" USD): no plan was found, whatever the deadline")


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"parallelism.sequence_parallel": True}, {"training.recompute": "full"}])
@pytest.mark.parametrize(
    ("model", "nodes"),
    [
        *(("gpt2_large", 1), ("gpt3_xl", 1), ("opt_1.3b", 1), ("gpt3_2.7b", 2)),
        *(("llama3_8b", 2), ("qwen2.5_7b", 2), ("qwen3_8b", 2), ("gpt_oss_20b", 2)),
    ],
)
def test_a_plan_that_only_nodes_limit_is_the_answer_of_optimize(model, nodes, changes):
    case = loaded("rail_optimized", model, unlikely=False)
    kind = {"cluster.gpu": "h100", "predictor": "roofline", "training.global_batch": 64, **changes}
    asked = PlanRequest(1e12, None, None, (kind,), nodes=nodes)
    plan = answer(Planner(case, load()), asked).plans[0][1]
    fixed = {**kind, NODES: plan.nodes}
    space = SweepSpace({}, fixed, frozenset(), tuple(free(fixed)))
    best = optimized(case, space, objective("soonest"), 1).best[0]
    assert plan.nodes == nodes
    assert plan.row["step_time_s"] == best.row["step_time_s"]


def test_days_are_steps_over_goodput(planned):
    out = planned("llama3_8b --tokens 1T --nodes 8", "--json")[1]
    best = json.loads(out)["plans"][0]
    steps = math.ceil(1e12 / (best["step"]["global_batch"] * best["step"]["seq"]))
    assert best["days"] == pytest.approx(steps * best["step"]["step_time_s"] / best["goodput"] / DAY, rel=1e-12)
    assert best["goodput"] == pytest.approx(best["progress"] / best["slowest_replica"], rel=1e-12)
    assert best["nodes"] <= 8


def test_a_key_of_the_split_that_is_given_stays(planner):
    kind = {**KIND, "parallelism.tp": "4", "training.recompute": "full"}
    found = planner.plan(PlanRequest(1e12, 14.0, None, (kind,)), kind)
    assert (found.row["tp"], found.row["recompute"]) == (4, "full")


def test_racks_fail_as_often_as_their_gpus_do():
    nodes, racks = goodput(load(), 72, 576, 70e9, 8), goodput(load(), 8, 576, 70e9, 8)
    assert nodes.mtti == racks.mtti
    assert nodes.spares == nodes.standing_by == racks.standing_by
    assert racks.spares == math.ceil(nodes.spares / 9)
    assert nodes.share == racks.share


@pytest.mark.parametrize(
    ("batch", "gpus", "filled"), [(2048, 72, 2304), (2304, 72, 2304), (2048, 8, 2048), (12, 72, 12), (1024, 24, 1536)]
)
def test_a_batch_lets_replicas_use_all_gpus_of_a_rack(batch, gpus, filled):
    found = filling(batch, gpus)
    assert found == filled
    assert found >= batch


def test_the_parameters_of_a_checkpoint_are_those_of_the_model(planner):
    assert isinstance(planner.case.base.spec, Workload)
    found = planner.plan(PlanRequest(1e12, 14.0, None, (KIND,)), KIND)
    assert found.goodput.checkpoint.size == pytest.approx(14 * 8.03e9, rel=0.01)
