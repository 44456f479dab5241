"""The pictures and tables of docs/studies.md are what their questions give today."""

from __future__ import annotations

import importlib.util

import pytest
from studies import PAGE, STUDIES, numbers_in, picture


def near(one, other):
    """Return whether two trees of plain data are the same but for 1e-6 of each number."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(near, one, other))
    return one == (pytest.approx(other, rel=1e-6) if isinstance(one, float) else other)


def rows_of_page(name: str) -> str:
    return PAGE.read_text(encoding="utf-8").split(f"<!-- begin {name} -->\n")[1].split("\n<!-- end")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_gives_what_its_page_shows(name):
    ask, _, table = STUDIES[name]
    found = ask()
    assert near(found, numbers_in(picture(name).read_text(encoding="utf-8"))), f"run scripts/update-studies {name}"
    assert table(found) == rows_of_page(name), f"run scripts/update-studies {name}"


@pytest.mark.parametrize("name", STUDIES)
def test_a_picture_is_drawn_from_the_numbers_that_it_carries(name):
    """So that a page, a table and a picture never tell of different runs."""
    _, draw, table = STUDIES[name]
    text = picture(name).read_text(encoding="utf-8")
    found = numbers_in(text)
    assert table(found) == rows_of_page(name)
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed (extra `plots`)")
    assert numbers_in(draw(found)) == found
