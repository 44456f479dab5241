"""Products that add to fp32 gradients: on Blackwell further bytes are not hidden, elsewhere they are part of the product."""

import numpy as np
import pytest

from clustersim.hardware.gpus import load
from clustersim.model.kernel import gemm
from clustersim.model.moe import APART
from clustersim.predictors.forecasts import Forecasts
from clustersim.predictors.load import get
from clustersim.predictors.sums import split_sums

PEAK = 2250e12
# MooreThreads/SimuMax configs/system/b200_bf16_ceperm.json. Tokens, width in and out: share of the peak of x·Wᵀ, and of its
# weight gradient in fp32; experts, rows of each, width out and in: of the weight gradients, one expert after the other.
DENSE = {
    (4096, 8192, 57344): (0.4866883120666592, 0.4535840289023081),
    (4096, 28672, 8192): (0.48468729098639646, 0.45941573392535623),
    (4096, 8192, 128256): (0.4873820268159329, 0.45475725434653747),
    (4096, 16384, 106496): (0.4960738458589092, 0.4561958217418486),
}
EXPERTS = {
    (128, 256, 4096, 7168): 0.1473280410169324,
    (64, 512, 4096, 7168): 0.21917045166565546,
    (64, 512, 7168, 2048): 0.2145037227926535,
    (40, 616, 3072, 5120): 0.25789208502366806,
    (32, 1024, 4096, 7168): 0.288807539872335,
    (32, 1024, 7168, 2048): 0.2743563936070243,
    (20, 1232, 3072, 5120): 0.32760011542122736,
    (20, 1232, 5120, 1536): 0.3197788794311179,
}


def sustained(gpu, kernels, share=None):
    """Return seconds at the clocks that steps hold, or at that share of a burst which one board held."""
    board = load(gpu) if share is None else load(gpu).model_copy(update={"sustained": {"bf16": share}})
    return np.array([*Forecasts(get("neusight"), board).seconds(kernels, "sustained").values()])


OWN_SHARE = 0.59
"""Of the board on which the products below were timed: all 432 of its products take together as long then."""


@pytest.mark.parametrize("gpu", ["b200", "h100"])
def test_a_product_that_adds_to_fp32_takes_its_further_bytes_longer(gpu):
    sums, plain = (
        gemm("linear", "wgrad", "bf16", 1, 4096, 8192, 2048, 4),
        gemm("linear", "wgrad", "bf16", 1, 4096, 8192, 2048),
    )
    longer = pytest.approx(6 * 4096 * 8192 / load(gpu).memory_bandwidth, rel=1e-9)
    assert split_sums([sums], load(gpu)) == ([plain], [longer])
    one, other = sustained(gpu, [sums, plain])
    assert one - other == longer


@pytest.mark.parametrize(
    ("gpu", "kernel"),
    [
        ("a100", gemm("linear", "wgrad", "bf16", 1, 4096, 8192, 2048, 4)),
        ("b200", gemm("linear", "wgrad", "bf16", 1, 4096, 8192, 2048, 2)),
        ("b200", gemm("linear", "wgrad", "fp8", 1, 4096, 8192, 2048, 4)),
        ("b200", gemm("linear", "forward", "bf16", 1, 4096, 8192, 2048)),
    ],
)
def test_other_products_are_as_they_were(gpu, kernel):
    assert split_sums([kernel], load(gpu)) == ([kernel], [0.0])


def test_weight_gradients_take_as_much_longer_than_forward_products_as_measured():
    forward = [gemm("linear", "forward", "bf16", 1, m, n, k) for m, k, n in DENSE]
    back = [gemm("linear", "wgrad", "bf16", 1, n, k, m, 4) for m, k, n in DENSE]
    longer = sustained("b200", back, OWN_SHARE) / sustained("b200", forward, OWN_SHARE)
    measured = np.array([one / other for one, other in DENSE.values()])
    assert np.abs(longer / measured - 1).max() < 0.05


def test_weight_gradients_of_experts_take_as_long_as_measured():
    kernels = [
        gemm("grouped_gemm", "wgrad", "bf16", n, out, into, rows, 4)._replace(generation=APART)
        for n, rows, out, into in EXPERTS
    ]
    measured = [kernel.flop / (share * PEAK) for kernel, share in zip(kernels, EXPERTS.values(), strict=True)]
    errors = sustained("b200", kernels, OWN_SHARE) / measured - 1
    assert np.abs(errors).mean() < 0.08
    assert abs(errors.mean()) < 0.05
