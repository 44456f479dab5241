"""Who imports whom in clustersim/, imports inside functions included, and the rooms that pyproject.toml draws."""

import ast
import tomllib
from functools import cache

from documents import ROOT

PACKAGE = "clustersim"


@cache
def imports() -> dict[str, frozenset[str]]:
    """Return the modules of the package, each with those of the package that it imports anywhere in its file."""
    files = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found = {}
    for module, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[module] = frozenset(name for node in ast.walk(tree) for name in _named(node, files)) - {module}
    return found


def _named(node: ast.AST, modules: dict[str, object]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name in modules]
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in modules else node.module for name in inner]
    return []


def layers() -> list[list[str]]:
    """Return the rooms, layer by layer from above, as import-linter checks them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        [contract] = [one for one in tomllib.load(file)["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    return [[room.strip().removeprefix(f"{PACKAGE}.") for room in layer.split("|")] for layer in contract["layers"]]


def room_of(module: str) -> str:
    """Return the room of a module; the package itself is one too."""
    return module.split(".")[1] if "." in module else ""


def circles(graph: dict[str, frozenset[str]]) -> list[frozenset[str]]:
    """Return the sets of two or more modules that import each other, directly or around."""
    import networkx as nx

    drawn = nx.DiGraph([(one, other) for one, others in graph.items() for other in others])
    return sorted((frozenset(c) for c in nx.strongly_connected_components(drawn) if len(c) > 1), key=sorted)
