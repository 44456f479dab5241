"""What a summary says beside the step time: where it goes, which GPUs idle and what would use them, and warnings."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import output_cases
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summary_cases import simulate

from clustersim.config.yaml import parse
from clustersim.errors import OutOfMemoryError
from clustersim.hardware import gpus
from clustersim.model.kernel import gemm
from clustersim.parallel.job import Job
from clustersim.parallel.load import build as build_workload
from clustersim.parallel.nearby import nearby
from clustersim.predictors.clocks import shares_of
from clustersim.report.breakdown import mean_of_ranks
from clustersim.report.terminal import lines
from clustersim.report.verdicts import BANDS, WORDS, band, largest_share, verdict
from clustersim.simulation import Simulator, run
from clustersim.topology.build import build as build_topology


def head(result):
    return "\n".join(lines(result.summary, 0.0))


# where the step goes


def test_the_mean_counts_every_rank_that_a_cell_stands_for():
    assert mean_of_ranks([{"compute": 1.0, "ep": 4.0}, {"compute": 3.0}], [3, 1]) == {"compute": 1.5, "ep": 3.0}


def test_computation_stays_when_a_cable_breaks_and_communication_takes_the_rest():
    well = simulate().summary
    bad = simulate(output_cases.NODES + "faults: [{link: 'nic-up[9]', rate: 10Gb/s}]\n").summary
    assert bad["step_time_s"] > 1.2 * well["step_time_s"]
    assert bad["breakdown_s"]["compute"] == pytest.approx(well["breakdown_s"]["compute"], rel=1e-9)
    assert bad["critical_path_s"]["dp"] > 1.2 * well["critical_path_s"]["dp"]


# GPUs that idle


def test_idle_gpus_are_in_the_headline_with_their_cost_and_what_uses_them():
    result = simulate(training__global_batch=34, training__micro_batch=1)
    idle = result.summary["idle"]
    assert idle == {
        "gpus": 15,
        "share": 15 / 32,
        "suggestion": {"options": "--global-batch 32", "changes": {"training.global_batch": 32}, "gpus": 32},
    }
    per_owned = result.summary["tokens_per_s"] / 32
    assert result.summary["tokens_per_s_per_owned_gpu"] == pytest.approx(per_owned)
    text = head(result)
    assert f"15 of 32 GPUs (46.9 %): {per_owned:.1f} tokens/s for each of the 32 owned" in text
    assert "--global-batch 32 uses 32 of 32" in text


def test_nothing_is_said_when_none_idle():
    result = simulate()
    assert result.summary["idle"] == {"gpus": 0, "share": 0.0, "suggestion": None}
    assert "owned" not in head(result)


@pytest.mark.parametrize(
    "overrides, options",
    [
        ({"parallelism__dp": 2}, "--dp auto"),
        ({"parallelism__pp": 3, "model__layers": 12, "training__global_batch": 8}, "--pp 4"),
        ({"parallelism__pp": 5, "model__layers": 10, "training__global_batch": 62}, "--pp 4 --global-batch 64"),
        ({"parallelism__pp": 2, "training__global_batch": 4}, "--global-batch 16"),
    ],
)
def test_the_nearest_way_is_suggested_and_uses_what_it_says(overrides, options):
    wanted = {"training__micro_batch": 1, **overrides}
    suggestion = simulate(**wanted).summary["idle"]["suggestion"]
    assert suggestion["options"] == options
    again = simulate(**wanted | {key.replace(".", "__"): value for key, value in suggestion["changes"].items()})
    assert again.summary["simulated"]["ranks"] == suggestion["gpus"] == 32


def test_a_dead_node_leaves_gpus_that_another_pipeline_uses():
    """63 nodes of 8 with tp 8 × pp 4: dp 8 divides 512 sequences, and 256 of 504 GPUs work."""
    one = build_workload(
        parse(output_cases.JOB),
        {"parallelism.tp": 8, "parallelism.pp": 4, "training.micro_batch": 1, "training.global_batch": 512},
    ).place(504, 8)
    assert one.mesh.size == 256
    found = nearby(one, 504, 8)
    assert found[0].gpus == 504
    assert found[0].options == "--pp 3 --global-batch 504"
    assert all(isinstance(other.job, Job) and other.gpus > 256 for other in found)


# warnings


def test_chunks_whose_sends_are_waited_for_warn_and_name_the_key():
    split = {"parallelism__tp": 2, "parallelism__pp": 4, "parallelism__vpp": 2, "parallelism__schedule": "interleaved"}
    result = simulate(**split)
    [warning] = result.summary["warnings"]
    assert "parallelism.overlap.p2p: true" in warning
    assert f"warning: {warning}" in " ".join(head(result).split())
    assert simulate(**split, parallelism__overlap={"p2p": True}).summary["warnings"] == []
    assert simulate(parallelism__tp=2, parallelism__pp=4).summary["warnings"] == []


NEEDS = st.floats(0.0, 1e13)
HAVE = st.floats(1.0, 1e12)


@given(NEEDS, NEEDS, HAVE, HAVE)
def test_more_need_never_raises_the_share_that_ran_and_more_memory_never_lowers_it(need, more, have, memory):
    (need, more), (have, memory) = sorted((need, more)), sorted((have, memory))
    assert band(more, have).share <= band(need, have).share <= band(need, memory).share
    order = list(WORDS)
    assert order.index(verdict(need, memory)) <= order.index(verdict(need, have)) <= order.index(verdict(more, have))


@given(NEEDS, HAVE)
def test_what_may_run_is_what_the_verdict_says(need, have):
    assert (need <= largest_share(unlikely=False) * have) == (verdict(need, have) == "likely")
    assert (need <= largest_share(unlikely=True) * have) == (verdict(need, have) != "no")


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("CLUSTERSIM_DATA"), reason="$CLUSTERSIM_DATA names no folder of measured tables")
def test_the_published_mappings_are_those_of_the_source_as_they_are_forecast_now():
    script = Path(__file__).parents[2] / "scripts/nanotron-memory"
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[-len(BANDS) :]]
    assert [(int(ran), int(count)) for _, ran, count, _ in rows] == [(one.ran, one.published) for one in BANDS]


@pytest.mark.parametrize(
    ("gib", "expected", "said"),
    [
        (58.5, "likely", "157 of 168"),  # tp 1 x pp 2 x dp 4 to 128: all six ran
        (70.1, "unlikely", "11 of 51"),  # tp 2 x dp 32 and 64, batches of 4: crashed
        (77.6, "unlikely", "11 of 51"),  # tp 1 x pp 4 x dp 4: ran
        (82.7, "unlikely", "none of 11"),  # Nemotron-4 340B on 128 H100: ran
        (85.7, "no", "none of 129"),  # dp 8 to 256 without ZeRO: all six crashed
    ],
)
def test_published_mappings_by_how_full_they_are(gib, expected, said):
    found = verdict(gib, 79.65), band(gib, 79.65).text
    assert found == (expected, f"{said} published mappings this full ran")


@pytest.mark.parametrize(("room", "expected"), [(1.3, "likely"), (1.1, "unlikely"), (0.98, "unlikely"), (0.95, "no")])
def test_what_is_unlikely_to_fit_warns_and_what_does_not_is_refused(room, expected):
    cluster, job = build_topology(parse(output_cases.NODES)), build_workload(parse(output_cases.JOB))
    need = run(cluster, job).summary["memory"]["peak_bytes"]
    small = replace(cluster, gpu=cluster.gpu.model_copy(update={"memory": room * need}))
    if expected == "no":
        with pytest.raises(
            OutOfMemoryError,
            match=r"GiB.*: none of 129 published mappings this full ran; .*, or pass ignore_memory=True",
        ):
            run(small, job)
    if expected == "unlikely":
        with pytest.raises(OutOfMemoryError, match=r"published mappings this full ran; .*, or pass unlikely=True"):
            Simulator(small, unlikely=False).run(job)
    result = run(small, job, ignore_memory=expected == "no")
    memory, said = result.summary["memory"], result.summary["warnings"]
    assert (memory["verdict"], memory["fits"]) == (expected, expected == "likely")
    assert any(one.startswith("unlikely to fit: ") for one in said) == (expected == "unlikely")
    assert f"  memory      {WORDS[expected]}, " in head(result)
    assert memory["evidence"] in head(result)


# clocks


@pytest.mark.parametrize(
    "gpu, clocks, source, words",
    [
        ("b200-sxm", "sustained", "measured", "measured on this GPU"),
        ("b300-sxm", "sustained", "law", "from this GPU's power and not measured"),
        ("b300-sxm", 0.8, "given", "as given"),
    ],
)
def test_the_headline_says_where_the_share_of_the_clock_is_from(gpu, clocks, source, words):
    kernel = gemm("linear", "linear", "bf16", 1, 4096, 4096, 4096)
    shares = shares_of([kernel], gpus.load(gpu), clocks)
    assert shares["bf16"]["source"] == source
    result = simulate()
    result.summary["predictor"]["clock_shares"] = shares
    assert f"bf16 products at {100 * shares['bf16']['share']:.0f} % of a short burst's rate, {words}" in head(result)


def test_the_share_in_json_is_what_products_lost():
    found = simulate(predictor="neusight").summary["predictor"]["clock_shares"]
    assert found["bf16"]["source"] == "law"
    assert np.isclose(found["bf16"]["share"], 0.76, atol=0.01)
    assert simulate(predictor="roofline").summary["predictor"]["clock_shares"]["bf16"] == {
        "share": 1.0,
        "source": "boost",
    }


def test_what_is_left_out_follows_the_files():
    taken = "that communication takes from computation beside it"
    assert simulate().summary["not_modelled"] == [
        "packet loss, PFC and incast",
        f"memory bandwidth and SMs {taken}",
        "the CPU that launches kernels, data loading and checkpoints",
    ]
    keys = {"parallelism__overlap__sms": "nccl", "training__framework": "megatron-core"}
    assert simulate(**keys).summary["not_modelled"][1:] == [
        f"memory bandwidth {taken}",
        "CPU overhead beyond the launch of kernels, data loading and checkpoints",
    ]
