"""`import clustersim as cs`: what it offers, how little it imports, and that it says what the command line says."""

import json
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import yaml

import clustersim as cs
from clustersim import plugins
from clustersim.cli.main import main
from clustersim.simulation import simulate

ROOT = Path(__file__).parents[2]
FAST = {"predictor": "roofline"}
KINDS = set(plugins.names("clustersim.topology"))
SMALL = {
    "name": "small",
    "model": {"layers": 4, "hidden": 1024, "heads": 8, "vocab": 1024},
    "training": {"global_batch": 8, "micro_batch": 1, "seq": 1024, "precision": "bf16"},
    "predictor": "roofline",
}
NODE = {"cluster": {"nodes": 1, "node": "hgx-h100"}}
SUPERPOD = {
    "switch_latency": "250ns",
    "rails": "optimized",
    "scalable_unit": 32,
    "link": {"rate": "400Gb/s", "cable": ["3m", "30m"]},
}


def test_a_plain_import_loads_nothing_heavy():
    code = "import sys, json, clustersim; print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "polars", "pydantic", "simpy", "yaml", "typer"} & set(json.loads(found))


def test_the_page_has_a_row_for_every_public_name():
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(set(cs.__all__) - KINDS)
    assert [name for name in cs.__all__ if not hasattr(cs, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = cs.simulat


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)}
    shown |= set(re.findall(r"\w+", " ".join(re.findall(r"members: \[(.*)\]", page))))
    assert sorted(set(cs.__all__) - KINDS - shown) == []


def test_names_paths_and_objects_give_what_the_pipeline_gives():
    plain = simulate("hgx_h100_8", "gpt3_xl", {"parallelism.tp": 2, **FAST}).summary
    results = [
        cs.simulate("hgx_h100_8", "gpt3_xl", tp=2, **FAST),
        cs.simulate(ROOT / "topologies/hgx_h100_8.yaml", cs.load_workload("gpt3_xl", **FAST), tp=2),
        cs.simulate(cs.load_cluster("hgx_h100_8"), cs.load_workload("gpt3_xl", tp=2, **FAST)),
        cs.simulate("hgx_h100_8", cs.load_workload("gpt3_xl", tp=4, **FAST), **{"parallelism.tp": 2}),
    ]
    assert [one.step_time for one in results] == [plain["step_time_s"]] * 4
    assert [one.memory for one in results] == [plain["memory"]["peak_bytes"]] * 4


def test_an_engine_plays_steps_and_points():
    found = {name: cs.simulate("hgx_h100_8", "gpt3_xl", pp=2, engine=name, **FAST) for name in ("simpy", "auto")}
    assert found["auto"].step_time == pytest.approx(found["simpy"].step_time, rel=1e-11)
    assert [one.summary["simulated"]["player"] for one in found.values()] == ["simpy", "loop"]
    rows = [cs.sweep("hgx_h100_8", "gpt3_xl", pp=[1, 2], engine=name, **FAST).rows for name in ("simpy", "auto")]
    assert [[row["player"] for row in some] for some in rows] == [["simpy"] * 2, ["loop"] * 2]
    for wrong in ("x", 3, ["auto"], None):
        with pytest.raises(cs.ClustersimError, match=r"^engine=.*: is none; write simpy, auto$"):
            cs.simulate("hgx_h100_8", "gpt3_xl", engine=wrong)
        with pytest.raises(cs.ClustersimError, match=r"^engine=.*: is none; write simpy, auto$"):
            cs.sweep("hgx_h100_8", "gpt3_xl", engine=wrong)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_names_nothing(name):
    with pytest.raises(
        cs.ClustersimError, match=f"^'{name}': names no workload; give a file, or one of `clustersim list"
    ):
        cs.simulate("hgx_h100_8", name)
    with pytest.raises(
        cs.ClustersimError, match=f"^'{name}': names no topology; give a file, or one of `clustersim list"
    ):
        cs.load_cluster(name)


