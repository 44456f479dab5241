"""The rooms as CONTRIBUTING.md shows them are those of the code, and no room has an import circle inside."""

import ast
import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest
from documents import ROOT
from house import HOUSE, ROOMS, draw_house
from imports import circles, imports, layers, room_of

import clustersim
from clustersim.sweeps.evaluate import Files, evaluate, load

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
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
    assert sorted(ROOMS.keys() - rooms) == []


def test_the_arrows_of_the_page_are_those_that_are_checked():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    [shown] = re.findall(r"^```text\n(cli → .*?)\n```$", text, re.MULTILINE | re.DOTALL)
    assert [layer.strip().split(" | ") for layer in shown.replace("\n", " ").split("→")] == layers()


def test_the_walks_go_through_what_is_there():
    """`engine/flows.py: Flows, solve` names functions or classes that the file defines."""
    steps = re.findall(r"`([a-z_/]+\.py): ([\w, ]+)`", CONTRIBUTING.read_text(encoding="utf-8"))
    assert len(steps) > 10
    for file, names in steps:
        tree = ast.parse((ROOT / "clustersim" / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        assert set(names.split(", ")) <= defined, f"CONTRIBUTING.md: {file} has no {names}"


POINT = "From a sweep's point to its row"
WALKS = {"From an operator to its link": 10, "From a key to its effect": 10, POINT: 20}
"""The walks of CONTRIBUTING.md, and how many steps each may have."""


def walked(walk):
    text = CONTRIBUTING.read_text(encoding="utf-8").partition(f"### {walk}\n")[2]
    return re.split(r"^##", text, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_has_few_steps_and_opens_no_file_twice(walk):
    files = re.findall(r"`([a-z_/]+\.py): [\w, ]+`", walked(walk))
    assert len(re.findall(r"^\d+\. `", walked(walk), re.MULTILINE)) <= WALKS[walk]
    assert [file for file in files if files.count(file) > 1] == []


def called(function, *arguments):
    """Return the calls within one of a function, each pair of caller and callee once: (file, name) each, in order."""
    found = {}

    package = f"{Path(clustersim.__file__).parent}{os.sep}"  # with a checkout's .venv, other files have the word in their path

    def place(frame):
        file = frame.f_code.co_filename
        if not file.startswith(package):
            return None
        return file.removeprefix(package).replace(os.sep, "/"), frame.f_code.co_qualname

    def entered(frame, event, _):
        if event == "call" and frame.f_back is not None:
            found[place(frame.f_back), place(frame)] = None

    known = sys.getprofile()
    sys.setprofile(entered)
    try:
        function(*arguments)
    finally:
        sys.setprofile(known)
    return [(caller, callee) for caller, callee in found if callee is not None]


def test_a_point_of_a_sweep_goes_the_way_that_its_walk_tells():
    """In its order, through no more than 20 rooms, of which none calls one above it but to find what a cache has not."""
    case = load(Files(str(ROOT / "topologies/superpod_h100_128.yaml"), str(ROOT / "workloads/gpt3.yaml"), {}, "auto"))
    point = {
        "parallelism.pp": 16,
        "training.micro_batch": 1,
        "training.recompute": "full",
        "training.global_batch": 1536,
    }
    calls = called(evaluate, case, point)
    names = [(file, part) for _, (file, name) in calls for part in name.split(".")]
    steps = re.findall(r"^\d+\. `([a-z_/]+\.py): (\w+)`", walked(POINT), re.MULTILINE)
    places = [names.index(step) for step in steps]
    assert places == sorted(places)
    rank = {room: place for place, rooms in enumerate(layers()) for room in rooms}
    assert len({file.split("/")[0] for _, (file, _) in calls}) <= 20
    found = ("Cache.once", "Cache.keep", "Tasks.once", "Tasks.column")
    known = [(caller, callee) for caller, callee in calls if caller is not None and caller[1] not in found]
    rooms = [[rank[file.split("/")[0].removesuffix(".py")] for file, _ in pair] for pair in known]
    assert [pair for pair, (one, other) in zip(known, rooms, strict=True) if one > other] == []


SCRIPTS = [path for folder in ("scripts", "benchmarks") for path in sorted((ROOT / folder).iterdir()) if path.is_file()]
PYTHON = [
    path
    for path in SCRIPTS
    if path.suffix == ".py" or path.read_text(encoding="utf-8").startswith("#!/usr/bin/env python")
]


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.name)
def test_scripts_import_what_exists(path):
    """Generators of pages run rarely, so that a function that only they use could go unnoticed."""
    imports = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    for node in (node for node in imports if node.module and node.module.startswith("clustersim")):
        module = importlib.import_module(node.module)
        missing = [name.name for name in node.names if not hasattr(module, name.name)]
        assert not [name for name in missing if importlib.util.find_spec(f"{node.module}.{name}") is None]
