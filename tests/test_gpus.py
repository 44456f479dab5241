"""The shipped GPUs: every figure has a source, names are unique, and rates agree with each other."""

import pytest

from clustersim import gpus
from clustersim.errors import UnknownNameError

ALL = gpus.everything()
MEASURED = (  # names that tables of measurements use
    "NVIDIA_H100_80GB_HBM3",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA L4",
    "Tesla P4",
    "Tesla P100-PCIE-16GB",
    "Tesla T4",
    "Tesla V100-PCIE-32GB",
    "AMD Instinct MI100",
    "AMD Instinct MI210",
    "AMD_Instinct_MI250",
    *("a100_sxm", "h100_sxm", "h200_sxm", "l40s", "b200_sxm", "b300_sxm", "gb200"),
)


@pytest.mark.parametrize("gpu", ALL, ids=lambda gpu: gpu.name)
def test_every_figure_has_a_source(gpu):
    figures = {"sms", "clock", "memory", "memory_bandwidth", "l2", "matrix", "vector", "power"}
    figures |= {"attained"} if gpu.attained else set()
    assert set(gpu.sources) == figures
    assert all(len(text) > 10 for text in gpu.sources.values())


@pytest.mark.parametrize("gpu", ALL, ids=lambda gpu: gpu.name)
def test_rates_agree(gpu):
    assert gpus.load(gpu.name) is gpu
    assert (gpus.FOLDER / f"{gpu.name}.yaml").is_file()
    assert all(rate < gpu.matrix[dtype] for dtype, rate in gpu.attained.items())
    for narrow, wide in (("fp8", "bf16"), ("fp4", "fp8"), ("bf16", "fp32"), ("bf16", "tf32")):
        if narrow in gpu.matrix and wide in gpu.matrix:
            assert gpu.matrix[narrow] >= 1.97 * gpu.matrix[wide]
    if gpu.vendor == "nvidia":
        lanes = gpu.vector["fp32"] / (2 * gpu.clock * gpu.sms)  # a multiply-add is two operations
        assert lanes == pytest.approx(64, rel=0.03) or lanes == pytest.approx(128, rel=0.03)


def test_names_and_aliases_are_unique():
    names = [name.lower() for gpu in ALL for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", MEASURED)
def test_devices_of_published_tables_are_known(name):
    assert gpus.load(name).name in {gpu.name for gpu in ALL}


def test_h100_is_the_sxm_board_of_the_whitepaper():
    h100 = gpus.load("h100")
    assert (h100.name, h100.sms) == ("h100-sxm", 132)
    assert h100.matrix_peak("bf16") == pytest.approx(989.4e12)
    assert h100.matrix_peak("fp32") == h100.vector_peak("fp32") == pytest.approx(66.9e12)
    assert h100.memory_bandwidth == 3352e9
    assert h100.memory == 81559 * 2**20  # what nvidia-smi reports of the 80 GB


def test_unknown_gpu_names_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'h100'"):
        gpus.load("h1000")
