"""One name, one thing: no two classes, nor a class and a type, of the same name."""

import ast
from collections import defaultdict
from pathlib import Path

import clustersim

HOUSE = Path(clustersim.__file__).parent
ENGINE = {"Held", "Network"}
"""Names that the engine shares with another room until its instructions are one set."""


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
    twice = {name: where for name, where in homes.items() if len(where) > 1 and name not in ENGINE}
    assert not twice, f"rename one of each: {twice}"
