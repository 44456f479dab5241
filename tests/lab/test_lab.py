"""A predictor imports nothing of another, and no room has a circle of imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clustersim import plugins
from clustersim.lab.train import learner
from clustersim.predictors.base import ROOM


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
