"""clustersim: how long a training step takes on a GPU cluster, and why.

```python
from clustersim.simulation import simulate

result = simulate("topologies/hgx_h100_8.yaml", "workloads/gpt3_xl.yaml")
print(result.summary["step_time_s"])
```
"""

__version__ = "0.1.0"
