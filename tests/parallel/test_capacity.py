"""Experts that take at most so many rows: what is dropped, what is padded, what travels."""

import math

import pytest

from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.model.operator import Collective
from clustersim.model.sharding import loads, zipf_shares
from clustersim.parallel.load import build
from clustersim.parallel.stages import stages

TEXT = """\
name: experts
model: {layers: 2, hidden: 256, heads: 4, ffn: 512, vocab: 1024, experts: 8, topk: 2}
training: {global_batch: 16, micro_batch: 2, seq: 256}
parallelism: {ep: 4, dp: 4}
"""
SENT = 2 * 256 * 2


def job(**training):
    return build(parse(TEXT), {f"training.{key}": value for key, value in training.items()}).place(4, 4)


def rows(**training):
    one = job(**training)
    return [one.shard_at(place).rows for place in range(one.positions)]


def sent(**training):
    steps = stages(job(**training))[0].forward
    return {step.size for step in steps if isinstance(step, Collective) and step.op in ("dispatch", "combine")}


def test_a_capacity_above_the_busiest_changes_nothing():
    for imbalance in (1, 1.5, 2):
        free, wide = job(expert_imbalance=imbalance), job(expert_imbalance=imbalance, capacity_factor=2.0)
        assert rows(expert_imbalance=imbalance) == rows(expert_imbalance=imbalance, capacity_factor=2.0)
        for one, other in zip(stages(free), stages(wide), strict=True):
            assert (one.forward, one.backward, one.saved_bytes) == (other.forward, other.backward, other.saved_bytes)


def test_the_busiest_ranks_drop_what_is_above():
    shares = zipf_shares(4, 2.0)
    found = rows(expert_imbalance=2, capacity_factor=1.25)
    wanted = [4 * SENT * min(share, 1.25 / 4) for share in shares]
    assert found == pytest.approx(wanted, abs=2)
    [size] = sent(expert_imbalance=2, capacity_factor=1.25)
    assert size == pytest.approx(sum(wanted) / 4 * 256 * 2, rel=1e-3)


def test_less_than_the_mean_drops_evenly():
    assert rows(capacity_factor=0.5) == [SENT // 2]
    assert sent(capacity_factor=0.5) == {SENT // 2 * 256 * 2}


def test_padded_experts_are_alike_and_full():
    for imbalance in (1, 3):
        assert rows(expert_imbalance=imbalance, capacity_factor=1.5, pad_to_capacity=True) == [SENT * 3 // 2]
        assert sent(expert_imbalance=imbalance, capacity_factor=1.5, pad_to_capacity=True) == {SENT * 3 // 2 * 256 * 2}


@pytest.mark.parametrize("capacity", [0.5, 1.0, 1.25, 1.9])
def test_shares_of_what_arrives_add_up_to_one(capacity):
    shares, kept = loads(4, job(expert_imbalance=2, capacity_factor=capacity).training)
    assert math.fsum(shares or (1.0,)) == pytest.approx(1)
    assert kept <= min(1.0, capacity) + 1e-12
    assert not shares or max(shares) * kept <= capacity / 4 + 1e-12


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            {"pad_to_capacity": True},
            "training.pad_to_capacity: true needs training.capacity_factor; set it or write false",
        ),
        ({"capacity_factor": 0.0}, "training.capacity_factor: 0.0 must be greater than 0"),
    ],
)
def test_what_contradicts_gets_one_sentence(training, message):
    with pytest.raises(ConfigError) as caught:
        job(**training)
    assert message in str(caught.value)


def test_megatrons_names():
    names = "moe-expert-capacity-factor: 1\nmoe-pad-expert-input-to-capacity: true\n"
    made = build(parse(TEXT + names)).training
    assert (made.capacity_factor, made.pad_to_capacity) == (1.0, True)
    assert build(parse(TEXT + "moe-expert-capacity-factor: -1\n")).training.capacity_factor is None
