"""docs/constants.csv has every number that is neither of a datasheet nor learned, with the values that the code has."""

import csv
import re
from pathlib import Path

import constants_effects
import pytest
from constants_effects import STEPS, effects, scaled
from constants_page import cells, declared, numbers, numbers_table, page, read, read_values_table, shown

from clustersim.calibration.constants import FAMILIES, SOFTWARE
from clustersim.calibration.fit import SLOWEST
from clustersim.predictors.kinds.neusight.schedule import FA3

ROOT = Path(__file__).parents[2]
PAGE, TABLE, STEP_VALUES = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("constants.md", "constants.csv", "constants_from_steps.csv")
)


def test_the_page_is_up_to_date():
    effects = read(TABLE)
    written = (page(effects), numbers_table(effects), read_values_table())
    assert written == (PAGE, TABLE, STEP_VALUES), "run scripts/update-constants"


def test_every_constant_has_its_value_its_source_and_its_effect():
    assert list(read(TABLE)) == [one.name for one in numbers()]
    values = {row["constant"]: row["value"] for row in csv.DictReader(TABLE.splitlines())}
    for one in declared():
        assert one.source
        assert f"`{one.name}`" in PAGE if one.known.family else values[one.name] == shown(one.value)
    assert not any("?" in row for row in read(TABLE).values())


def test_what_differs_between_machines_has_a_spread_that_was_chosen_on_something():
    machines = [one.known for one in declared() if one.known.family]
    # the software level is no constant of the code: it is estimated from published steps
    assert {one.family for one in machines} == {*FAMILIES, SLOWEST.family} - {SOFTWARE}
    assert all(0 < one.spread < 1 and one.chosen_on for one in machines)


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
    written = [[float(x) for x in re.findall(r"[-+.\de]+(?= %)", cell)] for cell in read(TABLE)[name]]
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