def test_mappings_give_what_files_with_the_same_keys_give():
    node = yaml.safe_load((ROOT / "topologies/hgx_h100_8.yaml").read_text(encoding="utf-8"))
    job = yaml.safe_load((ROOT / "workloads/gpt3_xl.yaml").read_text(encoding="utf-8"))
    assert (
        cs.simulate(node, job, tp=2, **FAST).step_time == cs.simulate("hgx_h100_8", "gpt3_xl", tp=2, **FAST).step_time
    )
    numpys = {**SMALL, "model": {key: np.int64(value) for key, value in SMALL["model"].items()}}
    assert cs.load_workload(numpys, tp=np.int32(2)).spec == cs.load_workload(SMALL, tp=2).spec
    assert cs.load_cluster(NODE).name == "cluster"


def changed(*keys, to):
    """Return SMALL with the value at some keys, or what stands there, replaced."""
    first, *rest = keys
    return {**SMALL, first: {**SMALL[first], rest[0]: to} if rest else to}


DEEP = {}
DEEP["deeper"] = DEEP


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (changed("model", "layers", to=0), "workload['model']['layers']: model.layers: 0 must be at least 1"),
        (
            changed("model", "layers", to=10**5000),
            "workload['model']['layers']: not a finite number of at most 40 digits",
        ),
        (changed("model", "layres", to=4), "workload['model']['layres']: unknown key 'layres'; did you mean 'layers'?"),
        (
            changed("model", "num_layers", to=4),
            "workload['model']['num_layers']: model.layers is given twice under two",
        ),
        (changed("model", to={3: 1}), "workload['model']: the key 3 is not text"),
        (changed("model", to=[DEEP]), "levels; give fewer"),
        ({"cluster": {}}, "workload['cluster']: this is a topology, not a workload"),
        (7, "workload: 7 is none; give a file, a shipped name, a mapping, or what cs.load_workload returns"),
    ],
)
def test_an_error_in_a_mapping_names_its_keys(workload, message):
    with pytest.raises(cs.ClustersimError) as caught:
        cs.simulate(NODE, workload)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_cluster_is_built_once_and_a_changed_one_again(tmp_path):
    path = tmp_path / "one.yaml"
    text = "cluster: {nodes: 2, node: hgx-h100}\nfabric: {kind: switch}\n"
    path.write_text(text)
    asked = {"parallelism.tp": 1, "parallelism.pp": 1}
    first, again = (cs.simulate(path, SMALL, **asked, global_batch=16).found for _ in range(2))
    assert again.topology is first.topology
    assert again.summary == first.summary
    other = cs.simulate(path, SMALL, **asked, global_batch=16, nodes=1).found
    assert other.topology.nodes == 1
    path.write_text(text.replace("{kind: switch}", "{kind: switch, link: {rate: 10Gb/s}}"))
    slow = cs.simulate(path, SMALL, **asked, global_batch=16).found
    assert slow.summary["step_time_s"] > 1.1 * first.summary["step_time_s"]


def test_a_datasheet_that_a_cluster_names_is_read_each_time(tmp_path):
    sheet = (ROOT / "clustersim/hardware/gpus/h100-sxm.yaml").read_text()
    own = tmp_path / "own.yaml"
    cluster = {"cluster": {"nodes": 1, "node": {"extends": "hgx-h100", "gpus": {"model": str(own), "count": 8}}}}
    memory = re.search(r"(?m)^memory: *(.*)$", sheet).group(1)
    found = []
    for size in (memory, "40GiB"):
        own.write_text(sheet.replace(memory, size, 1).replace("name: h100-sxm", "name: own"))
        found.append(cs.simulate(cluster, SMALL).found.topology.gpu.memory)
    assert found[1] == 40 * 2**30 != found[0]


