"""clustersim: how long a training step takes on a GPU cluster, and why.

```python
import clustersim as cs

result = cs.simulate("hgx_h100_8", "gpt3_xl", tp=2)
print(result.step_time, result.mfu)
```
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clustersim.errors import ClustersimError
from clustersim.version import __version__ as __version__

if TYPE_CHECKING:
    from clustersim.api import (
        CompareResult,
        ExplainResult,
        OptimizeResult,
        PlanResult,
        Result,
        SweepResult,
        load_cluster,
        load_workload,
        optimize,
        plan,
        simulate,
        sweep,
    )

_KINDS = sorted(path.stem for path in Path(__file__).with_name("topology").glob("kinds/[a-z]*"))
"""Kinds of fabric: each is a file in `topology/kinds` and a function of this module."""
__all__ = [  # noqa: PLE0604
    "ClustersimError",
    "CompareResult",
    "ExplainResult",
    "OptimizeResult",
    "PlanResult",
    "Result",
    "SweepResult",
    "load_cluster",
    "load_workload",
    "optimize",
    "plan",
    "simulate",
    "sweep",
    *_KINDS,
]


_ROOMS = ("explain", "jobs", "lab", "report", "serve", "validate")
"""Parts of clustersim that have the name of a command."""


class _Room(ModuleType):
    """A part of clustersim with the name of a command: calling the module runs the command."""

    def __call__(self, *arguments: object, **options: object) -> Any:
        from clustersim.cli.python import command

        return command(self.__name__.rpartition(".")[2])(*arguments, **options)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in _ROOMS:
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Return an attribute, importing it on first use: `import clustersim` alone loads neither numpy nor pydantic."""
    from importlib import import_module
    from importlib.util import find_spec

    if name in _ROOMS:
        return import_module(f"clustersim.{name}")
    if name not in __all__ and (name.startswith("_") or find_spec(f"clustersim.{name}") is not None):
        raise AttributeError(f"module 'clustersim' has no attribute {name!r}")
    if name in _KINDS or (name not in __all__ and _offered(name)):
        from clustersim.api.inputs import cluster_function

        return cluster_function(name)
    if name not in __all__:
        from clustersim.cli.python import command

        return command(name)
    from clustersim import api

    return getattr(api, name)


def _offered(name: str) -> bool:
    """Return whether an installed package adds a kind of fabric with this name."""
    from clustersim.plugins import installed

    return name in installed("clustersim.topology")


def __dir__() -> list[str]:
    from clustersim.cli.python import names

    return sorted({*globals(), *__all__, *names()})
