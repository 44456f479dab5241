"""One name, one thing: no two classes or types of one name, and each field explained under it."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import clustersim

HOUSE = Path(clustersim.__file__).parent


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
