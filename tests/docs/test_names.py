"""One name, one thing, in the words of the field: no two classes or types of one name, no words of our own."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import clustersim

HOUSE = Path(clustersim.__file__).parent
OWN = {
    *(
        "allot",
        "allots",
        "allotted",
        "climb",
        "climbs",
        "deal",
        "deals",
        "dealt",
        "kin",
        "laid",
        "lay",
        "lays",
        "lent",
        "pace",
    ),
    *("paces", "pins", "pinned", "sheet", "sheets", "spelt", "strange", "stretch", "stretches", "ways", "wear", "worn"),
}
"""Words that stood for load, place, route, feeder, table, latency, segment and others of the field (docs/glossary.md)."""


def _named(module: ast.Module) -> list[str]:
    """Return the classes of a module and the types that it names, such as `Row = dict[str, Any]`; no type variables."""
    found = [node.name for node in module.body if isinstance(node, ast.ClassDef)]
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, variable = node.targets[0].id, ast.unparse(node.value).startswith("TypeVar")
            if name[0].isupper() and not name.isupper() and not variable:
                found.append(name)
    return found


def test_a_name_of_a_class_or_a_type_means_one_thing() -> None:
    homes = defaultdict(list)
    for path in sorted(HOUSE.rglob("*.py")):
        for name in _named(ast.parse(path.read_text(encoding="utf-8"))):
            homes[name].append(str(path.relative_to(HOUSE)))
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert not twice, f"rename one of each: {twice}"


def _identifiers(module: ast.Module) -> set[str]:
    """Return the names of functions, classes, arguments, variables and attributes of a module."""
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def test_names_are_words_of_the_field() -> None:
    wrong = {}
    for path in sorted(HOUSE.rglob("*.py")):
        for name in {path.stem, *_identifiers(ast.parse(path.read_text(encoding="utf-8")))}:
            if OWN & {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}:
                wrong[name] = str(path.relative_to(HOUSE))
    assert not wrong, f"docs/glossary.md has the words of the field: {wrong}"


def _in_the_docstring(node: ast.ClassDef) -> list[str]:
    """Return the fields of a class that its docstring explains, such as `seconds: of one step.`"""
    text = " ".join((ast.get_docstring(node) or "").split())
    fields = [one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    return [name for name in fields if re.search(rf"(?:^|[.;,] ){name}(?:, \w+)*(?: and \w+)?: ", text)]


def test_a_field_is_explained_under_it() -> None:
    wrong = {}
    for path in sorted(HOUSE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and (found := _in_the_docstring(node)):
                wrong[f"{path.relative_to(HOUSE)}: {node.name}"] = found
    assert not wrong, f"write what a field is under the field: {wrong}"
