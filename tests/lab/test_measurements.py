"""A user's own measured kernels: what a file gives, and what each wrong cell is told."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.errors import DataError
from clustersim.hardware import gpus
from clustersim.lab.data.own_measurements import COLUMNS, REQUIRED, read
from clustersim.model.kernel import attention, gemm, vector
from clustersim.predictors.features import bound, columns

OWN = """gpu,kind,op,dtype,layout,batch,m,n,k,heads,kv_heads,causal,latency_s,mode
h100,linear,forward,bf16,tn,1,4096,8192,8192,,,,8.1e-4,
h100,linear,wgrad,fp8,,1,4096,8192,8192,,,,4.1e-4,

h200,flash_attention,backward,bf16,,4,4096,4096,128,32,8,1,3e-3,burst
h200,elementwise,gelu,bf16,,,8192,16384,,,,,1.4e-4,burst
h200,elementwise,gelu,bf16,,,8192,16384,,,,,1.5e-4,sustained
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(OWN)
    return path


def test_rows_are_the_kernels_of_a_workload(own):
    found = read(own)
    same = columns(
        [
            gemm("linear", "forward", "bf16", 1, 4096, 8192, 8192),
            gemm("linear", "wgrad", "fp8", 1, 4096, 8192, 8192, output=2),
            attention("backward", "bf16", 4, 32, 8, 4096, 4096, 128, True),
            *[vector("elementwise", "gelu", "bf16", 8192, 16384, 1.0, 4.0)] * 2,
        ]
    )
    for name in same.__slots__:
        np.testing.assert_array_equal(getattr(found.samples.table, name), getattr(same, name))
    assert found.samples.gpu.tolist() == ["h100-sxm"] * 2 + ["h200-sxm"] * 3
    assert found.samples.seconds.tolist() == [8.1e-4, 4.1e-4, 3e-3, 1.4e-4, 1.5e-4]
    assert found.layout.tolist() == ["tn", "", "", "", ""]
    assert found.mode.tolist() == ["burst"] * 4 + ["sustained"]
    assert len(found.burst()) == 4


def test_parquet_holds_the_same(own, tmp_path):
    pl.read_csv(own).drop_nulls("kind").write_parquet(tmp_path / "own.parquet")
    one, other = read(own), read(tmp_path / "own.parquet")
    np.testing.assert_array_equal(one.samples.seconds, other.samples.seconds)
    np.testing.assert_array_equal(one.samples.table.bytes, other.samples.table.bytes)


def test_given_flop_and_bytes_count(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("gpu,kind,op,dtype,m,n,latency_s,bytes,flop\nh100,memory,mine,bf16,1000,1000,5e-6,8e6,3\n")
    table = read(path).samples.table
    assert (table.bytes[0], table.flop[0]) == (8e6, 3)


def test_a_gpu_may_be_a_file_of_its_own(own, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        (gpus.FOLDER / "h200-sxm.yaml").read_text().replace("name: h200-sxm", "name: mine")
    )
    own.write_text(OWN.replace("h200", str(tmp_path / "mine.yaml")))
    assert [gpus.load(name).name for name in read(own).samples.gpu] == ["h100-sxm"] * 2 + ["mine"] * 3


WRONG = [
    ("8.1e-4", "nan", r"own.csv:2: latency_s is 'nan'; write a finite number above 0"),
    ("8.1e-4", "", r"own.csv:2: latency_s is missing; write a finite number above 0"),
    ("8.1e-4", "fast", r"own.csv:2: latency_s is 'fast'; write a finite number above 0"),
    ("8.1e-4", "0.81", r"own.csv:2: latency_s is '0.81'; the roofline of h100-sxm is 0.000556 s; write seconds"),
    ("h100,", "h1000,", r"own.csv:2: gpu: unknown GPU 'h1000'; did you mean 'h100'\?"),
    ("h100,", ",", r"own.csv:2: gpu is missing; every row needs one"),
    ("bf16", "bfloat16", r"own.csv:2: dtype is 'bfloat16'; did you mean 'bf16'\?"),
    ("linear", "lineer", r"own.csv:2: kind is 'lineer'; did you mean 'linear'\?"),
    ("forward", "fwd", r"own.csv:2: op is 'fwd'; a linear kernel is one of forward, dgrad, wgrad"),
    (",8192,8192", ",0,8192", r"own.csv:2: n is '0'; write a whole number of at least 1"),
    (",8192,8192", ",8192,", r"own.csv:2: k is missing; a linear kernel needs the reduction"),
    ("128,32,8", ",32,8", r"own.csv:5: k is missing; a flash_attention kernel needs the head dimension"),
    ("128,32,8", "128,32,7", r"own.csv:5: kv_heads is '7'; write a divisor of heads, 32"),
    ("8,1,3e-3", "8,maybe,3e-3", r"own.csv:5: causal is 'maybe'; write 1 or 0"),
    ("tn,", "tx,", r"own.csv:2: layout is 'tx'; known: nn, nt, tn, tt"),
    ("gelu", "magic", r"own.csv:6: bytes is missing; what 'magic' moves is not known; write the bytes"),
    ("layout", "layuot", r"own.csv: unknown column 'layuot'; did you mean 'layout'\?"),
    ("latency_s", "op", r"own.csv: column 'op' occurs twice; keep one of them"),
    ("latency_s", "note", r"own.csv: has no column latency_s; expected gpu, kind"),
    ("8.1e-4,", "8.1e-4", r"own.csv:2: has 13 cells; the header has 14"),
    *(
        ("mode", name, f"own.csv:5: {name} is 'burst'; write a finite number of at least 0")
        for name in ("low_s", "high_s", "clock_mhz", "power_w")
    ),
    ("h100", '"h100', r"own.csv: cannot be read as CSV: .*; write UTF-8 text with commas"),
]


@pytest.mark.parametrize(("right", "wrong", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_a_wrong_cell_is_named_with_its_place_and_remedy(own, right, wrong, message):
    own.write_text(OWN.replace(right, wrong, 1))
    with pytest.raises(DataError, match=message):
        read(own)


def test_binary_files_are_refused(tmp_path):
    for name in ("own.csv", "own.parquet"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00rubbish")
        with pytest.raises(DataError, match="cannot be read as"):
            read(tmp_path / name)


@settings(max_examples=examples(60))
@given(text=st.text(max_size=12), column=st.sampled_from(sorted(set(COLUMNS) - {"note", "torch", "cuda"})))
def test_any_text_in_any_cell_is_read_or_refused_in_one_sentence(tmp_path_factory, text, column):
    row = dict.fromkeys(COLUMNS, "") | {"gpu": "h100", "kind": "linear", "op": "forward", "dtype": "bf16"}
    row |= {"m": "4096", "n": "8192", "k": "8192", "latency_s": "8e-4", column: text}
    path = tmp_path_factory.getbasetemp() / "any.csv"
    pl.DataFrame([row]).write_csv(path)
    try:
        samples = read(path).samples
    except DataError as error:
        assert "any.csv" in str(error)
    else:
        assert len(samples) == 0 or (samples.seconds[0] >= 0.1 * bound(samples.table, gpus.load(samples.gpu[0]))[0])


def test_the_documentation_names_every_column():
    page = (Path(__file__).parents[2] / "docs/measurements.md").read_text(encoding="utf-8")
    assert [name for name in COLUMNS if f"`{name}`" not in page] == []
    assert set(REQUIRED) <= set(COLUMNS)
