"""Constants fitted together to steps: what was put into synthetic machines comes out, and what strangers lose by stays."""

import json
import re
from math import exp, log

import numpy as np
import pytest

from clustersim.errors import InputError
from clustersim.lab.fit.judge import chosen, errors, left_out
from clustersim.lab.fit.pooled import Prior, PublishedStep, fit
from clustersim.lab.fit.result import contradictions, fitted
from clustersim.lab.fit.text import lines

CLOCK, HOST, NETWORK = "clock under load, 16-bit, hopper", "host, nemo", "network between nodes"
SPREADS = {CLOCK: 0.1, HOST: 0.3, NETWORK: 0.2}


def synthetic(truth, publishers=8, each=20, own=0.0, noise=0.01, seed=1):
    """Return steps of machines whose constants are `truth` (logarithms), each machine's `own` around it."""
    draw = np.random.default_rng(seed)
    found = []
    for publisher in range(publishers):
        here = {name: value + own * draw.normal() for name, value in truth.items()}
        for number in range(each):
            clock = draw.uniform(0.3, 0.9)
            shares = {CLOCK: -clock, HOST: draw.uniform(0, 1 - clock), NETWORK: -draw.uniform(0, 1 - clock)}
            error = sum(shares[name] * value for name, value in here.items()) + noise * draw.normal()
            who = f"P{publisher}"
            found.append(
                PublishedStep(f"{who}-{number}", who, who, f"{who} {number % 4}", "h100 bf16", error, shares, 64)
            )
    return found


def found(steps, prior=None):
    return {name: log(factor) for name, (factor, _) in fit(steps, prior or Prior(SPREADS)).factors.items()}


def test_the_constants_of_synthetic_machines_are_recovered():
    truth = {CLOCK: -0.1, HOST: 0.3, NETWORK: -0.2}
    assert found(synthetic(truth)) == pytest.approx(truth, abs=0.03)


def test_without_steps_the_prior_stays():
    assert found([]) == dict.fromkeys(SPREADS, 0.0)


def test_a_constant_without_sensitivity_stays_at_its_prior():
    steps = [one._replace(sensitivities={CLOCK: one.sensitivities[CLOCK]}) for one in synthetic({CLOCK: -0.1})]
    posterior = fit(steps, Prior(SPREADS))
    for name in (HOST, NETWORK):
        factor, uncertain = posterior.factors[name]
        assert factor == pytest.approx(1, abs=1e-12)
        assert uncertain == pytest.approx(SPREADS[name] * (2 / 3) ** 0.5), (
            "of the family and its own, without the machine's"
        )


def test_what_one_machine_has_does_not_become_a_property_of_all():
    """However many steps a machine has, it is one machine: the constant follows it by less than half, and stays unsure."""
    one = synthetic({CLOCK: -0.1}, publishers=1, each=100)
    posterior = fit(one, Prior(SPREADS))
    assert -0.075 < log(posterior.factors[CLOCK][0]) < -0.02
    assert posterior.factors[CLOCK][1] > 0.3 * SPREADS[CLOCK]
    many = fit(synthetic({CLOCK: -0.1}, publishers=8), Prior(SPREADS))
    assert many.factors[CLOCK][1] < posterior.factors[CLOCK][1]


def test_a_source_that_disagrees_with_all_others_has_little_say():
    steps = synthetic({CLOCK: -0.1, HOST: 0.0, NETWORK: 0.0})
    wrong = [one._replace(error=one.error + 1.0) if one.publisher == "P0" else one for one in steps]
    assert found(wrong)[CLOCK] == pytest.approx(found(steps)[CLOCK], abs=0.02)


def test_constants_of_a_family_help_each_other():
    other = "clock under load, fp8, hopper"
    prior = Prior({**SPREADS, other: 0.1})
    assert -0.08 < found(synthetic({CLOCK: -0.1}), prior)[other] < -0.01


