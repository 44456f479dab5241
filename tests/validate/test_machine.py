"""A cluster that was measured: what its steps say of it, the file of that, and forecasts with it."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from math import exp, log, sqrt

import numpy as np
import pytest
import yaml
from fuzz_tables import EXAMPLES, NCCL_LOG
from validate_cases import said, write

from clustersim.calibration.constants import FAMILIES, SOFTWARE
from clustersim.calibration.fit import BOUND, SLOWEST, WITHIN, changes, fitted, measurement_changes
from clustersim.calibration.machine import Machine
from clustersim.calibration.posterior import Observation, Population, likelihoods, posterior
from clustersim.validate.machine import MeasuredRun
from clustersim.validate.runs import read

ROWS = tuple(
    map(
        said,
        (
            "id=MINE-1; hidden=4096; ffn_hidden=16384; heads=32; layers=8; tp=1; pp=1; dp=8",
            "id=MINE-2; hidden=2048; ffn_hidden=8192; layers=16; tp=8; pp=1; dp=1",
            "id=MINE-3; hidden=512; ffn_hidden=2048; layers=32; tp=1; pp=1; dp=8",
            "id=MINE-4; hidden=8192; ffn_hidden=32768; heads=64; layers=4; tp=4; pp=2; dp=1",
            "id=MINE-5; num_gpus=16; global_batch=64; hidden=4096; ffn_hidden=16384; heads=32; tp=1; pp=1; dp=16",
            "id=MINE-6; num_gpus=32; global_batch=64; hidden=2048; ffn_hidden=8192; tp=2; pp=1; dp=16",
        ),
    )
)
"""Steps of one cluster: long products, many collectives, many launches, and two across nodes."""
TRUTH = {"clock under load": -0.08, "network between nodes": -0.15, "host": 0.2}
"""Logarithms of how many times the usual the constants of the machine are that the steps are of."""


def measured(path, *rows):
    """Return rows as they are simulated."""
    return [MeasuredRun(run) for run in read(write(path, *(rows or ROWS)))]


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    return [one.step() for one in measured(tmp_path_factory.mktemp("rows") / "runs.csv")]


def of_truth(steps, truth):
    """Return steps as a machine of these constants takes them, to the last digit."""
    found = []
    for one in steps:
        keys = changes(one.constants, np.array([truth.get(constant.family, 0.0) for constant in one.constants]))
        found.append(one._replace(measured=one.forecast(keys)))
    return found


@pytest.fixture(scope="module")
def fit(steps):
    return fitted(of_truth(steps, TRUTH))


def test_a_machine_is_recovered_from_its_steps_within_its_spread(fit):
    for one, x in zip(fit.constants, fit.logs.tolist(), strict=True):
        off = abs(x - TRUTH.get(one.family, 0.0))
        assert off <= 2 * fit.posterior.spread(one.name), one.name


def test_its_steps_are_forecast_better_and_each_from_the_others(fit):
    before, after, left_out = (np.abs(one).mean() for one in (fit.before, fit.after, fit.left_out))
    assert after < 0.5 * before
    assert left_out < before


def test_it_is_more_sure_than_of_a_machine_that_nobody_has_measured(fit):
    for one in fit.constants:
        assert fit.posterior.spread(one.name) <= one.spread * (1 + 1e-9), one.name
    shared = [fit.constants.index(one) for one in fit.measurements[0].constants if one.family == SOFTWARE][:2]
    level = sqrt(
        fit.posterior.covariance[np.ix_(shared, shared)].sum()
    )  # the machine's and its framework's, without a model's
    assert level < 0.5 * FAMILIES[SOFTWARE].spread


def test_a_machine_twice_as_slow_is_its_software_and_refused_by_nobody(steps):
    found = fitted([one._replace(measured=2 * one.forecast({})) for one in steps])
    logs = dict(zip((one.name for one in found.constants), found.logs.tolist(), strict=True))
    for step in found.measurements:
        own = [logs[one.name] for one in step.constants if one.family == SOFTWARE]
        assert sum(own) == pytest.approx(log(2), abs=0.15)
    assert np.abs(found.left_out).mean() < 0.15
    assert max(found.likely, key=found.likely.get) == SOFTWARE


def test_a_constant_is_a_factor_on_the_value_of_each_step(steps):
    clock = next(one for one in steps[0].constants if one.family == "clock under load")
    other = replace(clock, keys={key: 0.9 * value for key, value in clock.keys.items()})
    for own in (clock, other):
        found = measurement_changes(steps[0]._replace(constants=(own,)), (clock, SLOWEST), np.array([-0.1, 0.0]))
        assert {key: found[key] for key in own.keys} == {key: exp(-0.1) * value for key, value in own.keys.items()}


def test_one_step_moves_the_others_by_part_of_its_error_and_several_by_nearly_all(steps):
    late = [one._replace(measured=1.2 * one.forecast({})) for one in steps]
    moved = [fitted(late[:count]) for count in (1, len(late))]
    first, all_of_them = (float(one.after[0] / one.before[0]) for one in moved)
    assert 0.2 < first < 0.7
    assert abs(all_of_them) < 0.5 * first


@pytest.mark.parametrize("family", ["clock under load", "host", "network between nodes", SLOWEST.family])
def test_what_differs_is_the_likeliest(steps, family):
    x = {"clock under load": -0.12, "host": 0.6, "network between nodes": -0.5, SLOWEST.family: -0.12}[family]
    likely = fitted(of_truth(steps, {family: x})).likely
    assert sum(likely.values()) == pytest.approx(1)
    assert family in sorted(likely, key=likely.get)[-2:], likely
    assert likely[family] > likely["nothing"]


def test_steps_as_forecast_say_that_nothing_differs(steps):
    found = fitted(of_truth(steps, {}))
    assert max(found.likely, key=found.likely.get) == "nothing" or found.likely["nothing"] > 0.1
    assert np.abs(found.logs).max() < 1e-6


# The posterior.


def drawn(seed, rows, constants=3):
    """Return observations of constants that are drawn, their prior, and those constants."""
    source = np.random.default_rng(seed)
    names = tuple(f"c{i}" for i in range(constants))
    prior = Population(names, np.diag(source.uniform(0.02, 0.3, constants) ** 2))
    truth = source.multivariate_normal(np.zeros(constants), prior.covariance)
    slopes = source.uniform(-1, 1, (rows, constants))
    noise = source.normal(0, 0.05, rows)
    ratios = slopes @ truth + noise
    found = [
        Observation(str(i), float(ratio), dict(zip(names, row.tolist(), strict=True)), 0.05)
        for i, (ratio, row) in enumerate(zip(ratios, slopes, strict=True))
    ]
    return found, prior, truth


def test_nothing_measured_leaves_the_population():
    _, prior, _ = drawn(1, 0)
    found = posterior([], prior)
    assert found.mean.tolist() == [0.0] * 3
    assert found.covariance == pytest.approx(prior.covariance)


@pytest.mark.parametrize("seed", range(20))
def test_more_rows_never_widen(seed):
    """Where no row is far off; one that is weighs less, and then a little less is known."""
    rows, prior, truth = drawn(seed, 12)
    exact = [one._replace(log_ratio=sum(one.sensitivities[f"c{i}"] * x for i, x in enumerate(truth))) for one in rows]
    widths = [np.diag(posterior(exact[:count], prior).covariance) for count in range(len(rows) + 1)]
    for one, more in pairwise(widths):
        assert (more <= one * (1 + 1e-6)).all()


def test_stated_spreads_hold_what_they_promise():
    scores = []
    for seed in range(200):
        rows, prior, truth = drawn(seed, 6)
        found = posterior(rows, prior)
        scores += ((found.mean - truth) / np.sqrt(np.diag(found.covariance))).tolist()
    inside = np.mean(np.abs(scores) < 1.2816)
    assert 0.74 < inside < 0.86


def test_one_odd_row_does_not_decide():
    rows, prior, truth = drawn(3, 10)
    odd = [*rows[:-1], rows[-1]._replace(log_ratio=rows[-1].log_ratio + 3.0)]
    found = posterior(odd, prior)
    assert found.weights[-1] < 0.2
    spreads = np.sqrt(np.diag(found.covariance))
    assert (np.abs(found.mean - truth) < 3 * spreads).all()


def test_the_density_of_one_row_is_that_of_a_normal_distribution():
    prior = Population(("a", "b"), np.diag([0.04, 0.01]))
    row = Observation("r", 0.1, {"a": 1.0, "b": 0.5}, 0.05)
    found = likelihoods([row], prior, {"nothing": (), "a": ("a",), "b": ("b",)})
    variances = {"nothing": 0.0025, "a": 0.0425, "b": 0.005}
    wanted = {name: exp(-0.5 * (log(v) + 0.01 / v)) for name, v in variances.items()}
    assert found == pytest.approx({name: x / sum(wanted.values()) for name, x in wanted.items()}, rel=0.05)


# The file.


@pytest.fixture
def mine(call, tmp_path):
    """A machine file of three steps, and the table of these."""
    rows = [
        {**ROWS[0], "id": f"MINE-{batch}", "global_batch": str(batch), "sec_per_iter": "0.5"} for batch in (16, 32, 64)
    ]
    write(tmp_path / "runs.csv", *rows)
    code, out, _ = call("calibrate", "runs.csv", "--json")
    assert code == 0
    forecasts = [0.5 * (1 + one["error"]) for one in json.loads(out)["measurements"]]
    slower = [{**row, "sec_per_iter": str(1.1 * one)} for row, one in zip(rows, forecasts, strict=True)]
    write(tmp_path / "runs.csv", *slower)
    assert call("calibrate", "runs.csv", "--out", "mine.yaml", "--quiet") == (0, "", "")
    (tmp_path / "c.yaml").write_text("cluster: {name: mine, nodes: 1, node: hgx-a100}\n")
    return tmp_path / "mine.yaml"


def step(call, *words):
    code, out, err = call("run", "c.yaml", "gpt3_2.7b", "--no-save", "--engine", "auto", "--json", *words)
    assert code == 0, err
    return json.loads(out)


def test_a_machine_that_was_slower_is_forecast_slower_and_with_a_narrower_interval(call, mine):
    usual, own = step(call), step(call, "--machine", "mine.yaml")
    assert usual["expected_step_time_s"] * 1.02 < own["expected_step_time_s"]
    assert own["expected_step_time_s"] == pytest.approx(own["step_time_s"] * own["software_level"]["factor"])
    assert own["step_time_low_s"] * own["step_time_high_s"] == pytest.approx(own["expected_step_time_s"] ** 2)
    assert own["tokens_per_s"] * own["expected_step_time_s"] == pytest.approx(
        usual["tokens_per_s"] * usual["expected_step_time_s"]
    )
    widths = [log(one["step_time_high_s"] / one["step_time_low_s"]) for one in (usual, own)]
    assert widths[1] < widths[0]
    assert widths[1] <= 2 * BOUND * own["machine"]["spread"] * (1 + 1e-6)  # each side is the nearer one


def test_what_is_set_goes_before_the_machine(call, mine):
    key = next(key for one in Machine.read(mine).spec.constants for key in one.keys if key.endswith("sustained.fp16"))
    settings = [word for dtype in ("fp16", "bf16") for word in ("--set", f"{key[:-4]}{dtype}=0.5")]
    own, both = step(call, *settings), step(call, "--machine", "mine.yaml", *settings)
    assert own["predictor"] == both["predictor"]
    assert own["step_time_s"] != step(call, "--machine", "mine.yaml")["step_time_s"]


def test_a_result_of_a_machine_comes_out_again(call, mine):
    assert call("run", "c.yaml", "gpt3_2.7b", "--machine", "mine.yaml", "--out", "r", "-q")[0] == 0
    code, out, _ = call("rerun", "r")
    assert code == 0
    assert "--machine mine.yaml" in out
    mine.write_text(mine.read_text() + "\n# another\n")
    code, _, err = call("rerun", "r")
    assert code == 2
    assert "mine.yaml: has changed" in err


def test_every_command_that_forecasts_takes_it(call, mine):
    code, out, _ = call(
        "sweep", "c.yaml", "gpt3_2.7b", "--tp", "1,2", "--machine", "mine.yaml", "--workers", "1", "--json"
    )
    assert code == 0
    row = json.loads(out)["rows"][0]
    assert "--machine mine.yaml" in row["run"]
    assert row["step_time_s"] == pytest.approx(step(call, *row["run"].split()[6:])["step_time_s"], rel=1e-12)


def test_explain_says_what_the_answer_rests_on_and_a_machine_narrows_it(call, mine):
    assert call("run", "c.yaml", "gpt3_2.7b", "--out", "r", "-q")[0] == 0
    usual, own = (
        json.loads(call("explain", "r", *words, "--json")[1])["rests_on"] for words in ((), ("--machine", "mine.yaml"))
    )
    assert len(usual) == 5
    effects = [one["effect"] for one in usual]
    assert effects == sorted(effects, reverse=True)
    assert all(one["effect"] == pytest.approx(one["spread"] * abs(one["sensitivity"])) for one in usual)
    [clock], [measured_clock] = ([one for one in found if one["name"].startswith("clock")] for found in (usual, own))
    assert (
        measured_clock["spread"] <= clock["spread"]
    )  # steps of one kind say that all is slower, not that the clock is
    text = call("explain", "r")[1]
    assert f"what the answer rests on\n  clock under load, 16-bit, ampere: ± {100 * clock['spread']:.2g} % → ± " in text


def test_a_machine_of_another_gpu_is_refused(call, mine):
    code, _, err = call("run", "hgx_h100_8", "gpt3_2.7b", "--machine", "mine.yaml", "--no-save")
    assert code == 2
    assert "a100-sxm-80gb was measured, and" in err


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("version", 2, "version: "),
        ("factor", "fast", "factor"),
        ("keys", {"cluster.node.gpus.sustained.fp16": 1.5}, "mine.yaml:"),
        ("keys", {"cluster.node.gpus.speeed": 1.5}, "unknown key"),
        ("keys", {"parallelism.tp": 8}, "not a key of a constant"),
        ("correlations", [0.5] * 9, "correlations of"),
        ("name", "clok under load, 16-bit, ampere", "did you mean 'clock under load'?"),
        ("keys", {}, "has a factor of"),
    ],
)
def test_a_machine_file_with_something_wrong_says_where(call, mine, key, value, said):
    data = yaml.safe_load(mine.read_text())
    clock = next(one for one in data["constants"] if one["name"].startswith("clock"))
    ({"version": data, "remainder": data}.get(key) or clock)[key] = value
    mine.write_text(yaml.safe_dump(data, sort_keys=False))
    code, _, err = call("run", "c.yaml", "gpt3_2.7b", "--machine", "mine.yaml", "--no-save")
    assert code == 2
    assert "mine.yaml" in err
    assert said in err


def test_a_table_of_runs_is_not_a_machine_file(call, mine):
    code, _, err = call("run", "c.yaml", "gpt3_2.7b", "--machine", "runs.csv", "--no-save")
    assert code == 2
    assert "clustersim calibrate runs.csv --out mine.yaml" in err


def test_the_interval_is_that_of_the_posterior(fit, tmp_path):
    from clustersim.calibration.machine import machine_yaml

    path = tmp_path / "mine.yaml"
    path.write_text(machine_yaml(fit, "a100-sxm-80gb", ["six steps"], 0.065))
    found = Machine.read(path)
    slopes = {one.name: 0.3 for one in fit.constants}
    own = np.full(len(fit.constants), 0.3)
    rest = 0.065**2 + sum((WITHIN.get(one.family, 0.0) * 0.3) ** 2 for one in fit.constants)
    wanted = sqrt(own @ fit.posterior.covariance @ own + rest)
    assert found.spread(fit.constants, slopes) == pytest.approx(wanted, rel=0.01)


# What is wrong.


def refusal(call, *words):
    code, out, err = call("calibrate", "runs.csv", *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err


TABLES = {
    "times the forecast; write seconds of one step": ["sec_per_iter=90000"],
    "A-1 and A-2 are the same job and contradict each other: 0.08 s and 0.16 s": [
        "id=A-1; sec_per_iter=0.08",
        "id=A-2; sec_per_iter=0.16",
    ],
    "has steps on a100-sxm-80gb and h100-sxm": ["", "id=B-1; gpu=h100-sxm"],
    "runs.csv": ["sec_per_iter="],  # it crashed
}
"""Sentences, and the rows of a table that is refused with them."""


@pytest.mark.parametrize("sentence", TABLES)
def test_a_table_that_says_nothing_of_a_machine_is_refused(call, tmp_path, sentence):
    write(tmp_path / "runs.csv", *map(said, TABLES[sentence]))
    assert sentence in refusal(call)


def test_steps_that_agree_with_each_other_and_not_with_their_forecasts_are_told_so(call, tmp_path):
    rows = [{**row, "sec_per_iter": "1"} for row in ROWS[:3]]
    write(tmp_path / "runs.csv", *rows)
    forecasts = [row.step().forecast({}) for row in measured(tmp_path / "rows.csv", *rows)]
    write(tmp_path / "runs.csv", *({**row, "sec_per_iter": str(4 * x)} for row, x in zip(rows, forecasts, strict=True)))
    assert "agree with each other and take 4 times their forecasts; check the unit" in refusal(call)


def test_what_is_no_log_and_no_trace_is_refused(call, tmp_path):
    write(tmp_path / "runs.csv", {"sec_per_iter": "0.1"})
    assert "not a log of nccl-tests" in refusal(call, "--nccl", "runs.csv")
    assert "not valid JSON" in refusal(call, "--trace", "runs.csv")
    assert "no step 'X'" in refusal(call, "--trace", "X=runs.csv")


def test_one_step_says_that_it_cannot_tell_constants_apart(call, tmp_path):
    write(tmp_path / "runs.csv", {"sec_per_iter": "0.1"})
    code, out, _ = call("calibrate", "runs.csv")
    assert code == 0
    assert "one step cannot tell its constants apart" in out


# Logs and traces.


def test_a_log_of_nccl_tests_tells_of_the_links(call, tmp_path):
    """Its all-reduce is a fifth of what NVLink gives, and 30 us at 64 KiB are as forecast."""
    write(tmp_path / "runs.csv", {"sec_per_iter": "0.1", "framework": "Megatron-LM"})
    (tmp_path / "nccl.log").write_text(NCCL_LOG)
    code, out, err = call("calibrate", "runs.csv", "--nccl", "nccl.log", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [one["name"] for one in found["measurements"][1:]] == [
        "large all_reduce of nccl.log",
        "small all_reduce of nccl.log",
    ]
    [link] = [one for one in found["constants"] if one["name"].startswith("NVLink")]
    assert link["spread"] < link["usual_spread"]


def test_a_trace_tells_of_kernels(call, tmp_path):
    write(tmp_path / "runs.csv", {"sec_per_iter": "0.1"})
    shutil.copy(EXAMPLES / "trace.json", tmp_path)
    code, out, err = call("calibrate", "runs.csv", "--trace", "trace.json", "--json")
    assert code == 0, err
    names = [one["name"] for one in json.loads(out)["measurements"]]
    assert names == ["MINE-1", "products of trace.json", "vector kernels of trace.json"]
