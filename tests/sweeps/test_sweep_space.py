"""The space of a sweep: any key is an axis, `auto` is all that is legal and nothing else, what is on the front is not beaten."""

from __future__ import annotations

import json
import re
import shlex
from itertools import product
from pathlib import Path

import polars as pl
import pytest
from sweep_cases import loaded, texts

from clustersim import plugins
from clustersim.convert.override import nodes_by_gpu
from clustersim.errors import InputError
from clustersim.hardware import gpus
from clustersim.parallel.job import divisors
from clustersim.parallel.options import KEYS
from clustersim.sweeps import evaluate, run
from clustersim.sweeps.axes import space
from clustersim.sweeps.legal import legal
from clustersim.sweeps.space import SweepSpace, numbers
from clustersim.sweeps.table import FRONT, front, ranked

AUTO = ("tp", "pp", "vpp", "schedule", "zero", "micro_batch")


def asked(options: dict[str, str], settings: dict[str, str] | None = None, file: Path | None = None) -> SweepSpace:
    return space({KEYS.get(name, name): value for name, value in options.items()}, settings or {}, file)


def legal_one(inputs: evaluate.SweepInputs, point: dict[str, object]) -> bool:
    try:
        simulator = inputs.cluster(point).simulator
        job = simulator.placed(inputs.job(point))
        simulator.preparation.schedule(job, job.microbatches)
    except InputError:
        return False
    return job.mesh.size == simulator.cluster.gpus


@pytest.mark.parametrize(
    ("workload", "chunks", "ep"), [("gpt3_xl", [1, 2, 3, 6, 12], [1]), ("mixtral_8x7b", [1, 2, 16], [1, 2, 4, 8])]
)
def test_auto_is_all_that_is_legal_and_uses_all_gpus(workload, chunks, ep):
    """Against every combination of a grid, each tried by the checks of a run; chunks of a rank have equally many layers."""
    inputs = loaded("nvlink_h100_4", workload)
    names = [*AUTO, "ep"]
    keys = [*(KEYS[name] for name in names), "parallelism.sequence_parallel"]
    settings = {"training.global_batch": "16", "parallelism.sequence_parallel": "auto"}
    found = legal(inputs, asked({**dict.fromkeys(names, "auto")}, settings))
    values = {"tp": [1, 2, 4], "pp": [1, 2, 4], "vpp": chunks, "zero": [0, 1, 2], "micro_batch": divisors(16), "ep": ep}
    values["schedule"] = sorted(plugins.names("clustersim.schedules"))
    mine = [tuple(point[key] for key in keys) for point in found]
    assert len(set(mine)) == len(mine) > 100
    expected = set()
    for one in product(*(values[name] for name in names), [False, True]):
        point = dict(zip(keys, one, strict=True))
        pp, vpp = point["parallelism.pp"], point["parallelism.vpp"]
        even = vpp == 1 or inputs.base.model.layers % (pp * vpp) == 0
        plain = pp > 1 or point["parallelism.schedule"] == "1f1b"
        if even and plain and legal_one(inputs, {**point, "training.global_batch": 16}):
            expected.add(one)
    assert {one for one in mine if one[names.index("vpp")] in chunks} == expected


def test_auto_of_tp_tries_one_without_the_sequence_parallelism_of_the_file():
    inputs = loaded("rail_optimized", "llama3_8b")
    assert inputs.base.parallelism.sequence_parallel
    points = legal(inputs, asked({"tp": "auto"}))
    jobs = [inputs.job(point) for point in points]
    assert [(job.parallelism.tp, job.parallelism.sequence_parallel) for job in jobs] == [
        (tp, tp > 1) for tp in (1, 2, 4, 8)
    ]
    written = legal(inputs, asked({"tp": "auto"}, {"parallelism.sequence_parallel": "true"}))
    # as Megatron-LM, which turns it off with one rank
    assert [point["parallelism.tp"] for point in written] == [1, 2, 4, 8]


@pytest.mark.parametrize("written", ["true", "True"])
def test_words_of_yaml_are_values_beside_auto(written):
    gathers = {"parallelism.overlap.param_gather": written, "parallelism.overlap.grad_reduce": written}
    points = legal(loaded("nvlink_h100_4", "gpt3_xl"), asked({"zero": "auto"}, gathers))
    assert {point["parallelism.zero"] for point in points} == {1, 2}