def test_an_error_in_a_keyword_names_it():
    with pytest.raises(cs.ClustersimError, match=r"^workload \(keyword tp\): parallelism\.tp: 3 does not divide"):
        cs.load_workload(SMALL, tp=3)
    with pytest.raises(cs.ClustersimError, match=r"^workload \(keyword tpp\): unknown key 'tpp'"):
        cs.load_workload(SMALL, tpp=3)
    with pytest.raises(cs.ClustersimError, match=r"^tp=: \{1\} is nothing"):
        cs.load_workload(SMALL, tp={1})
    with pytest.raises(cs.ClustersimError, match=r"^cluster: 3 is none"):
        cs.load_cluster(3)


def test_every_kind_of_fabric_is_a_function_and_none_hides_a_room():
    assert set(cs.__all__) >= KINDS
    assert set(dir(cs)) >= KINDS
    rooms = {path.stem for path in (ROOT / "clustersim").iterdir()}
    assert not set(cs.__all__) & rooms  # an imported room takes the place of a function of its name
    for kind in KINDS:
        function = getattr(cs, kind)
        assert function.__name__ == kind
        assert kind in function.__doc__


def test_fabrics_are_built_with_whole_numbers():
    built, shipped = (
        cs.fat_tree(nodes=128, node="hgx-h100", radix=64, tiers=2, **SUPERPOD),
        cs.load_cluster("superpod_h100_128"),
    )
    assert (built.name, built.gpus, built.counts, built.tiers) == ("fat_tree", 1024, shipped.counts, shipped.tiers)
    assert (built.latency == shipped.latency).all()
    link = {"rate": "400Gb/s"}
    assert cs.torus(nodes=8, node="hgx-h100", dims=(2, 4), link=link, name="t").name == "t"
    assert cs.dragonfly(nodes=3, node="hgx-h100", a=2, p=4, h=1, link=link).nodes == 3
    assert cs.switch(nodes=2, node={"extends": "hgx-h100", "nics": {"count": 4}}).counts["cables"] == 8
    assert cs.single_node(nodes=1, node="hgx-h100", faults=[{"gpu": 0, "slowdown": 2.0}]).slowdown[0] == 2
    wires = [{"a": "s", "b": f"node[{i}]", "rate": "400Gb/s"} for i in range(2)]
    assert cs.explicit(nodes=2, node="hgx-h100", links=wires, fabric={"nodes": ["s"]}).kind == "explicit"
    assert cs.switch(nodes=2, node="hgx-h100", nccl={"launch": "1us"}).launch == 1e-6


def test_what_is_wrong_with_a_fabric_names_its_keys():
    wrong = "^cluster\\['fabric'\\]"
    with pytest.raises(cs.ClustersimError, match=wrong + r"\['link'\]\['rate'\]: .*400 has no unit"):
        cs.fat_tree(nodes=128, node="hgx-h100", radix=64, tiers=2, link={"rate": 400})
    with pytest.raises(cs.ClustersimError, match=wrong + r"\['tirs'\]: unknown key 'tirs'; did you mean 'tiers'"):
        cs.fat_tree(nodes=128, node="hgx-h100", radix=64, tirs=2, link={"rate": 400})
    with pytest.raises(cs.ClustersimError, match=r"kind is given twice or is the function's name"):
        cs.torus(nodes=1, node="hgx-h100", fabric={"kind": "grid"})


def test_tiers_by_number_are_those_with_nothing_written():
    with pytest.raises(cs.ClustersimError, match=r"fabric\.tiers: 7 is not known; write a list of tiers, or how many"):
        cs.fat_tree(nodes=128, node="hgx-h100", radix=64, tiers=7, link={"rate": "400Gb/s"})
    with pytest.raises(cs.ClustersimError, match=r"leaf needs its number of ports; add radix"):
        cs.fat_tree(nodes=128, node="hgx-h100", tiers=2, link={"rate": "400Gb/s"})
    mixed = [{"radix": 32}, {}]
    with pytest.raises(cs.ClustersimError, match="64 groups of leaf switches need"):
        cs.fat_tree(nodes=128, node="hgx-h100", radix=2, tiers=mixed, link={"rate": "400Gb/s"})


