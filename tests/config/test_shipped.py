"""Shipped topologies and workloads: bare names, old names, and what their numbers count."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clustersim.config import shipped
from clustersim.config.yaml import read
from clustersim.errors import InputError
from clustersim.simulation import simulate
from clustersim.topology.build import document_of, load

ROOT = Path(__file__).parents[2]
SERVERS = {"dgx_a100_8", "hgx_h100_8", "mi300x_8", "nvlink_a100_40gb_4", "nvlink_h100_4"}


ANY_SIZE = {"rail_optimized"}
"""Topologies without a number in their name: --nodes says how many."""


@pytest.mark.parametrize("name", sorted(shipped.files("topologies").keys() - ANY_SIZE))
def test_the_number_in_a_name_counts_nodes_or_the_gpus_of_a_single_server(name):
    [number] = re.findall(r"_(\d+)(?:_100g)?$", name)
    document = document_of(name)
    cluster = document.data.get("cluster", {})
    if name == "astrasim_32":
        topology = load(name)
        assert topology.gpus // topology.gpus_per_node == 32
    elif name in SERVERS:
        assert cluster["nodes"] == 1
        assert load(name).gpus == int(number)
    else:
        pools = cluster.get("pools") or [cluster]
        assert sum(pool["nodes"] for pool in pools) == int(number)


@pytest.mark.parametrize(("old", "new"), shipped.RENAMED.items())
def test_old_names_find_their_files_as_names_and_as_paths(old, new):
    path = ROOT / "topologies" / f"{new}{'.yml' if old == 'astrasim_64' else '.yaml'}"
    assert shipped.find("topologies", old).samefile(path)
    assert shipped.find("topologies", path.with_name(old + path.suffix)).samefile(path)
    assert shipped.renamed("topologies", old) == new
    assert shipped.renamed("topologies", new) is None


def test_an_old_name_on_the_command_line_is_told_on_standard_error(call):
    code, out, err = call("show", "mi300x_128")
    assert code == 0
    assert "mi300x-16" in out
    assert err == (
        "clustersim: mi300x_128 is now called mi300x_16, as the number counts nodes; the old name still works\n"
    )
    path = str(ROOT / "topologies/grid_64.yaml")
    assert call("show", path)[2].startswith(f"clustersim: {path} is now called grid_32")


def test_a_bare_name_finds_the_shipped_files_from_any_folder(call):
    changes = {"parallelism.tp": 2, "training.global_batch": 8, "training.micro_batch": 1, "predictor": "roofline"}
    options = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    code, out, err = call("run", "hgx_h100_8", "gpt3_2.7b", *options)
    assert (code, err) == (0, "")
    assert "gpt3-2.7b on hgx-h100-8" in out
    [folder] = Path("results").glob("hgx_h100_8-gpt3_2.7b*")
    assert (folder / "summary.json").is_file()
    assert simulate("hgx_h100_8", "gpt3_2.7b", changes).job.name == "gpt3-2.7b"


def test_a_path_that_exists_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("hgx_h100_8").write_text("cluster: {name: mine, nodes: 1, node: hgx-h100}\n", encoding="utf-8")
    assert shipped.find("topologies", "hgx_h100_8") == Path("hgx_h100_8")
    assert load("hgx_h100_8").name == "mine"
    Path("mi300x_8").mkdir()
    assert load("mi300x_8").name == "mi300x-8"


@pytest.mark.parametrize(
    ("room", "name", "sentence"),
    [
        (
            "topologies",
            "superpod_h100_12",
            "did you mean 'superpod_h100_128'? `clustersim list topologies` shows them all",
        ),
        ("workloads", "Llama3_70B", "no shipped workload has that name; did you mean 'llama3_70b'? `clustersim list"),
        ("topologies", "qqq", "qqq: no such file, and no shipped topology has that name; `clustersim list topologies`"),
        ("topologies", "gpt3", "gpt3 is a workload, not a topology; the topology comes first, then the workload"),
        ("workloads", "no/gpt3.yaml", "`ls no` shows what is there, and the bare name gpt3 finds the shipped one"),
        ("topologies", "no/grid_64.yaml", "the bare name grid_32 finds the shipped one"),
        (
            "topologies",
            "a.yaml,b.yaml",
            "a.yaml,b.yaml: no such file; a list with commas is not a topology, so give one",
        ),
        (
            "workloads",
            "gpt3,gpt3_xl",
            "so give one; `clustersim jobs` takes several workloads, with blanks between them",
        ),
        ("topologies", "x" * 5000, "cannot be read: File name too long"),
    ],
)
def test_what_is_not_there_is_told_with_the_nearest_name(room, name, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        read(shipped.find(room, name))


TOPOLOGIES = sorted(path for path in (ROOT / "topologies").iterdir() if path.suffix in (".yaml", ".yml"))


@pytest.mark.slow
@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.stem)
def test_every_shipped_topology_runs_a_shipped_workload_as_it_stands(path):
    workload = "gpt3" if load(path).gpus >= 128 else "gpt2_large"
    found = simulate(path, ROOT / "workloads" / f"{workload}.yaml", engine="auto").summary
    assert found["memory"]["fits"]
    assert found["step_time_s"] > 0
