"""The rooms as docs/explanation.md shows them are those of the code, and no room has an import circle inside."""

import ast
import re

import pytest
from documents import ROOT
from house import COLUMN, HOUSE, WORDS, draw_house
from imports import circles, imports, layers, room_of

EXPLANATION = ROOT / "docs/explanation.md"
KNOWN: set[frozenset[str]] = set()
"""Circles of modules that are still there: none, and one that is gone must be taken off the list."""


def test_no_room_has_a_circle_of_imports_inside():
    """Imports inside functions count too: who needs one of the files to read another, needs both."""
    found = set(circles(imports()))
    assert found - KNOWN == set(), "a new circle of imports; move what both need into a file below them"
    assert KNOWN - found == set(), "a known circle is no more; take it off the list"


def test_no_room_imports_upwards_even_inside_functions():
    rank = {room: place for place, rooms in enumerate(layers()) for room in rooms}
    pairs = {(room_of(one), room_of(other)) for one, others in imports().items() for other in others}
    known = [(a, b) for a, b in pairs if a != b and a in rank and b in rank]
    assert [(a, b) for a, b in known if rank[a] >= rank[b]] == []


def test_the_picture_of_the_house_is_that_of_the_imports():
    assert HOUSE.read_text(encoding="utf-8") == draw_house(), "run scripts/update-docs"


def test_every_room_of_the_picture_is_one():
    rooms = {room for layer in layers() for room in layer}
    assert sorted((WORDS.keys() | COLUMN.keys()) - rooms) == []


def test_the_arrows_of_the_explanation_are_those_that_are_checked():
    text = EXPLANATION.read_text(encoding="utf-8")
    [shown] = re.findall(r"^```text\n(cli → .*?)\n```$", text, re.MULTILINE | re.DOTALL)
    assert [layer.strip().split(" | ") for layer in shown.replace("\n", " ").split("→")] == layers()


def test_the_walks_go_through_what_is_there():
    """`engine/flows.py: Flows, solve` names functions or classes that the file defines."""
    steps = re.findall(r"`([a-z_/]+\.py): ([\w, ]+)`", EXPLANATION.read_text(encoding="utf-8"))
    assert len(steps) > 10
    for file, names in steps:
        tree = ast.parse((ROOT / "clustersim" / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        assert set(names.split(", ")) <= defined, f"docs/explanation.md: {file} has no {names}"


@pytest.mark.parametrize("walk", ["From an operator to its link", "From a key to its effect"])
def test_a_walk_has_ten_steps_and_opens_no_file_twice(walk):
    text = EXPLANATION.read_text(encoding="utf-8").partition(f"### {walk}\n")[2]
    text = re.split(r"^##", text, maxsplit=1, flags=re.MULTILINE)[0]
    files = re.findall(r"`([a-z_/]+\.py): [\w, ]+`", text)
    assert len(re.findall(r"^\d+\. `", text, re.MULTILINE)) <= 10
    assert [file for file in files if files.count(file) > 1] == []