def test_a_sweep_has_the_points_of_its_axes():
    found = cs.sweep("hgx_h100_8", "gpt3_xl", tp=[1, 2, 16], micro_batch=(1, 2), **FAST)
    assert found.points.height == 6
    assert found.points["status"].to_list() == ["ok"] * 4 + ["illegal"] * 2
    assert found.points["reason"][5].startswith(str(ROOT / "workloads/gpt3_xl.yaml") + " (keyword tp): ")
    best = cs.simulate("hgx_h100_8", "gpt3_xl", **found.best)
    assert best.tokens_per_s == pytest.approx(found.points["tokens_per_s"][0], rel=1e-12)
    assert "<table" in found._repr_html_()
    assert repr(found).startswith("SweepResult(")
    assert len(repr(found)) < 200


def test_a_sweep_of_mappings_runs_on_processes():
    alone, spread = (cs.sweep(NODE, SMALL, workers=workers, tp=range(1, 3)) for workers in (1, 2))
    assert alone.rows == spread.rows
    assert alone.best == {"tp": 1}


def test_a_sweep_without_a_point_says_why():
    with pytest.raises(cs.ClustersimError, match="tp=: no value; give at least one"):
        cs.sweep(NODE, SMALL, tp=[])
    with pytest.raises(cs.ClustersimError, match="workers=0: write a whole number of 1 or more"):
        cs.sweep(NODE, SMALL, workers=0)
    with pytest.raises(cs.ClustersimError, match=r"keyword tp.*3 does not divide"):
        cs.sweep(NODE, SMALL, tp=[3])
    with pytest.raises(cs.ClustersimError, match="no point of the sweep has a result; the first one: workload"):
        _ = cs.sweep(NODE, SMALL, pp=[4], tp=4).best


def test_a_result_is_frozen_and_has_frames_and_a_table():
    result = cs.simulate("hgx_h100_8", "gpt3_xl", tp=2, **FAST)
    with pytest.raises(FrozenInstanceError):
        result.found = None
    assert result.spans["end_s"].max() == pytest.approx(result.step_time)
    assert sum(result.critical_path.values()) == pytest.approx(result.step_time)
    assert sum(result.breakdown.values()) == pytest.approx(result.step_time)
    assert result.interval is None  # of roofline's forecasts nothing is known
    low, high = cs.simulate("hgx_h100_8", "gpt3_xl", tp=2).interval
    assert low < high
    assert result.links.columns == ["tier", "index", "capacity_bytes_per_s", "bytes", "utilization"]
    assert "<th>step time</th>" in result._repr_html_()
    assert repr(result).startswith("Result(")
    assert "step time" in repr(result)
    assert len(repr(result)) < 200


def test_a_remedy_is_an_option_of_whoever_asks(capsys, monkeypatch):
    """A script is told its keyword, a command its flag; a sweep, which must not go on, neither."""
    large = {"tp": 1, "micro_batch": 64, "seq": 2048}
    with pytest.raises(cs.ClustersimError, match=r"recompute activations, or pass ignore_memory=True$"):
        cs.simulate("hgx_h100_8", "gpt3_xl", **large)
    options = [text for key, value in large.items() for text in (f"--{key.replace('_', '-')}", str(value))]
    monkeypatch.setattr(sys, "argv", ["clustersim", "run", "hgx_h100_8", "gpt3_xl", "--no-save", *options])
    with pytest.raises(SystemExit):
        main()
    assert "recompute activations, or pass --ignore-memory" in " ".join(capsys.readouterr().err.split())
    [row] = cs.sweep("hgx_h100_8", "gpt3_xl", **large).rows
    assert row["reason"].endswith("lower micro_batch, or recompute activations")
    with pytest.raises(cs.ClustersimError, match=r"call within plugins.permitted\('mine:load'\) if you trust it"):
        cs.simulate("hgx_h100_8", "gpt3_xl", predictor="mine:load")


