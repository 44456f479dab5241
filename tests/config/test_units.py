"""Quantities: bits are no bytes, GB is no GiB, case matters, a bare number is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim import units
from clustersim.errors import InputError
from clustersim.planning.request import amount


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("400 Gb/s", "bandwidth", 50e9), ("400Gbps", "bandwidth", 50e9), ("50 GB/s", "bandwidth", 50e9),
        ("50GiB/s", "bandwidth", 50 * 2**30), ("3.35 TB/s", "bandwidth", 3.35e12), ("80GB", "size", 80e9),
        ("80 GiB", "size", 80 * 2**30), ("0B", "size", 0.0), ("989.4 TFLOP/s", "compute", 989.4e12),
        ("1.979 PFLOPS", "compute", 1.979e15), ("250ns", "time", 250e-9), ("2.5us", "time", 2.5e-6),
        ("2.5µs", "time", 2.5e-6), ("2.5μs", "time", 2.5e-6), (" 1e-3 s ", "time", 1e-3), ("1.5h", "time", 5400.0),
        ("700 W", "power", 700.0), ("10.2kW", "power", 10.2e3), ("1980MHz", "frequency", 1.98e9),
        (".5 m", "length", 0.5), ("+30 m", "length", 30.0),
    ],
)  # fmt: skip
def test_quantities(text: str, dimension: str, value: float) -> None:
    assert units.parse(text, dimension) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        (400, "bandwidth", "400 has no unit; write a bandwidth with one, like 400Gb/s"),
        (None, "size", "None is not a size; write a number and a unit, like 80GiB"),
        ("fast", "time", "'fast' is not a time; write a number and a unit, like 250ns"),
        ("-5 ms", "time", "'-5 ms' must be a finite time of zero or more, like 250ns"),
        ("1e999 s", "time", "'1e999 s' must be a finite time of zero or more, like 250ns"),
        ("400 gb/s", "bandwidth", "'gb/s' is not a unit of bandwidth (case matters); did you mean 'Gb/s'? known: "),
        ("5 MS", "time", "'MS' is not a unit of time (case matters); did you mean 'ms'? known: "),
        ("5 parsecs", "length", "'parsecs' is not a unit of length (case matters); known: cm, km, m, mm"),
    ],
)
def test_refused_with_an_example_or_the_nearest_unit(text: object, dimension: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        units.parse(text, dimension)
    said = str(caught.value)
    assert said.startswith(message) if message.endswith("known: ") else said == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("400GB", "'GB' is not a unit of bandwidth (case matters); did you mean 400Gb/s, in bits?"),
        ("400G", "'G' is not a unit of bandwidth (case matters); did you mean 400Gb/s, in bits?"),
        (800, "800 has no unit; write a bandwidth with one, like 800Gb/s"),
        (-800, "-800 has no unit; write a bandwidth with one, like 400Gb/s"),
        (10**400, f"{'1' + '0' * 56}... has no unit; write a bandwidth with one, like 400Gb/s"),
    ],
)
def test_line_rates_are_suggested_in_bits(text: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        units.parse(text, "bandwidth", of_line=True)
    assert str(caught.value) == message


@given(st.one_of(st.text(), st.from_regex(r"[0-9]{1,500}[A-Za-z/]{0,500}"), st.integers(), st.floats(), st.binary()))
def test_nothing_but_an_input_error_of_bounded_length(text: object) -> None:
    for dimension in units.UNITS:
        try:
            assert 0 <= units.parse(text, dimension, of_line=dimension == "bandwidth") < math.inf
        except InputError as error:
            assert len(str(error)) < 700
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (999.4, "999"), (1000.0, "1.000k"), (118_234.0, "118.2k"), (-9_999_499.0, "-9.999M"),
        (999_950.0, "1.000M"), (63.5e6, "63.50M"), (1.3e9, "1.300B"),
    ],
)  # fmt: skip
def test_dollars_are_written_as_a_budget_is_given(value: float, text: str) -> None:
    assert units.dollars(value) == text
    assert value <= 0 or amount("--budget", text.lstrip("-")) == pytest.approx(value, rel=1e-3)


@given(st.floats(0, 1e6), st.sampled_from([(d, u) for d, known in units.UNITS.items() for u in known]))
def test_every_unit_scales(number: float, unit: tuple[str, str]) -> None:
    dimension, name = unit
    assert units.parse(f"{number!r} {name}", dimension) == pytest.approx(number * units.UNITS[dimension][name])


@pytest.mark.parametrize("dimension", units.UNITS)
def test_examples_are_quantities(dimension: str) -> None:
    assert units.parse(units.EXAMPLES[dimension], dimension) > 0


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        (
            units.seconds,
            {0: "0 s", 3e-9: "3 ns", 2.5e-6: "2.5 us", 0.0123: "12.3 ms", 0.99996: "1 s", 1.5149: "1.515 s"},
        ),
        (
            units.seconds,
            {90: "90 s", 7199: "7199 s", 12345: "3.429 h", 1e6: "11.57 d", 1e10: "115741 d", -0.5: "-500 ms"},
        ),
        (units.duration, {1.5: "1.500 s", 0.5004: "500.4 ms", 20.0: "20.00 s", 3e-9: "3.000 ns", 0.0: "0 s"}),
        (units.duration, {-0.5: "-500.0 ms", 1234.0: "1234 s"}),
    ],
)
def test_seconds_and_durations_of_four_figures(function, texts) -> None:
    assert {value: function(value) for value in texts} == texts


def test_scaled_and_gibibytes() -> None:
    assert units.scaled(4.8e10, "B/s") == "48 GB/s"
    assert units.scaled(999_999, "B") == "1 MB"
    assert units.scaled(0, "FLOP") == "0 FLOP"
    assert units.scaled(12, "W") == "12 W"
    assert units.gibibytes(80 * 2**30) == "80.00 GiB"
