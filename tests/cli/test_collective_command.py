"""`clustersim collective`: nccl-tests' table, its JSON, measurements beside it, and what it refuses."""

import json
from functools import partial
from pathlib import Path

import pytest

from clustersim.collectives.nccl.request import sizes

ROOT = Path(__file__).parents[2]
NODE = str(ROOT / "topologies" / "hgx_h100_8.yaml")
POD = str(ROOT / "topologies" / "superpod_h100_128.yaml")


@pytest.fixture
def call(call):
    """Return a function that runs `clustersim collective` in an empty folder and gives (exit code, stdout, stderr)."""
    return partial(call, "collective")


def test_the_table_of_nccl_tests(call):
    code, out, _ = call("all_reduce", "-b", "8", "-e", "16G", "-f", "2", "--topology", NODE, "--why")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert out.splitlines()[0] == "# all_reduce over 8 GPUs on 1 node of hgx-h100-8, NCCL 2.30"
    assert rows[1] == ["size", "type", "algo", "proto", "time", "algbw", "busbw"]
    table = rows[3 : 3 + 32]
    assert [int(row[0]) for row in table] == [8 << i for i in range(32)]
    assert table[0][2:4] == ["ring", "LL"]
    assert table[-1][2:4] == ["nvls", "Simple"]
    assert 460 < float(table[-1][-1]) < 485  # measured 478 to 482: stas00/ml-engineering, Voltage Park
    assert "nvls/Simple is expected to take" in out


def test_it_takes_the_clusters_that_run_takes(call, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("""cluster: {name: rail-optimized, nodes: 4, node: {extends: hgx-b200, nics: {rate: 200Gb/s}}}
fabric: {kind: fat_tree, rails: optimized, radix: 64, oversubscription: 2, link: {cable: [3m, 30m]}}
nccl: {version: "2.27"}
""")
    sizes_ = ("all_reduce", "-b", "1M", "-e", "1G", "--json")
    options = (
        *("--nodes", "4", "--gpu", "b200"),
        *("--nic", "200Gb/s", "--oversubscription", "2", "--set", 'nccl.version="2.27"'),
    )
    asked, written = call(*sizes_, "-t", "rail_optimized", *options), call(*sizes_, "-t", str(file))
    assert asked[0] == written[0] == 0
    assert json.loads(asked[1]) == json.loads(written[1])
    assert call(*sizes_, "-t", NODE, "--set", "training.seq=1")[0] == 2


@pytest.mark.parametrize(
    ("begin", "end", "factor", "wanted"),
    [
        ("1G", "1G", 2, [1 << 30]),  # nccl-tests' parsesize
        ("1g", "1GiB", 2, [1 << 30]),
        ("1GB", "1 GB", 2, [10**9]),  # YAML's
        ("1kB", "2KiB", 2, [1000, 2000]),
        ("17", "70", 2, [16, 32, 68]),  # whole floats
        ("1", "12", 1.5, [4, 8]),
        ("0.5K", "1000", 1.5, [512, 768]),
    ],
)
def test_units_of_sizes_and_whole_elements(begin, end, factor, wanted):
    assert sizes(begin, end, factor) == wanted


def test_json_and_the_arithmetic_of_busbw(call):
    code, out, _ = call("all_gather", "-b", "1G", "-e", "1G", "-t", POD, "--ranks", "0-127:8", "--json")
    found = json.loads(out)
    [row] = found.pop("lines")
    assert code == 0
    where = {"topology": "superpod-h100-128", "gpus": 16, "nodes": 16}
    head = {"schema_version": 1, "clustersim": found["clustersim"], "command": "collective"}
    assert found == {**head, "op": "all_gather", **where, "nccl": "2.30", "warnings": []}
    assert row["algbw_gb_per_s"] == pytest.approx(row["size_bytes"] / row["time_us"] / 1e3)
    assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] * 15 / 16)
    assert 40 < row["busbw_gb_per_s"] < 48  # one NIC a node


@pytest.mark.parametrize(
    "op",
    ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "dispatch", "combine", "send"],
)
def test_every_operation_on_a_part_of_a_pod(call, op):
    code, out, _ = call(op, "-b", "1M", "-e", "64M", "-f", "8", "-t", POD, "--gpus", "64")
    assert code == 0
    assert len(out.splitlines()) == 6
    assert out.splitlines()[0] == f"# {op} over 64 GPUs on 8 nodes of superpod-h100-128, NCCL 2.30"