def test_auto_of_nodes_is_the_parts_of_the_cluster_that_replicas_fill():
    inputs = loaded("rail_optimized", "gpt3_xl")  # 32 nodes of 8 GPUs
    whole = legal(inputs, asked({"cluster.nodes": "auto", "tp": "8"}))
    assert [point["cluster.nodes"] for point in whole] == [1, 2, 4, 8, 16, 32]
    large = legal(inputs, asked({"cluster.nodes": "auto", "tp": "8", "pp": "4"}))
    assert [point["cluster.nodes"] for point in large] == [4, 8, 16, 32]
    split = legal(inputs, asked({"cluster.nodes": "auto", "tp": "8", "pp": "auto"}))
    assert {(p["cluster.nodes"], p["parallelism.pp"]) for p in split} == {
        (nodes, pp) for nodes in (1, 2, 4, 8, 16, 32) for pp in divisors(nodes) if pp <= 24
    }


def test_auto_of_cp_cuts_the_sequence_evenly_and_uses_all_gpus():
    inputs = loaded("rail_optimized", "gpt3_xl")
    points = legal(
        inputs, asked({"cluster.nodes": "3", "tp": "auto", "training.seq": "2048", "parallelism.cp": "auto"})
    )
    mine = {(p["parallelism.tp"], p["parallelism.cp"]) for p in points}
    assert mine == {(tp, cp) for tp in (1, 2, 4, 8) for cp in divisors(24 // tp) if cp == 1 or 2048 % (2 * cp) == 0}
    for point in points:
        inputs.job({**point, "training.global_batch": 24})


def test_auto_of_a_batch_is_the_nearest_that_uses_all_gpus():
    inputs = loaded("rail_optimized", "gpt3_xl")  # whose batch is 512
    options = {"cluster.nodes": "3,4", "tp": "1,8", "global_batch": "auto", "micro_batch": "2"}
    points = legal(inputs, asked(options | {"training.global_batch": options.pop("global_batch")}))
    found: dict[tuple[object, object], list[object]] = {}
    for point in points:
        found.setdefault((point["cluster.nodes"], point["parallelism.tp"]), []).append(point["training.global_batch"])
    assert found == {(3, 1): [480, 528], (3, 8): [510, 516], (4, 1): [512], (4, 8): [512]}
    for point in points:
        job = inputs.cluster(point).simulator.placed(inputs.job(point))
        assert job.mesh.size == inputs.cluster(point).simulator.cluster.gpus


def test_auto_of_gpus_and_nodes_are_those_shipped_that_the_cluster_can_have(tmp_path):
    inputs = loaded("rail_optimized", "gpt3_xl")
    by_gpu = legal(inputs, asked({"cluster.gpu": "auto", "cluster.nodes": "2"}))
    gpus = [inputs.cluster(point).simulator.cluster.gpu.name for point in by_gpu]
    assert gpus == [point["cluster.gpu"] for point in by_gpu] == sorted({*gpus})
    assert {"a100-sxm-80gb", "b200-sxm", "gb200", "h100-sxm", "mi300x"} <= {*gpus}
    by_node = legal(inputs, asked({"cluster.nodes": "2"}, {"cluster.node": "auto"}))
    assert {inputs.cluster(point).simulator.cluster.gpu.name for point in by_node} == {*gpus}
    assert len(by_node) > len(gpus)  # two have an H100


def test_a_written_value_with_which_nothing_is_legal_says_why(tmp_path):
    options = {"training.seq": "1024,1001", "tp": "2", "cp": "auto", "cluster.nodes": "1", "predictor": "roofline"}
    two = asked(options, {"parallelism.sequence_parallel": "true"})
    rows = run.run("rail_optimized", "llama3_8b", two, 1, tmp_path).rows
    assert {row["status"] for row in rows[:-1]} == {"ok"}
    assert (rows[-1]["seq"], rows[-1]["status"]) == (1001, "illegal")
    assert "1001 is not a multiple of tp 2, as sequence parallelism needs" in rows[-1]["reason"]


def test_a_file_of_axes_says_what_options_say(tmp_path):
    file = tmp_path / "axes.yaml"
    file.write_text(
        "tp: [1, 2]\nnodes: 2..8x2\ngpu: [h100, b200]\nparallelism: {pp: auto}\ntraining.recompute: auto\nseq: 2048\n"
    )
    mine = asked({}, {}, file)
    theirs = asked(texts("tp=1,2 cluster.nodes=2,4,8 cluster.gpu=h100,b200 pp=auto recompute=auto seq=2048"))
    assert (dict(mine.axes), set(mine.auto)) == (dict(theirs.axes), set(theirs.auto))
    with pytest.raises(InputError, match="tp is on the command line too; give one of the two"):
        asked({"tp": "4"}, {}, file)


SEVERAL = {"clocks": ["sustained", "0.7"], "predictor": ["roofline", "neusight"]}


@pytest.mark.parametrize("by", ["option", "set", "file"])
@pytest.mark.parametrize("key", SEVERAL)
def test_several_predictors_and_clocks_are_an_axis_however_they_are_given(tmp_path, by, key):
    """One value alone is the same at every point, and nothing to sweep by itself."""

    def given(values: list[str], **axes: str) -> SweepSpace:
        text = ",".join(values)
        (file := tmp_path / "axes.yaml").write_text(f"{key}: [{text}]\n")
        own = {key: text}
        return asked(axes | (own if by == "option" else {}), own if by == "set" else {}, file if by == "file" else None)

    assert [str(point[key]) for point in given(SEVERAL[key]).space()] == SEVERAL[key]
    assert {str(point[key]) for point in given(SEVERAL[key], tp="1,2").space()} == {*SEVERAL[key]}
    assert {key: str(value) for key, value in given(SEVERAL[key][:1], tp="1,2").fixed.items()} == {key: SEVERAL[key][0]}
    with pytest.raises(InputError, match="nothing to sweep"):
        given(SEVERAL[key][:1])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tp: {a: 1}\n", "axes.yaml:1:5: tp must be a value or a list of values, such as [1, 2]"),
        ("seq: 1024\ntq: [1, 2]\n", "axes.yaml:2:1: unknown key 'tq'; "),
        ("pp: 2\ntp: '1,x'\n", "axes.yaml:2:5: tp: 'x' is not a whole number of 1 or more; write a list like"),
        ("tp: [1, 2]\nparallelism: {tp: 4}\n", "axes.yaml:2:15: parallelism.tp is given twice, under two names; keep"),
        ("tp: []\n", "parallelism.tp: no value; write a list of at least one"),
        ("tp: [auto, 2]\n", "parallelism.tp: auto is all legal values already; give it alone"),
    ],
)
def test_a_file_of_axes_that_cannot_be_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "axes.yaml").write_text(text)
    with pytest.raises(InputError, match=re.escape(sentence)):
        asked({}, {}, tmp_path / "axes.yaml")


