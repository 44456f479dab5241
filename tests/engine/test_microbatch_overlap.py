"""Two microbatches beside each other: what one exchanges with experts on other ranks moves while the other computes."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from expert_cases import WIDE, job, kernels_of, played
from script_cases import written

from clustersim.config.yaml import parse
from clustersim.engine.microbatch_overlap import Pairing, turns
from clustersim.errors import ConfigError
from clustersim.parallel.stages import stages
from clustersim.schedules.action import Action
from clustersim.schedules.check import load as schedule
from clustersim.simulation import Simulator
from clustersim.topology.build import build as built

ONE = {"ep": 8, "dp": 8, "training__global_batch": 64, **WIDE}
CHUNKS = {"pp": 2, "ep": 4, "dp": 4, "parallelism__schedule": "interleaved", "parallelism__vpp": 2}


def test_passes_take_turns_as_megatrons_do():
    """model_chunk_schedule_plan.py: combine_bwd | dispatch_fwd, dispatch_bwd | combine_fwd beside attention forward | experts
    backward and forward | attention backward. A gradient travels the other way."""
    result = played("microbatch", 100, **{**ONE, "training__global_batch": 24, "model__layers": 1})
    own = sorted((s for s in result.record.spans if s.rank == 0 and s.activity), key=lambda s: s.start)
    computed = [s for s in own if (s.kind, s.microbatch) in {("B", 0), ("F", 1)}]
    assert [kind for kind, _ in groupby(s.kind for s in computed)] == ["B", "F", "B", "F", "B", "F"]
    begin, end = computed[0].start, computed[-1].end
    moved = [s for s in own if s.stream == "ep" and begin <= s.start <= end]
    assert [s.kind for s in moved] == ["dispatch", "dispatch", "combine", "combine"]
    assert all(one.end <= other.start for one, other in pairwise(moved))


def test_exchanges_that_are_shorter_cost_nothing_but_in_the_first_and_the_last_pass():
    long = {**ONE, "model__ffn": 16384, "model__heads": 128, "model__head_dim": 128}
    apart, beside = (played(mode, 400, **long) for mode in ("none", "microbatch"))
    counted = sum(
        s.end - s.start for s in apart.record.spans if s.rank == 0 and s.stream == "tp_ep"
    )  # rows are still waited for
    microbatches = apart.job.microbatches
    saved = apart.summary["step_time_s"] - beside.summary["step_time_s"]
    assert saved == pytest.approx((microbatches - 1) / microbatches * (apart.parts[0]["ep"] - counted), rel=1e-6)


@pytest.mark.parametrize("rate", [5, 50, 400])
@pytest.mark.parametrize("more", [{}, CHUNKS, {"tp": 2, "ep": 4, "dp": 4, "parallelism__tp_across_nodes": True}])
def test_it_is_never_slower_and_computes_the_same(rate, more):
    apart, beside = (played(mode, rate, **{**ONE, **more}) for mode in ("none", "microbatch"))
    assert beside.summary["step_time_s"] <= apart.summary["step_time_s"] * (1 + 1e-9)
    assert beside.parts[0]["compute"] == pytest.approx(apart.parts[0]["compute"], rel=1e-9)
    assert sorted(kernels_of(apart.job)) == sorted(kernels_of(beside.job))


def test_a_rank_keeps_one_layer_more():
    """Megatron releases each layer of the backward pass behind the layer of the forward pass beside it."""
    apart, beside = (played(mode, 100, **ONE).job for mode in ("none", "microbatch"))
    simulator = Simulator(built(parse("cluster: {nodes: 1, node: hgx-h100}\nfabric: {kind: switch}\n", "t.yaml")))
    [one], [other] = (simulator.preparation.peaks(each) for each in (apart, beside))
    [stage] = stages(beside)
    most = max(layer.saved for layer, _ in stage.layers)
    assert other.activations - one.activations == pytest.approx(most, rel=1e-9)
    assert most < stage.saved_bytes / 2


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 2), (4, 3)])
def test_every_part_runs_once_and_pairs_are_as_many_as_megatrons(pp, vpp):
    """Megatron warms up with one forward more: so many pairs are left as passes of a letter less these."""
    name, microbatches = ("interleaved" if vpp > 1 else "1f1b"), 4 * pp
    for rank, row in enumerate(schedule(name, pp, microbatches, vpp)):
        exchanges = {(letter, chunk): 4 for letter in "FB" for chunk in range(vpp)}
        found = turns(row, range(rank, pp * vpp, pp), Pairing(exchanges))
        parts = [(key, one) for key, one in found if len(key) == 4]
        warmup = min(microbatches * vpp, 2 * (pp - 1 - rank) + (vpp - 1) * pp + 1)
        assert len(parts) == 2 * 5 * (microbatches * vpp - warmup)
        assert len({(key, one) for key, one in found}) == len(found)
        assert [one for key, one in found if len(key) == 2 or key[2] == 0] == list(row)


def test_what_one_pass_has_more_than_the_other_follows_alone():
    row = [Action(0, letter, microbatch) for microbatch in (0, 1) for letter in "FB"]
    found = [
        (one.letter, key[2]) for key, one in turns(row, (0,), Pairing({("F", 0): 0, ("B", 0): 2})) if len(key) == 4
    ]
    assert found == [("B", 0), ("F", 0), ("B", 1), ("B", 2)]


def test_what_is_not_asked_stays_as_it_was():
    one = job(**ONE)
    [script] = written(one.place(8, 1), stages(one.place(8, 1)), schedule("1f1b", 1, 8))
    assert not script.layout.pairing
    assert all(len(key) == 2 for key in script.layout.steps)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ep": 1}, "ep is 1; raise parallelism.ep or write none"),
        (
            {"pp": 2, "ep": 4, "dp": 4},
            "interleaved with vpp of 2 or more, dualpipe, dualpipev, or 1f1b with pp 1, not 1f1b with pp 2",
        ),
        ({"training__recompute": "full"}, "recomputed .full.; recompute other modules or write none"),
        (
            {"training__recompute": "selective", "training__recompute_modules": ["moe"]},
            "recomputed .moe.; recompute other modules or write none",
        ),
        ({"zero": 3}, "zero: 3 exclude each other; leave one of them out"),
        ({"zero": 3, "dp": "auto"}, "zero: 3 exclude each other; leave one of them out"),
    ],
)
def test_what_cannot_run_beside_exchanges_is_said(change, said):
    with pytest.raises(ConfigError, match=f"overlap.ep: microbatch.*{said}"):
        job(parallelism__overlap__ep="microbatch", **{**ONE, **change})
