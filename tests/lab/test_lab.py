"""Forecasting imports nothing of the lab, a predictor nothing of another, and no room has a circle of imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

from clustersim import plugins
from clustersim.lab.train import learner
from clustersim.predictors.base import ROOM

ROOT = Path(__file__).parents[2]
SPLIT = ["--tp", "2", "--set", "parallelism.dp=1", "--set", "training.global_batch=4"]
SPLIT += ["--set", "training.micro_batch=1", "--set", "parallelism.pp=1"]
FORECASTS = {
    "run": ["hgx_h100_8", "gpt3_2.7b", *SPLIT, "--no-save"],
    "sweep": ["hgx_h100_8", "gpt3_2.7b", "--tp", "1,2", *SPLIT[2:], "--quiet"],
    "collective": ["all_reduce", "--topology", "hgx_h100_8", "-b", "1M", "-e", "1M"],
    "kernels": ["gpt3_2.7b", "--gpu", "h100"],
    "predict": ["config.json", "--gpu", "h100", "--seq", "64"],
}
CONFIG = '{"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2, "n_positions": 64, "vocab_size": 100}'


def loaded(code: str, folder: Path) -> list[str]:
    """Return the modules of a Python that has run `code`."""
    code = f"import sys\ntry:\n    {code}\nfinally:\n    print('modules:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("modules:")[2].split()


@pytest.mark.parametrize("command", FORECASTS)
def test_forecasting_imports_nothing_of_the_lab(command, tmp_path):
    (tmp_path / "config.json").write_text(CONFIG, encoding="utf-8")
    arguments = ["clustersim", command, *FORECASTS[command]]
    found = loaded(f"sys.argv = {arguments!r}; from clustersim.cli.main import main; main()", tmp_path)
    assert "clustersim.cli.main" in found
    assert not [name for name in found if name.startswith("clustersim.lab") or name == "torch"]


@pytest.mark.parametrize("name", sorted(plugins.names(ROOM)))
def test_a_predictor_imports_its_own_code_alone(name, tmp_path):
    code = f"from clustersim import plugins; plugins.load({ROOM!r}, {name!r}, 'load')"
    found = [
        module
        for module in loaded(code, tmp_path)
        if module.startswith(("clustersim.lab", "clustersim.predictors.kinds."))
    ]
    own = plugins.names(ROOM)[name]
    assert own in found
    assert all(module == own or module.startswith(f"{own}.") for module in found)


def test_every_predictor_with_weights_has_a_learner():
    assert {*plugins.names(learner.ROOM)} == {*plugins.names(ROOM)} - {"roofline"}


@pytest.mark.parametrize("room", ["predictors", "lab"])
def test_no_circle_of_imports(room):
    """No module of a room imports another that leads back to it, counting imports inside functions."""
    files = sorted((ROOT / "clustersim" / room).rglob("*.py"))
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    graph = nx.DiGraph()
    for module, path in named.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = (f"{node.module}.{one.name}" for one in node.names)
                graph.add_edges_from((module, one if one in named else node.module) for one in names)
            elif isinstance(node, ast.Import):
                graph.add_edges_from((module, one.name) for one in node.names)
    graph.remove_edges_from([(one, one) for one in named])
    assert not [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