def test_a_file_of_axes_takes_the_names_of_options_and_of_megatron(tmp_path):
    (tmp_path / "axes.yaml").write_text("global-batch: [8, 16]\nseq_length: [128, 256]\n")
    assert dict(asked({}, {}, tmp_path / "axes.yaml").axes) == {
        "training.global_batch": [8, 16],
        "seq_length": [128, 256],
    }


def test_points_that_are_not_counted_to_their_end_are_more_than_the_most(monkeypatch):
    """Legal values are filled in until they are too many: how many there are in all is not known."""
    monkeypatch.setattr("clustersim.sweeps.space.MOST", 20)
    with pytest.raises(InputError, match=r"^more than 20 points are too many; give shorter lists, at most 20 comb"):
        legal(loaded("nvlink_h100_4", "gpt3_xl"), asked({"tp": "auto", "pp": "auto", "micro_batch": "auto"}, {}))


def test_ranges_multiply():
    assert numbers("nodes", "64..4096x2") == [64, 128, 256, 512, 1024, 2048, 4096]
    assert numbers("nodes", "3..30x3,5") == [3, 9, 27, 5]
    assert numbers("nodes", "4..6") == [4, 5, 6]
    for wrong, sentence in (
        ("64..16x2", "'64..16x2' begins above its end; write the smaller number first"),
        ("4-1", "'4-1' begins above its end; write the smaller number first"),
        ("64..4096x1", "'64..4096x1' never grows; multiply by 2 or more, such as 64..4096x2"),
    ):
        with pytest.raises(InputError, match=f"^--nodes: {sentence}$"):
            numbers("nodes", wrong)
    for wrong in ("0..4x2", "x2", "4..", "1-4x"):
        with pytest.raises(InputError, match="is not a whole number of 1 or more; write a list like 1,2,4, 1-4 or 64"):
            numbers("nodes", wrong)


