"""NeuSight (Lee et al., ASPLOS'25): its published multi-node forecasts, and its measured runs on four GPUs of one node."""

import functools
from pathlib import Path

import pytest

from clustersim.simulation import simulate

ROOT = Path(__file__).parents[2]
PUBLISHED = {1: 1.5149, 4: 1.8367, 384: 12.0283, 768: 12.1355, 3840: 12.5646}  # seconds


@functools.cache
def step(nodes, algorithm="neusight_hierarchical", tp="neusight_hierarchical"):
    """Step time in seconds; each replica runs one microbatch of 8, as on all of their clusters."""
    changes = {
        "training.global_batch": 8 * nodes,
        "parallelism.algorithms.dp": algorithm,
        "parallelism.algorithms.tp": tp,
    }
    result = simulate(
        ROOT / f"topologies/neusight_{nodes}.yaml",
        ROOT / "workloads/neusight_gpt3_xl.yaml",
        changes,
    )
    assert result.summary["simulated"]["ranks"] == 8 * nodes
    return result.summary["step_time_s"]


@pytest.mark.parametrize("nodes", [4, 384, 768, 3840])
def test_what_the_network_adds_is_theirs_to_a_tenth_of_a_percent(nodes):
    assert step(nodes) - step(1) == pytest.approx(PUBLISHED[nodes] - PUBLISHED[1], rel=1e-3)


def test_one_node_is_within_ten_percent():
    assert step(1) == pytest.approx(PUBLISHED[1], rel=0.1)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "tree"])
@pytest.mark.parametrize("nodes", [4, 384, 768, 3840])
def test_algorithms_that_cut_the_gradients_add_a_quarter_of_a_second_not_eleven(nodes, algorithm):
    """A ring moves 2(n-1)/n of 1.44 GB over 100 Gb/s whatever n is; their formula moves it (fan-out - 1) times a level."""
    added = step(nodes, algorithm) - step(1)
    assert 0.15 < added < 0.27


def test_the_ring_takes_its_closed_form():
    gradients, rate = 2_879_698_944 / 8 * 4, 12.5 * 2**30
    assert step(3840, "ring") - step(1) == pytest.approx(2 * 3839 / 3840 * gradients / rate, rel=1e-3)


# scripts/asplos/summary/distributed.csv: workload, GPU, batch, split, measured ms, NeuSight's forecast ms
ROWS = [
    ("gpt2_large", "a100_40gb", 4, "dp", 452.30, 510.51),
    ("gpt2_large", "a100_40gb", 4, "tp", 484.87, 525.58),
    ("gpt2_large", "a100_40gb", 4, "pp", 1597.64, 1761.57),
    ("gpt2_large", "h100", 4, "dp", 194.88, 214.11),
    ("gpt2_large", "h100", 4, "tp", 211.14, 228.08),
    ("gpt2_large", "h100", 4, "pp", 637.46, 650.22),
    ("gpt2_large", "h100", 16, "dp", 642.08, 649.60),
    ("gpt2_large", "h100", 16, "tp", 729.66, 825.06),
    ("gpt2_large", "h100", 16, "pp", 2384.01, 2638.45),
    ("gpt3_xl", "h100", 4, "tp", 1010.46, 1047.57),
    ("gpt3_xl", "h100", 4, "pp", 3554.40, 3717.01),
]


def forecast(model, gpu, batch, split):
    """Return milliseconds of one step."""
    changes = {
        "training.global_batch": batch,
        "training.micro_batch": batch // 4 if split == "dp" else batch,
        "parallelism.tp": 4 if split == "tp" else 1,
        "parallelism.pp": 4 if split == "pp" else 1,
    }
    topology = ROOT / f"topologies/nvlink_{gpu}_4.yaml"
    return 1e3 * simulate(topology, ROOT / f"workloads/neusight_{model}_4.yaml", changes).summary["step_time_s"]


@pytest.mark.parametrize(("model", "gpu", "batch", "split", "measured", "_theirs"), ROWS)
def test_each_run_is_forecast_within_a_fifth(model, gpu, batch, split, measured, _theirs):
    assert forecast(model, gpu, batch, split) == pytest.approx(measured, rel=0.2)


def test_the_page_shows_what_comes_out():
    page = (ROOT / "docs/neusight-multinode.md").read_text(encoding="utf-8")
    for *what, measured, theirs in ROWS:
        ours = forecast(*what)
        row = (
            f"| {what[0]} | {what[1]} | {what[2]} | {what[3]} | {measured:.1f} | "
            f"{ours:.0f} ({100 * (ours / measured - 1):+.1f} %) | {theirs:.0f} ({100 * (theirs / measured - 1):+.1f} %) |"
        )
        assert row in page, f"docs/neusight-multinode.md should say\n{row}"
