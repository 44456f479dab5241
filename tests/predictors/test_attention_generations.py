"""Generations of fused attention are as fast beside each other as published charts have them."""

import pytest
from engine_cases import cluster, job

from clustersim.errors import ConfigError
from clustersim.hardware.gpus import load
from clustersim.model.kernel import attention, gemm
from clustersim.predictors.clocks import derate
from clustersim.predictors.load import get
from clustersim.simulation import run

NEUSIGHT = get("neusight")


def seconds(gpu, generation, op, length, dim=128, causal=True):
    heads = 2048 // dim
    kernel = attention(op, "bf16", max(16384 // length, 1), heads, heads, length, length, dim, causal)._replace(
        generation=generation
    )
    device = load(gpu)
    [found] = derate([kernel], NEUSIGHT.predict([kernel], device), device, "boost")
    return float(found)


def both(gpu, generation, *shape):
    return sum(seconds(gpu, generation, op, *shape) for op in ("forward", "backward"))


@pytest.mark.parametrize(
    ("gpu", "one", "other", "shape", "times"),
    [
        ("a100-sxm-80gb", "flash1", "flash2", (8192, 128, True), 182 / 80),
        ("a100-sxm-80gb", "flash1", "flash2", (2048, 64, False), 162 / 104),
        ("h100-sxm", "flash2", "flash3", (16384, 128, True), 616 / 335),
        ("h100-sxm", "cudnn", "flash3", (4096, 64, True), 420 / 363),
        ("h100-sxm", "flash1", "flash2", (4096, 128, True), 173 / 76),
        ("b200-sxm", "flash2", "flash4", (8192, 128, True), 1384 / 400),
    ],
)
def test_one_takes_as_many_times_the_other_as_on_the_charts(gpu, one, other, shape, times):
    assert both(gpu, one, *shape) / both(gpu, other, *shape) == pytest.approx(times, rel=1e-9)


def test_between_two_lengths_of_a_chart_it_goes_by_the_logarithm_and_beyond_the_ends_on_level():
    ratio = {
        n: seconds("a100", "flash1", "forward", n) / seconds("a100", "flash2", "forward", n)
        for n in (4096, 8192, 65536)
    }
    assert ratio[65536] == pytest.approx(189 / 83, rel=1e-9)
    middle = seconds("a100", "flash1", "forward", 724) / seconds("a100", "flash2", "forward", 724)
    assert middle == pytest.approx(((99 + 133) / 2) / ((55 + 62) / 2), rel=1e-3)


def test_in_triton_it_is_slower_backward_than_forward():
    """FlashAttention-2 is 1.3 to 1.5 times as fast forward and around 2 times backward (Dao 2023, section 4.1)."""
    for op, least, most in (("forward", 1.3, 1.5), ("backward", 1.9, 2.1)):
        assert least < seconds("a100", "triton", op, 4096) / seconds("a100", "flash2", op, 4096) < most


@pytest.mark.parametrize(("gpu", "generation"), [("a100", "flash2"), ("h100", "flash3"), ("b200", "flash4")])
def test_the_forecast_is_of_the_newest_library_of_a_gpu(gpu, generation):
    assert seconds(gpu, generation, "forward", 4096) == seconds(gpu, "", "forward", 4096)


def test_clocks_and_other_kernels_stay():
    h100 = load("h100")
    product = gemm("linear", "forward", "bf16", 1, 4096, 4096, 4096)
    core = attention("forward", "bf16", 2, 16, 16, 4096, 4096, 128, True)
    old = core._replace(generation="flash2")
    bursts = NEUSIGHT.predict([product, core, old], h100)
    for clocks in ("sustained", "boost", 0.8):
        found = derate([product, core, old], bursts, h100, clocks)
        plain = derate([product, core], bursts[:2], h100, clocks)
        assert found[:2].tolist() == plain.tolist()
        assert found[2] / found[1] == pytest.approx(579 / 319)


def test_a_step_is_longer_by_what_its_attention_is():
    times = {
        kind: run(cluster(1), job(training__seq=2048, training__attention=kind), ignore_memory=True).record.end
        for kind in ("flash", "flash3", "flash2", "flash1", "unfused")
    }
    assert times["flash"] == times["flash3"] < times["flash2"] < times["flash1"] < times["unfused"]


def test_what_does_not_run_on_a_gpu_is_one_sentence():
    with pytest.raises(ConfigError) as error:
        run(cluster(1, gpu="a100-sxm-80gb"), job(training__attention="flash3"), ignore_memory=True)
    assert str(error.value).endswith(
        "training.attention: flash3 does not run on a100-sxm-80gb (ampere); use flash, flash1, triton, flash2, cudnn, unfused"
    )