def test_strangers_judge_a_fit():
    steps = synthetic({CLOCK: -0.1, HOST: 0.3, NETWORK: -0.2}, own=0.02)
    before = errors(steps, np.zeros(len(steps)))
    after = errors(steps, left_out(steps, Prior(SPREADS))[0])
    assert after.mean < before.mean / 2
    assert sum(one.steps for one in after.publishers.values()) == len(steps)


def test_families_that_strangers_gain_by_are_taken():
    taken, trials = chosen(synthetic({CLOCK: -0.1, HOST: 0.0, NETWORK: 0.0}), Prior(SPREADS))
    assert taken == ["clock under load"]
    assert {one.family for one in trials} == {"host", "network between nodes"}


def test_a_constant_that_helps_its_own_publisher_and_hurts_the_rest_is_refused():
    """Half of the machines have it 20 % up and half 20 % down: each gains by its own steps, and loses by those of others."""
    halves = [synthetic({HOST: value}, publishers=4, seed=seed) for seed, value in ((1, 0.2), (2, -0.2))]
    steps = [
        one._replace(publisher=f"{half} {one.publisher}", machine=f"{half} {one.machine}", cell=f"{half} {one.cell}")
        for half, own in enumerate(halves)
        for one in own
    ]
    taken, trials = chosen(steps, Prior({HOST: 0.3}))
    assert taken == []
    assert trials[0].strangers > trials[0].before


def test_constants_that_always_go_together_cannot_be_told_apart():
    steps = [
        one._replace(sensitivities={CLOCK: one.sensitivities[CLOCK], HOST: -one.sensitivities[CLOCK]})
        for one in synthetic({CLOCK: -0.1}, publishers=60, each=4)
    ]
    [(one, other, correlation)] = fit(steps, Prior({CLOCK: 0.3, HOST: 0.3})).alike()
    assert ({one, other}, correlation > 0.9) == ({CLOCK, HOST}, True)


def test_steps_that_contradict_each_other_are_named_in_one_sentence():
    one, *_ = synthetic({})
    first = one._replace(id="A-1", question="same")
    second = first._replace(id="A-2", error=first.error + log(2))
    [said] = contradictions([first, second, one])
    assert str(said) == "A-1 and A-2 are forecast alike and were measured 2.00 times apart"


def test_too_few_publishers_are_one_sentence():
    with pytest.raises(
        InputError, match=r"^40 steps of 2 publishers can be compared; 5 publishers are needed, add files"
    ):
        fitted(synthetic({}, publishers=2))


def test_the_fit_says_what_it_found():
    steps = synthetic({CLOCK: -0.1, HOST: 0.0, NETWORK: 0.0}, publishers=6)
    steps = [replace_names(one) for one in steps]
    result = fitted(steps)
    text = "\n".join(lines(result))
    assert "clock under load: fitted, as publishers left out gain by it" in text
    assert "host: stays as it is" in text
    assert re.search(r"GPUs and data types with a bias beyond 4%: h100 bf16 [-+]\d+\.\d% \(120\)", text)
    table = json.loads(json.dumps(result.table()))
    assert table["factors"][CLOCK]["factor"] == pytest.approx(exp(-0.1), abs=0.03)
    assert table["factors"][CLOCK]["without"].keys() == {f"P{i}" for i in range(6)}


def replace_names(one):
    return one._replace(question=one.id)


def test_one_row_is_one_sentence(call, tmp_path):
    names = "id,gpu,num_gpus,framework,model,layers,hidden,heads,seq,vocab,global_batch,micro_batch,tp,pp,dp,precision"
    row = "A-1,h100-sxm,8,Megatron-LM,GPT,2,1024,16,1024,51200,8,1,1,1,8,bf16"
    (tmp_path / "runs.csv").write_text(f"{names},sec_per_iter\n{row},0.5\n", encoding="utf-8")
    code, _, said = call("lab", "fit", "runs.csv", "--workers", "1")
    assert code == 2
    assert "1 steps of 1 publishers can be compared; 5 publishers are needed" in said
    assert len((tmp_path / "fit.jsonl").read_text(encoding="utf-8").splitlines()) == 1
