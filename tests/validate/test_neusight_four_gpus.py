"""NeuSight's measured runs on four GPUs of one node (Lee et al., ASPLOS'25, scripts/asplos/summary/distributed.csv)."""

from pathlib import Path

import pytest

from clustersim.simulation import simulate

ROOT = Path(__file__).parents[2]
# workload, GPU, batch, split, measured ms, NeuSight's forecast ms
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
