"""clustersim: how long a training step takes on a GPU cluster, and why.

```python
import clustersim as cs

result = cs.simulate("hgx_h100_8", "gpt3_xl", tp=2)
print(result.step_time, result.mfu)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clustersim.errors import ClustersimError

if TYPE_CHECKING:
    from clustersim.api import Result, load_cluster, load_workload, simulate

__version__ = "0.1.0"
__all__ = ["ClustersimError", "Result", "load_cluster", "load_workload", "simulate"]


def __getattr__(name: str) -> Any:
    """Import what is used when it is used: `import clustersim` alone loads neither numpy nor pydantic."""
    if name not in __all__:
        raise AttributeError(f"module 'clustersim' has no attribute {name!r}")
    from clustersim import api

    return getattr(api, name)
