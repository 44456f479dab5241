"""docs/constants.md has every number that is neither of a datasheet nor learned, with the values that the code has."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from clustersim.lab import constants_effects
from clustersim.lab.constants_effects import STEPS, effects, scaled
from clustersim.lab.constants_page import cells, page, read, shown
from clustersim.lab.constants_table import CONSTANTS
from clustersim.lab.constants_without_row import OTHER, ROOMS
from clustersim.predictors.kinds.neusight.schedule import FA3

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/constants.md").read_text(encoding="utf-8")
REASONS = [name for names in OTHER.values() for name in names]


def numbers(room):
    """Yield the names in capitals that a room sets to something with a number in it."""
    for path in sorted((ROOT / "clustersim" / room).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "clustersim").with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                found = [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
                if any(isinstance(value, int | float) and not isinstance(value, bool) for value in found):
                    yield from (f"{module}.{name}" for name in names if name.isupper())


def test_the_page_is_up_to_date():
    assert page(read(PAGE)) == PAGE, "run scripts/update-constants"


def test_every_constant_has_its_value_its_source_and_its_effect():
    assert list(read(PAGE)) == [one.name for one in CONSTANTS]
    for one in CONSTANTS:
        assert f"| `{one.name}` | {shown(one.value)} |" in PAGE
        assert one.source
        assert one.rows
    assert not any("?" in row for row in read(PAGE).values())


@pytest.mark.parametrize("room", ROOMS)
def test_every_number_in_capitals_has_a_row_or_a_reason_to_have_none(room):
    known = {*(one.name for one in CONSTANTS), *REASONS}
    assert sorted(set(numbers(room)) - known) == [], (
        "add it to constants_table.py, or to constants_without_row.py, in clustersim/lab"
    )


def test_no_name_stands_twice_or_is_gone():
    names = [*(one.name for one in CONSTANTS), *REASONS]
    assert len(set(names)) == len(names)
    modules = [name.rpartition(".") for name in names]
    assert [name for path, _, name in modules if not hasattr(import_module(f"clustersim.{path}"), name)] == []


def test_numbers_of_a_table_are_scaled_all_at_once():
    assert scaled({"a": (1.0, None, "x"), "b": [10, True]}, 1.1) == {"a": (1.1, None, "x"), "b": [11, True]}
    assert scaled(FA3, 2.0).columns == 2 * FA3.columns
    assert type(scaled(FA3, 2.0)) is type(FA3)


def test_an_effect_is_shown_in_percent_of_the_step():
    low, none, *_ = cells({"dense": (-0.01234, 0.0), "experts": (0.0, 0.0)})
    assert (low, none) == ("-1.2 % / 0", "–")


@pytest.mark.slow
def test_the_launch_of_a_kernel_does_to_a_step_what_the_page_says():
    """Measured anew: other constants may have moved it a little since."""
    name = "hardware.constants.LAUNCH"
    [(_, effect)] = effects([name])
    written = [[float(x) for x in re.findall(r"[-+.\de]+(?= %)", cell)] for cell in read(PAGE)[name]]
    for (low, high), (down, up) in zip(effect.values(), written, strict=True):
        assert low < 0 < high
        assert 100 * low == pytest.approx(down, rel=0.2)
        assert 100 * high == pytest.approx(up, rel=0.2)


def test_a_number_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(constants_effects, "STEPS", {})
    with pytest.raises(constants_effects.ClustersimError, match="sets NOWHERE 0 times"):
        constants_effects._steps("hardware.constants.NOWHERE", 1.1)


def test_the_reference_steps_are_those_of_the_page():
    assert all(f"`{workload}` on `{cluster}`" in PAGE for cluster, workload, _ in STEPS.values())
