"""`clustersim collective`: nccl-tests' table, its JSON, measurements beside it, and what it refuses."""

import json
import sys
from pathlib import Path

import pytest

from clustersim.cli.main import main

ROOT = Path(__file__).parents[1]
NODE = str(ROOT / "topologies" / "hgx_h100_8.yaml")
POD = str(ROOT / "topologies" / "superpod_h100_128.yaml")


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["clustersim", "collective", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    return run


def test_the_table_of_nccl_tests(call):
    code, out, _ = call("all_reduce", "-b", "8", "-e", "16G", "-f", "2", "--topology", NODE, "--why")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["size", "type", "algo", "proto", "time", "algbw", "busbw"]
    table = rows[2 : 2 + 32]
    assert [int(row[0]) for row in table] == [8 << i for i in range(32)]
    assert table[0][2:4] == ["ring", "LL"]
    assert table[-1][2:4] == ["nvls", "Simple"]
    assert 460 < float(table[-1][-1]) < 485  # measured 478 to 482: stas00/ml-engineering, Voltage Park
    assert "nvls/Simple is expected to take" in out


def test_json_and_the_arithmetic_of_busbw(call):
    code, out, _ = call("all_gather", "-b", "1G", "-e", "1G", "-t", POD, "--ranks", "0-127:8", "--json")
    [row] = json.loads(out)
    assert code == 0
    assert row["algbw"] == pytest.approx(row["size_bytes"] / row["time_us"] / 1e3)
    assert row["busbw"] == pytest.approx(row["algbw"] * 15 / 16)
    assert 40 < row["busbw"] < 48  # one NIC a node


@pytest.mark.parametrize(
    "op",
    ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "dispatch", "combine", "send"],
)
def test_every_operation_on_a_part_of_a_pod(call, op):
    code, out, _ = call(op, "-b", "1M", "-e", "64M", "-f", "8", "-t", POD, "--gpus", "64")
    assert code == 0
    assert len(out.splitlines()) == 5


@pytest.mark.parametrize("op", ["all_to_all", "dispatch", "combine"])
def test_a_busy_gpu_between_nodes(call, op):
    """Three times the rows take three times as long on its NIC; busbw is algbw · 63/64 whatever the skew."""
    one = ["-b", "1G", "-e", "1G", "-t", POD, "--gpus", "64"]
    rows = [json.loads(call(op, *one, "--imbalance", skew, "--json")[1])[0] for skew in ("1", "3")]
    assert rows[1]["time_us"] / rows[0]["time_us"] == pytest.approx(3, rel=0.01)
    assert rows[1]["busbw"] == pytest.approx(rows[1]["algbw"] * 63 / 64)
    code, out, _ = call(op, *one, "--imbalance", "3", "--why")
    assert code == 0
    assert (
        "messages go directly, over the NIC; no tuner decides; the busiest GPU has 3 times the mean of the rows" in out
    )


def test_measured_figures_beside_it(call, tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("size_bytes,time_us\n1048576,26\n67108864,322\n")
    code, out, _ = call("all_reduce", "-t", NODE, "--measured", "own.csv")
    assert code == 0
    assert "measured   error" in out
    assert out.splitlines()[-1].startswith("median absolute error")
    assert len(out.splitlines()) == 5
    both = tmp_path / "both.csv"
    both.write_text("source,op,gpus,size_bytes,time_us\na,alltoall,8,1048576,16\nb,alltoall,8,1048576,17\n")
    code, out, _ = call("all_to_all", "-t", NODE, "--measured", "both.csv", "--source", "b", "--json")
    assert json.loads(out)[0]["measured_us"] == pytest.approx(17)


REFUSED = [
    (["dance", "-t", NODE], "'dance' is no collective; "),
    (["all_reduce", "-t", NODE, "-g", "9"], "the cluster has 8 GPUs, not 9; use that many or fewer"),
    (
        ["all_reduce", "-t", NODE, "-b", "2G", "-e", "1G"],
        "the smallest size 2G is larger than the largest 1G; swap them",
    ),
    (["all_reduce", "-t", NODE, "-b", "many"], "'many' is no size of a collective; write bytes, or 64K, 1M, 16G"),
    (["all_reduce", "-t", NODE, "-f", "1.01"], "sizes are too many; use a larger --factor"),
    (
        ["dispatch", "-t", NODE, "--imbalance", "9"],
        "an imbalance of 9 is not possible over 8 GPUs; it is the rows of the busiest over the mean, from 1 (all alike) "
        "to 8 (one gets all)",
    ),
    (["combine", "-t", NODE, "--imbalance", "0.5"], "an imbalance of 0.5 is not possible over 8 GPUs"),
    (["all_to_all", "-t", NODE, "--imbalance", "nan"], "an imbalance of nan is not possible over 8 GPUs"),
    (
        ["send", "-t", NODE, "--imbalance", "2"],
        "an imbalance is for all_to_all, dispatch, combine; every GPU has as much to do with send, drop it",
    ),
    (["all_reduce", "-t", NODE, "--ranks", "7-3"], "GPUs 7-3 are not among 0 to 7"),
    (["all_reduce", "-t", NODE, "--ranks", "a"], "'a' is no list of GPUs; write numbers and spans like 0-7"),
    (["all_reduce", "-t", NODE, "--ranks", "0-3", "-g", "2"], "--gpus and --ranks both name the GPUs"),
    (["all_reduce", "-t", NODE, "--ranks", "3"], "a collective needs two GPUs or more"),
    (["all_reduce", "-t", NODE, "--algo", "rign"], "'rign' is no algorithm of NCCL; did you mean 'ring'?"),
    (["all_reduce", "-t", NODE, "--proto", "ll"], "'ll' is no protocol of NCCL; write LL, LL128 or Simple"),
    (["all_reduce", "-t", NODE, "--nccl", "1.3"], "NCCL 1.3 is not known; write 2.18 to 2.30"),
    (["all_reduce", "-t", NODE, "--launch", "24"], "'24' has no unit; write a time with one"),
    (["all_reduce", "-t", NODE, "--measured", "none.csv"], "none.csv cannot be read"),
    (["all_reduce", "-t", NODE, "--measured", "short.csv"], "short.csv lacks the columns size_bytes and time_us"),
    (["all_reduce", "-t", NODE, "--measured", "odd.csv"], "size_bytes must be whole, time_us a number"),
    (["reduce", "-t", NODE, "--measured", "two.csv"], "two.csv has no row for reduce on 8 GPUs"),
    (["all_reduce", "-t", NODE, "--measured", "two.csv"], "two.csv has rows of 2 sources for all_reduce on 8 GPUs"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=str)
def test_what_it_refuses(call, tmp_path, arguments, message):
    (tmp_path / "short.csv").write_text("size,time\n1,2\n")
    (tmp_path / "odd.csv").write_text("size_bytes,time_us\n1.5,soon\n")
    (tmp_path / "two.csv").write_text("source,op,gpus,size_bytes,time_us\na,all_reduce,8,8,9\nb,all_reduce,8,8,9\n")
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("clustersim: ")
    assert message in err
    assert len(err.splitlines()) == 1