def test_a_result_explains_and_compares_itself_as_the_commands_do(call):
    first = cs.simulate("hgx_h100_8", "gpt3_xl", tp=2, predictor="roofline")
    words = ["hgx_h100_8", "gpt3_xl", "--tp", "2", "--predictor", "roofline"]
    assert call("run", *words, "--out", "first", "--quiet")[0] == 0
    explained = json.loads(call("explain", "first", "--json")[1])["what_ifs"]
    found = first.explain()
    assert found.what_ifs.rows() == [
        tuple(row[key] for key in ("name", "step_time_s", "gain_s", "flags", "note")) for row in explained
    ]
    assert str(found).splitlines() == call("explain", "first")[1].splitlines()
    second = cs.simulate("hgx_h100_8", "gpt3_xl", tp=4, predictor="roofline")
    assert first.compare(second).differences == {"parallelism.tp": (2, 4)}


def test_what_was_built_before_has_no_what_ifs():
    with pytest.raises(cs.ClustersimError, match=r"give cs.simulate a file, a shipped name or a mapping"):
        cs.simulate(cs.load_cluster("hgx_h100_8"), "gpt3_xl", predictor="roofline").explain()


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cs.__version__ == project["version"]


def test_optimize_finds_what_a_sweep_of_all_finds():
    axes = {"tp": [1, 2, 4, 8], "recompute": ["none", "full"], "micro_batch": [1, 2]}
    fixed = {"predictor": "roofline", "global_batch": 64, "pp": 1, "schedule": "1f1b", "vpp": 1, "zero": 0, "ep": 1}
    fixed |= {"parallelism.overlap.tp": "none", "parallelism.overlap.grad_reduce": False}
    found = cs.optimize("hgx_h100_8", "gpt3_xl", top=3, **axes, **fixed)
    every = cs.sweep("hgx_h100_8", "gpt3_xl", **axes, **fixed).points
    assert [row["step_time_s"] for row in found.rows] == every["step_time_s"].to_list()[:3]
    assert found.best["tp"] == every["tp"][0]
    assert found.rows[0]["why"] == ""
    assert "more" in found.rows[1]["why"]


def test_a_plan_from_python_is_that_of_the_command():
    found = cs.plan("gpt3_xl", tokens=100e9, days=5, gpu=["h100", "b200"], global_batch=512, predictor="roofline")
    assert found.days <= 5
    assert found.usd == min(found.points["usd"])
    step = cs.simulate("rail_optimized", "gpt3_xl", **found.best)
    assert step.step_time == pytest.approx(found.found.plans[0][1].row["step_time_s"], rel=1e-12)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: cs.plan("gpt3_xl", tokens=1e12), "nothing bounds the plan; give days=, budget=, nodes=, or several"),
        (lambda: cs.plan("gpt3_xl", tokens=-1, days=3), "tokens=-1: write a number above 0"),
        (lambda: cs.plan("gpt3_xl", tokens=1e12, days="soon"), "days='soon': write a number above 0"),
        (lambda: cs.optimize("hgx_h100_8", "gpt3_xl", goal="gpus"), "goal='gpus': needs a speed to reach; add target="),
    ],
)
def test_questions_that_cannot_be_are_one_sentence(ask, sentence):
    with pytest.raises(cs.ClustersimError, match=re.escape(sentence)):
        ask()


def test_threads_may_ask_about_one_cluster():
    cluster, before = cs.load_cluster("hgx_h100_8"), sys.getswitchinterval()
    points = [{"tp": tp, "seq": 256 * length, "global_batch": 64} for tp in (1, 2, 4) for length in range(1, 5)]

    def steps(first):
        every = points[first:] + points[:first]
        found = [cs.simulate(cluster, "gpt3_xl", engine="auto", **point).step_time for point in every]
        return found[-first:] + found[:-first] if first else found

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(steps, range(6)))
    finally:
        sys.setswitchinterval(before)
    assert all(each == pytest.approx(found[0], rel=1e-12) for each in found)