def test_send_goes_to_the_next_and_the_slowest_pair_counts(call):
    """Within a node all pairs use NVLink; over two, two of them cross a NIC of 48 GB/s, by PXN that of the receiver's rail."""
    one = ["-b", "1G", "-e", "1G", "-t", POD, "--why"]
    near, far = (call("send", *one, "--ranks", ranks)[1].splitlines() for ranks in ("0-7", "0-15"))
    assert float(near[3].split()[-1]) > 300
    assert 24 < float(far[3].split()[-1]) <= 48
    assert "nvlink-up[0] is the busiest link" in near[-1]
    assert far[-1] == "nic-up[0] decides: 100 % of its 48 GB/s while the bytes move; 3 more are as busy"


@pytest.mark.parametrize("op", ["all_to_all", "dispatch", "combine"])
def test_a_busy_gpu_between_nodes(call, op):
    """Three times the rows take three times as long on its NIC; busbw is algbw · 63/64 whatever the skew."""
    one = ["-b", "1G", "-e", "1G", "-t", POD, "--gpus", "64"]
    rows = [json.loads(call(op, *one, "--imbalance", skew, "--json")[1])["lines"][0] for skew in ("1", "3")]
    assert rows[1]["time_us"] / rows[0]["time_us"] == pytest.approx(3, rel=0.01)
    assert rows[1]["busbw_gb_per_s"] == pytest.approx(rows[1]["algbw_gb_per_s"] * 63 / 64)
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
    assert len(out.splitlines()) == 6
    both = tmp_path / "both.csv"
    both.write_text("source,op,gpus,size_bytes,time_us\na,alltoall,8,1048576,16\nb,alltoall,8,1048576,17\n")
    code, out, _ = call("all_to_all", "-t", NODE, "--measured", "both.csv", "--source", "b", "--json")
    assert json.loads(out)["lines"][0]["measured_us"] == pytest.approx(17)


