"""clustersim: how long a training step takes on a GPU cluster, and why.

```python
import clustersim as cs

result = cs.simulate("hgx_h100_8", "gpt3_xl", tp=2)
print(result.step_time, result.mfu)
```
"""

from __future__ import annotations

from pathlib import Path
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
"""Kinds of fabric: each is a file there and a function here."""
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


def __getattr__(name: str) -> Any:
    """Import what is used when it is used: `import clustersim` alone loads neither numpy nor pydantic."""
    if name in _KINDS:
        from clustersim.api.inputs import of_kind

        return of_kind(name)
    if name not in __all__ and _offered(name):
        from clustersim.api.inputs import of_kind

        return of_kind(name)
    if name not in __all__:
        raise AttributeError(f"module 'clustersim' has no attribute {name!r}")
    from clustersim import api

    return getattr(api, name)


def _offered(name: str) -> bool:
    """Return whether an installed package offers a kind of fabric of this name; no part of clustersim itself is one."""
    from importlib.util import find_spec

    if name.startswith("_") or find_spec(f"clustersim.{name}") is not None:
        return False
    from clustersim.plugins import installed

    return name in installed("clustersim.topology")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
