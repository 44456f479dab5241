"""The effect of a constant on a step: it is changed by 10 % and the reference steps are simulated in a separate process."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from clustersim.errors import ClustersimError

HERE = Path(__file__).parent
STEPS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "dense": ("superpod_h100_128", "llama3_70b", {}),
    "experts": ("superpod_h100_128", "mixtral_8x7b", {}),
    "A100": ("dgx_a100_8", "gpt3_2.7b", {"tp": 4}),
}
"""Reference steps: (cluster, workload, overrides)."""
BY = 0.1
"""Share by which a constant is changed, up and down."""
Effect = Mapping[str, tuple[float, float]]
"""{reference step: relative change of its time with the constant at -10 % and at +10 %}"""


def effects(names: Iterable[str]) -> Iterator[tuple[str, Effect]]:
    """Yield (name, effect) of each constant, named by module and attribute below `clustersim`. Takes seconds each. Raises
    ClustersimError."""
    plain = _steps("hardware.constants.FIBRE", 1.0)
    for name in names:
        low, high = (_steps(name, 1 + sign * BY) for sign in (-1, 1))
        yield name, {step: (low[step] / plain[step] - 1, high[step] / plain[step] - 1) for step in plain}


def scaled(value: Any, factor: float) -> Any:
    """Return `value` with every number in it multiplied by `factor`. Whole numbers stay whole."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return round(value * factor)
    if isinstance(value, float):
        return value * factor
    if isinstance(value, Mapping):
        return {key: scaled(inner, factor) for key, inner in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*(scaled(inner, factor) for inner in value))
    return type(value)(scaled(inner, factor) for inner in value)


def _steps(name: str, factor: float) -> dict[str, float]:
    """Return {reference step: seconds} with one constant scaled, from a separate process."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); from constants_effects import play; play({name!r}, {factor!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClustersimError(f"{name} times {factor}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def play(name: str, factor: float) -> None:
    """Print the seconds of the reference steps as JSON, with one constant scaled before any other code reads it."""
    module, _, attribute = f"clustersim.{name}".rpartition(".")
    sys.meta_path.insert(0, _Finder(module, attribute, factor))
    import_module(module)
    import clustersim as cs

    seconds = {
        step: cs.simulate(cluster, workload, ignore_memory=True, **overrides).step_time
        for step, (cluster, workload, overrides) in STEPS.items()
    }
    print(json.dumps(seconds))


class _Finder(MetaPathFinder):
    """Import hook that finds one module and loads it changed."""

    def __init__(self, module: str, attribute: str, factor: float) -> None:
        self.module, self.attribute, self.factor = module, attribute, factor

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self.attribute, self.factor)
        return spec


class _Loader(SourceFileLoader):
    """Loads a module in which `NAME = value` becomes `NAME = scaled(value, factor)`."""

    def __init__(self, fullname: str, path: str, attribute: str, factor: float) -> None:
        super().__init__(fullname, path)
        self.attribute, self.factor = attribute, factor

    def get_code(self, fullname: str) -> CodeType:
        tree, changed = ast.parse(self.get_source(fullname) or ""), 0
        for node in tree.body:
            if _names(node) == [self.attribute] and isinstance(node, ast.Assign | ast.AnnAssign):
                changed += 1
                node.value = ast.Call(ast.Name("_scaled", ast.Load()), [node.value, ast.Constant(self.factor)], [])  # type: ignore[list-item]
        if changed != 1:
            raise ClustersimError(f"{fullname} sets {self.attribute} {changed} times; name a number that it sets once")
        return compile(ast.fix_missing_locations(tree), self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["_scaled"] = scaled
        super().exec_module(module)


def _names(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [ast.unparse(target) for target in targets]
