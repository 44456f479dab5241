"""The shipped GPUs: every figure has a source, names are unique, and rates agree with each other."""

import pytest

from clustersim.errors import ConfigError, InputError
from clustersim.hardware import gpus
from clustersim.predictors.clocks import sustained
from clustersim.topology.build import load as load_topology

ALL = gpus.everything()


@pytest.mark.parametrize("gpu", ALL, ids=lambda gpu: gpu.name)
def test_every_figure_has_a_source(gpu):
    figures = {"sms", "clock", "memory", "memory_bandwidth", "l2", "matrix", "vector", "power"}
    figures |= {"attained"} if gpu.attained else set()
    figures |= {"sustained"} if gpu.sustained else set()
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


def test_h100_is_the_sxm_board_of_the_whitepaper():
    h100 = gpus.load("h100")
    assert (h100.name, h100.sms) == ("h100-sxm", 132)
    assert h100.matrix_peak("bf16") == pytest.approx(989.4e12)
    assert h100.matrix_peak("fp32") == h100.vector_peak("fp32") == pytest.approx(66.9e12)
    assert h100.memory_bandwidth == 3352e9
    assert h100.memory == 81559 * 2**20  # what nvidia-smi reports of the 80 GB


FIELD = (  # what people train on, as they call it
    *("p4", "p100", "v100", "t4", "a10", "l4", "l40", "l40s", "rtx-4090"),
    *("a100-40gb", "a100-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "a800"),
    *("h100", "h100-pcie", "h100-nvl", "h800", "h20", "h200", "h200-nvl", "gh200", "gh200-144gb"),
    *("h100-sxm-96gb-500w", "v100-sxm3-32gb-450w"),
    *("b200", "b300", "gb200", "gb300", "mi100", "mi210", "mi250", "mi250x", "mi300x", "mi325x", "mi350x", "mi355x"),
)
MEASURED = (  # names that tables of measurements use
    *("NVIDIA_H100_80GB_HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA L4", "AMD Instinct MI100", "AMD Instinct MI210"),
    *("NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM4-40GB", "NVIDIA A100 80GB PCIe", "AMD_Instinct_MI250"),
    *("Tesla P4", "Tesla P100-PCIE-16GB", "Tesla T4", "Tesla V100-PCIE-32GB"),
    *("a100_sxm", "h100_sxm", "h200_sxm", "l40s", "b200_sxm", "b300_sxm", "gb200"),
)


@pytest.mark.parametrize("name", (*FIELD, *MEASURED))
def test_the_gpus_of_the_field_are_there(name):
    assert gpus.load(name).matrix_peak("fp16") > 5e12


def test_memory_is_what_the_driver_shows():
    shown = {
        "h100-nvl": 95830,
        "b200": 183359,
        "b300": 275040,
        "gb200": 189471,
        "gb300": 284208,
        "gh200": 97871,
        "mi325x": 262128,
    }
    assert {name: gpus.load(name).memory / 2**20 for name in shown} == shown


OWN = """\
name: mine
vendor: nvidia
architecture: imagined
sms: 160
clock: 2.1GHz
memory: 160GiB
memory_bandwidth: 6TB/s
l2: 80MiB
matrix: {fp32: 80TFLOP/s, bf16: 1400TFLOP/s}
vector: {fp32: 80TFLOP/s}
sustained: {bf16: 0.8}
power: 900W
sources: {all: "made up"}
"""


def node(folder, model):
    (folder / "t.yaml").write_text(f"cluster: {{nodes: 1, node: {{extends: hgx-h100, gpus: {{model: {model}}}}}}}")
    return load_topology(folder / "t.yaml").gpu


def test_a_gpu_of_your_own_lies_beside_the_topology_or_where_you_are(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/own.yaml").write_text(OWN)
    (tmp_path / "here.yaml").write_text(OWN.replace("mine", "here"))
    monkeypatch.chdir(tmp_path)
    assert node(tmp_path / "there", "own.yaml").sustained == {"bf16": 0.8}
    assert node(tmp_path / "there", "./own.yaml").name == node(tmp_path / "there", "there/own.yaml").name == "mine"
    assert node(tmp_path / "there", "here.yaml").name == "here"
    assert node(tmp_path / "there", tmp_path / "here.yaml").name == "here"
    with pytest.raises(InputError, match=r"t.yaml:1:\d+: gpus.model: there/none.yaml: no such file; `ls there`"):
        node(tmp_path.joinpath("there").relative_to(tmp_path), "none.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bf16: 0.8", "bf16: 1.8", "own.yaml:11:19: sustained.bf16: 1.8 must be at most 1.0"),
        ("{bf16: 0.8}", "{int8: 0.8}", "own.yaml:11:13: sustained.int8: int8 is not known; write 'fp64', "),
        ("vendor: nvidia", "vendor: intel", "own.yaml:2:9: vendor: intel is not known; write 'nvidia' or 'amd'"),
    ],
)
def test_mistakes_in_a_gpu_of_your_own_have_a_place_and_a_remedy(tmp_path, old, new, message):
    (tmp_path / "own.yaml").write_text(OWN.replace(old, new))
    with pytest.raises(ConfigError) as error:
        node(tmp_path, "own.yaml")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("node", "gpus", "nic", "link"),
    [
        ("grand-teton-h100", 8, 50e9, 18 * 25e9),  # torchtitan's benchmarks: NVLink, 400 Gb/s a GPU
        ("gb200-nvl72", 72, 50e9, 18 * 50e9),
        ("gb300-nvl72", 72, 100e9, 18 * 50e9),  # NVIDIA's reference architecture: a ConnectX-8 of 800 Gb/s for each GPU
        ("mi325x", 8, 50e9, 7 * 64e9),  # 128 GB/s both directions, one link to each of the other seven
        ("mi355x", 8, 50e9, 7 * 76.8e9),  # 153.6 GB/s both directions
    ],
)
def test_nodes_have_the_rates_of_their_datasheets(tmp_path, node, gpus, nic, link):
    (tmp_path / "t.yaml").write_text(f"cluster: {{nodes: 1, node: {node}}}", encoding="utf-8")
    found = load_topology(tmp_path / "t.yaml")
    facts = found.node
    assert (found.gpus, facts.nics, facts.nic_line) == (gpus, gpus, nic)
    assert facts.links * facts.link == pytest.approx(link)


def test_a_board_of_fewer_watts_holds_less_of_the_same_peak():
    """Meta's H100 of 500 W: torchtitan's pages say that its limit keeps it below the SXM board."""
    slow, fast = gpus.load("h100-sxm-96gb-500w"), gpus.load("h100-sxm")
    for dtype in ("bf16", "fp8"):
        assert slow.matrix_peak(dtype) == fast.matrix_peak(dtype)
        assert sustained(slow, dtype) < sustained(fast, dtype)


def test_a_file_may_not_take_the_name_of_a_shipped_gpu(tmp_path):
    """What was measured of a GPU goes by its name: another board would inherit its network and its error."""
    text = (gpus.FOLDER / "h100-sxm.yaml").read_text(encoding="utf-8").replace("sms: 132", "sms: 100")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="give this one another name, and `like: h100-sxm`"):
        gpus.load(str(tmp_path / "mine.yaml"))
    assert gpus.load(str(gpus.FOLDER / "h100-sxm.yaml")).name == "h100-sxm"


def test_kernels_of_an_unknown_type_are_refused():
    from clustersim.model.kernel import gemm

    with pytest.raises(InputError, match="unknown data type 'int8'"):
        gemm("linear", "forward", "int8", 1, 8, 8, 8)