@pytest.mark.parametrize(
    ("options", "settings", "sentence"),
    [
        ({"tp": "1,auto"}, {}, "--tp: auto is all legal values already; give it alone"),
        (
            {"training.seq": "auto"},
            {},
            "training.seq=auto: nothing says which values are legal; write a list with commas between",
        ),
        ({"cluster.nodes": "auto"}, {"parallelism.tp": "3"}, "cluster.nodes=auto: no value is legal with the others"),
        ({}, {}, "nothing to sweep"),
        (
            {"tp": "1-1000", "pp": "1-1000", "micro_batch": "1-1000", "vpp": "1-1000"},
            {},
            "1,000,000,000,000 points are too many; give shorter lists, at most 100,000 combinations, or",
        ),
    ],
)
def test_a_space_that_cannot_be_is_one_sentence(options, settings, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        legal(loaded("nvlink_h100_4", "gpt3_xl"), asked(options, settings))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tp: [1, 2]\nnodes: [1, -1]\n", "axes.yaml:2:8: cluster.nodes: -1 must be at least 1"),
        ("tp: [1, 2]\nprecision: [bf16, fp9]\n", "axes.yaml:2:12: training.precision: fp9 is not known"),
        ("tp: [1, 2]\nparallelism:\n  schedule: [1f1b, 2f2b]\n", "axes.yaml:3:13: parallelism.schedule: "),
    ],
)
def test_a_value_of_a_file_of_axes_that_is_wrong_is_placed_there(tmp_path, monkeypatch, text, place):
    monkeypatch.chdir(tmp_path)
    Path("axes.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        run.run("rail_optimized", "gpt3_xl", asked({}, {}, Path("axes.yaml")), 1, Path("x"))
    assert str(error.value).startswith(place)


def test_a_point_says_where_its_value_stands_in_a_file_of_axes(tmp_path, monkeypatch):
    """In worker processes too, which load the inputs for themselves."""
    monkeypatch.chdir(tmp_path)
    Path("axes.yaml").write_text("tp: [1, 2]\npredictor: roofline\nnodes: 2\nnic: [400Gb/s, 800Gb/s]\n")
    for workers in (1, 2):
        rows = run.run("rail_optimized", "gpt3_xl", asked({}, {}, Path("axes.yaml")), workers, Path(f"x{workers}")).rows
        wrong = [row["reason"] for row in rows if row["status"] == "illegal"]
        assert [reason[:20] for reason in wrong] == ["axes.yaml:4:6: nics."] * 2


def test_products_in_a_type_that_a_gpu_lacks_are_refused():
    """NVIDIA's A100 datasheet has no fp8; Transformer Engine refuses it below compute capability 8.9."""
    fixed = {"predictor": "roofline", "cluster.nodes": 1}
    fixed_text = {key: str(value) for key, value in fixed.items()}
    inputs = loaded("rail_optimized", "gpt3_xl")
    for gpu in nodes_by_gpu():
        row = evaluate.evaluate(inputs, {**fixed, "cluster.gpu": gpu, "training.precision": "fp8"})
        lacks = gpus.load(gpu).architecture in ("volta", "turing", "ampere", "cdna2")
        assert (row["status"] == "illegal") == lacks
        legal_ = legal(inputs, asked({"precision": "auto"}, {**fixed_text, "cluster.gpu": gpu}))
        assert ("fp8" in {point["training.precision"] for point in legal_}) != lacks
        assert not lacks or f"training.precision: {gpu} multiplies no fp8, its datasheet has " in row["reason"]


def test_a_value_that_does_not_go_with_others_makes_points_that_say_so(tmp_path):
    """As many of them as there are, before the first that is legal too; a cluster that cannot be leaves the others alone."""
    files = "rail_optimized", "gpt3_xl"
    one = {"parallelism.tp": "3,8", "training.micro_batch": "1-256", "cluster.nodes": "1", "predictor": "roofline"}
    found = run.run(*files, asked(one).space()[:300], 1, tmp_path / "x")
    assert {row["status"] for row in found.rows[:256]} == {"illegal"}
    assert "ok" in {row["status"] for row in found.rows[256:]}
    two = asked({"cluster.nic": "400Gb/s,2000Gb/s", "tp": "auto", "cluster.nodes": "1", "predictor": "roofline"})
    rows = run.run(*files, two, 1, tmp_path / "y").rows
    assert [row["status"] for row in rows] == ["ok"] * 4 + ["illegal"]
    assert "250 GB/s is more than the 63.01 GB/s of host.pcie gen5x16; use a slower NIC" in rows[-1]["reason"]


def test_a_sweep_over_clusters_has_the_numbers_of_their_runs(call):
    axes = (
        "--nodes 1,2 --gpu h100,b200 --oversubscription 1,2 --tp auto --predictor roofline --workers 1 --json --out x"
    )
    found = json.loads(call("sweep", "rail_optimized", "gpt3_xl", *axes.split())[1])
    assert found["points"] == 2 * 2 * 2 * 4 == found["points_simulated"]
    table = pl.read_parquet("x/points.parquet").to_dicts()
    built = {(1, "1"), (2, "1"), (2, "2")}  # a node alone has one NIC on each leaf, and no fewer uplinks
    assert {(row["nodes"], row["gpu"], row["oversubscription"]) for row in table} == {
        (nodes, gpu, ratio) for (nodes, ratio), gpu in product(built, ("h100", "b200"))
    }
    for row in table[::7]:
        alone = evaluate.flat(json.loads(call(*shlex.split(row["run"])[1:], "--json", "--no-save")[1]))
        same = {key: value for key, value in alone.items() if isinstance(value, float)}
        assert {key: row[key] for key in same} == pytest.approx(same, rel=1e-12, abs=0)
        assert row["step_time_s"] == alone["step_time_s"]


def test_points_that_do_not_fit_have_a_command_and_illegal_ones_a_reason(call):
    words = "--tp 1,2,3 --predictor roofline --workers 1 --out x --csv x.csv --quiet"
    call("sweep", "hgx_h100_8", "llama3_8b", *words.split())
    for table in (pl.read_parquet("x/points.parquet"), pl.read_csv("x.csv")):
        assert {row["tp"]: (row["status"], row["run"] is None) for row in table.to_dicts()} == {
            1: ("does not fit", False),
            2: ("ok", False),
            3: ("illegal", True),
        }
    unfit = next(row for row in pl.read_parquet("x/points.parquet").to_dicts() if row["tp"] == 1)
    code, _, err = call(*shlex.split(unfit["run"])[1:], "--no-save")
    assert code == 2
    assert "what fits by one change, each simulated" in err


def test_the_front_is_what_nothing_beats():
    rows = [
        {"status": "ok", "step_time_s": step, "peak_memory_bytes": memory, "ranks": 8, "usd_per_1t_tokens": None}
        for step, memory in ((1, 9), (2, 5), (2, 6), (3, 5), (4, 1), (1, 9))
    ]
    kept = front([*rows, {"status": "illegal"}], ["step", "memory", "rent"])
    assert [(row["step_time_s"], row["peak_memory_bytes"]) for row in kept] == [(1, 9), (2, 5), (4, 1), (1, 9)]
    assert set(FRONT) == {"step", "memory", "gpus", "rent", "owned", "energy"}
    priced = {"status": "ok", "step_time_s": 2, "usd_per_1t_tokens": 7}
    assert front([priced, {**priced, "step_time_s": 1, "usd_per_1t_tokens": None}], ["step", "rent"])[0] is priced


def test_rows_are_ranked_by_any_column():
    rows = [
        {"status": "ok", "tokens_per_s": t, "step_time_s": s, "what": w}
        for t, s, w in ((1, 5, "b"), (3, 5, "a"), (2, 4, "c"))
    ]
    assert [row["tokens_per_s"] for row in ranked(rows)] == [3, 2, 1]
    assert [row["tokens_per_s"] for row in ranked(rows, ["step_time_s", "tokens_per_s"])] == [2, 3, 1]
    assert [row["tokens_per_s"] for row in ranked(rows, ["-step_time_s", "what"])] == [3, 1, 2]
    priced = [{**row, "usd_owned_per_1t_tokens": row["step_time_s"]} for row in rows]
    for name, column in (("step", "step_time_s"), ("owned", "usd_owned_per_1t_tokens"), ("-owned", "-step_time_s")):
        assert ranked(priced, [name]) == ranked(priced, [column])
    with pytest.raises(InputError, match="--sort speed: no column has that name; "):
        ranked(rows, ["speed"])
    with pytest.raises(InputError, match=r"^--sort owned: no column has that name; (?!.*\bowned)"):
        ranked(rows, ["owned"])
