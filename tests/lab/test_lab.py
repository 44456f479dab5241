"""A predictor imports nothing of another, and no room has a circle of imports."""

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


def loaded(code: str, folder: Path) -> list[str]:
    """Return the modules of a Python that has run `code`."""
    code = f"import sys\ntry:\n    {code}\nfinally:\n    print('modules:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("modules:")[2].split()


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