LOG = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 67108864 step: 64(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid    268 on node-1 device  0 [0x1b] NVIDIA H100 80GB HBM3
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     5.10    0.00    0.00      0     5.11    0.00    0.00      0
     1048576        262144     float     sum      -1    26.00   40.33   70.58      0    25.00   41.94   73.40      0
node-1:268:301 [0] NCCL INFO Connected all rings
[1,0]<stdout>:    67108864      16777216     float     sum      -1    322.0  208.41  364.72      0    320.0  209.72  367.00    N/A
    67108864      16777216     float     sum      -1    330.0  203.36  355.88      0    328.0  204.60  358.05      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 217
"""


def test_what_nccl_tests_printed_beside_it(call, tmp_path):
    """Columns by their names, tags and other lines aside; of a size that comes twice the median; the summary by size."""
    (tmp_path / "run.log").write_text("".join(line for line in LOG.splitlines(True) if "Rank" not in line))
    code, out, _ = call("all_reduce", "-t", NODE, "--measured", "run.log")
    assert code == 0
    assert [line.split()[-2] for line in out.splitlines()[3:5]] == ["26.00", "326.00"]
    assert "over 2 sizes: " in out.splitlines()[-1]
    assert " % up to 1 MiB, " in out.splitlines()[-1]
    assert out.splitlines()[-1].endswith(" % from 64 MiB")
    _, out, _ = call("all_reduce", "-t", NODE, "--measured", "run.log", "--in-place", "--json")
    assert [row["measured_us"] for row in json.loads(out)["lines"]] == pytest.approx([25, 324])


def test_a_log_without_the_root_of_an_older_release(call, tmp_path):
    head = "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"
    (tmp_path / "old.log").write_text(head + "1048576 262144 float sum 26.5 39.6 69.2 5e-07 26.1 40.2 70.3 5e-07\n")
    _, out, _ = call("all_reduce", "-t", NODE, "--measured", "old.log", "--json")
    assert json.loads(out)["lines"][0]["measured_us"] == pytest.approx(26.5)


def test_without_nvls_rings_are_left(call):
    _, out, _ = call("all_reduce", "-b", "1G", "-e", "1G", "-t", NODE, "--no-nvls", "--why")
    assert "ring Simple" in out
    assert "nvls/Simple            nccl.nvls is false" in out


def test_an_algorithm_that_nccl_does_not_have(call):
    one = ["all_reduce", "-b", "1G", "-e", "1G", "-t", POD, "--gpus", "64", "--algo"]
    code, out, _ = call(*one, "halving_doubling", "--why")
    assert code == 0
    assert out.splitlines()[3].split()[2:4] == ["halving_doubling", "-"]
    assert "all_reduce of 1073741824 B: halving_doubling as named, in 12 rounds" in out
    assert out.splitlines()[-1].startswith("launch 8.4 us, hops ")
    outside = [
        json.loads(call(*one, name, *permit("halving_doubling"), "--json")[1])["lines"][0]["time_us"]
        for name in ("ring", "Ring", OUTSIDE)
    ]
    assert outside[0] == outside[1] != outside[2]
    assert f"{outside[2]:.2f}" in out


OUTSIDE = "clustersim.collectives.algorithms.halving_doubling:phases"


def permit(name):
    return "--plugins", f"clustersim.collectives.algorithms.{name}:phases"


NO_SIZE = "not a size of a collective; write bytes, 64K, 1M, 16G (powers of 2), 1GB (10^9) or 1GiB (2^30)"


@pytest.mark.parametrize(
    ("algo", "fault", "said"),
    [
        ("ring", "", "nvlink-up[0] decides: 100 % of its 370.8 GB/s while the bytes move; 127 more are as busy"),
        ("ring", "faults: [{link: 'nic[12]', rate: 100Gb/s}]", "nic-up[12] decides: 100 % of its 12.5 GB/s"),
        ("nvls_tree", "", "NCCL's own rate decides; nic-up[16] is the busiest link: 96 % of its 48 GB/s"),
    ],
)
def test_why_names_the_link_that_decides(call, tmp_path, algo, fault, said):
    (tmp_path / "slow.yaml").write_text(f"{Path(POD).read_text()}{fault}\n")
    one = ["-b", "1G", "-e", "1G", "-t", "slow.yaml", "-g", "64"]
    code, out, _ = call("all_reduce", *one, "--algo", algo, "--why")
    assert code == 0
    assert said in out.splitlines()[-1]


def test_why_names_an_oversubscribed_uplink(call):
    """Seven to one above the pods: the uplinks decide, and what one carries fills it."""
    cloud = str(ROOT / "topologies" / "oversubscribed_roce_1152.yaml")
    _, out, _ = call("all_reduce", "-b", "1G", "-e", "1G", "-t", cloud, "--why")
    name, _, rest = out.splitlines()[-1].partition("[")
    assert name in ("rack-up", "rack-down", "pod-up", "pod-down")
    assert "] decides: 100 % of its 50 GB/s while the bytes move" in rest
    _, out, _ = call("all_to_all", "-b", "1G", "-e", "1G", "-t", cloud, "--why")
    assert out.splitlines()[-1] == "its pairs have too many routes to name the busiest link"


REFUSED = {
    "all_to_all --algo rail_tree": "rail_tree cannot do all_to_all, only all_reduce; all_to_all is",
    "all_reduce --algo rail_ring --proto LL": (
        "--proto is for NCCL's algorithms, and rail_ring is not one of them; drop --proto"
    ),
    "all_reduce --algo no_such:thing": "--algo: 'no_such:thing' is not a built-in algorithm",
    "all_reduce -t POD --algo ROOM.nvls:phases --plugins ROOM.nvls:phases": (
        "cannot do all_reduce here: the switches between nodes do not add up; write fabric.reduction: sharp"
    ),
    "all_reduce --algo nvls_tree": "cannot do all_reduce with nvls_tree here (is for several nodes);",
    "all_reduce -g 9": "the cluster has 8 GPUs, not 9; use that many or fewer",
    "all_reduce -b 2G -e 1G": "the smallest size 2G is larger than the largest 1G; swap them",
    "all_reduce -b many": f"'many' is {NO_SIZE}",
    "all_reduce -f 1.01": "sizes are too many; use a larger --factor",
    "dispatch --imbalance 9": (
        "an imbalance of 9 is not possible over 8 GPUs; it is the rows of the busiest over the mean, from 1 (all equal) "
        "to 8 (one gets all)"
    ),
    "all_reduce --ranks 7-3": "GPUs 7-3 run backwards; write the smaller number first",
    "all_reduce --ranks 0-2000": "GPUs 0-2000 are out of range; the cluster has 8 GPUs, 0 to 7",
    "all_reduce --ranks 0-3,2": "--ranks 0-3,2 names GPU 2 twice; write each once",
    "all_reduce --ranks 0-3 -g 2": "--gpus and --ranks both name the GPUs",
    "all_reduce --measured short.csv": "short.csv has no columns size_bytes and time_us",
    "all_reduce --measured one.log": "one.log is a run of 1 GPUs, not of 8; name those with --gpus",
    "all_gather --measured one.log": "one.log is a run of all_reduce, not of all_gather; request",
    "all_reduce --measured cut.log": "cut.log:7: 6 columns under a head of 13; give the output as it",
    "all_reduce --measured void.log": "void.log has the head of nccl-tests' table and no row below it",
    "reduce --measured two.csv": "two.csv has no row for reduce on 8 GPUs",
    "all_reduce --measured two.csv": "two.csv has rows of 2 sources for all_reduce on 8 GPUs",
}


MEANT = "times and sizes must be finite and above 0"


@pytest.mark.parametrize(
    ("row", "message"),
    [(f"1024,{time}", f"m.csv:3: 1024 bytes in {time} us; {MEANT}") for time in ("0", "-5", "nan", "inf", "1e999")]
    + [(f"{size},9", f"m.csv:3: {size} bytes in 9 us; {MEANT}") for size in ("0", "-1024", "1" + 400 * "0")]
    + [("1.5,9", "m.csv:3: invalid literal for int() with base 10: '1.5'; size_bytes must be whole, time_us a number")],
)
def test_measurements_are_finite_and_above_0(call, tmp_path, row, message):
    (tmp_path / "m.csv").write_text(f"size_bytes,time_us\n8,16\n{row}\n")
    assert call("all_reduce", "-t", NODE, "--measured", "m.csv") == (2, "", f"clustersim: {message}\n")


@pytest.mark.parametrize("time", ["0.00", "-5", "nan", "inf"])
def test_times_of_a_log_are_finite_and_above_0(call, tmp_path, time):
    (tmp_path / "m.log").write_text(LOG[: LOG.index("           0 ")].replace("#  Rank", "#") + _row_of(time))
    message = f"clustersim: m.log:7: 1048576 bytes in {time} us; {MEANT}\n"
    assert call("all_reduce", "-t", NODE, "--measured", "m.log") == (2, "", message)


def _row_of(time: str) -> str:
    return f"1048576 262144 float sum -1 {time} 40.33 70.58 0 25.0 41.94 73.40 0\n"


def test_a_number_of_gpus_that_is_none(call, tmp_path):
    (tmp_path / "m.csv").write_text("gpus,size_bytes,time_us\n8,8,9\nmany,8,9\n")
    message = "clustersim: m.csv:3: 'many' is not a number of GPUs; gpus must be whole\n"
    assert call("all_reduce", "-t", NODE, "--measured", "m.csv") == (2, "", message)


@pytest.mark.parametrize("line", REFUSED)
def test_what_it_refuses(call, tmp_path, line):
    (tmp_path / "short.csv").write_text("size,time\n1,2\n")
    (tmp_path / "odd.csv").write_text("size_bytes,time_us\n1.5,soon\n")
    (tmp_path / "two.csv").write_text("source,op,gpus,size_bytes,time_us\na,all_reduce,8,8,9\nb,all_reduce,8,8,9\n")
    head, row = LOG[: LOG.index("           0 ")], "1048576 262144 float sum -1 26.0 40.33 70.58 0 25.0 41.94 73.40 0\n"
    (tmp_path / "one.log").write_text(LOG)
    (tmp_path / "cut.log").write_text(head + "1048576 262144 float sum -1 26.00\n")
    (tmp_path / "void.log").write_text(head)
    (tmp_path / "na.log").write_text(head + row.replace("26.0", "N/A"))
    arguments = line.replace("POD", POD).replace("ROOM", "clustersim.collectives.algorithms").split()
    code, out, err = call(*arguments, *(() if "-t" in arguments else ("-t", NODE)))
    assert (code, out) == (2, "")
    assert err.startswith("clustersim: ")
    assert REFUSED[line] in err
    assert len(err.splitlines()) == 1


def test_more_routes_than_can_be_loaded(call):
    """A sample of the pairs stands in for an even all-to-all under hashed routing, and for no other."""
    cloud = ["-b", "1G", "-e", "1G", "-t", str(ROOT / "topologies" / "oversubscribed_roce_1152.yaml")]
    code, out, _ = call("all_to_all", *cloud)
    assert code == 0
    assert len(out.splitlines()) == 4
    code, out, err = call("dispatch", *cloud, "--imbalance", "2")
    assert (code, out) == (2, "")
    assert "give the pairs of an all-to-all 84934656 different routes, more than" in err
    assert err.strip().endswith("at once; use smaller groups, or adaptive routing")
