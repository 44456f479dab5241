"""docs/yaml.md, written from the specs that read the files, so that it cannot go stale."""

import types
import typing
from pathlib import Path

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from clustersim.config import fabric, fields, jobs, machine, topology, workload
from clustersim.config.evidence import Declared, StepEvidence
from clustersim.config.gpu import Gpu
from clustersim.config.json_schema import field_texts
from clustersim.convert.astra_sim import AstraNetwork
from clustersim.convert.megatron import ALIASES, NO_EFFECT, NOT_MODELLED
from clustersim.topology.build import presets
from clustersim.units import EXAMPLES, UNITS, seconds

PAGE = Path(__file__).parents[2] / "docs" / "yaml.md"

TITLES = {
    topology.Cluster: "cluster",
    topology.NodePool: "One of `cluster.pools`",
    topology.Jitter: "`cluster.jitter`",
    topology.Stragglers: "`cluster.jitter.stragglers`",
    topology.Node: "A node: `cluster.node`, `nodes.<name>`",
    topology.Gpus: "gpus",
    topology.ScaleUp: "scale_up",
    topology.Host: "host",
    topology.Nics: "nics",
    topology.NodePower: "power",
    fabric.FatTree: "fabric of kind `fat_tree`, `leaf_spine`, `rail_optimized` or `rail_only`",
    fabric.Tier: "tiers",
    fabric.Link: "link",
    fabric.TreeLink: "link of a fat tree",
    fabric.Routing: "routing",
    fabric.Torus: "fabric of kind `torus`",
    fabric.Dragonfly: "fabric of kind `dragonfly`",
    fabric.DragonflyPlus: "fabric of kind `dragonfly_plus`",
    fabric.Grid: "fabric of kind `grid`",
    fabric.GridDim: "dims",
    fabric.Switch: "fabric of kind `switch`",
    fabric.Explicit: "fabric of kind `explicit`",
    fabric.ExplicitRouting: "routing of kind `explicit`",
    fabric.ExplicitLink: "links",
    fabric.SingleNode: "fabric of kind `single_node`",
    topology.Fault: "faults",
    topology.Nccl: "nccl",
    AstraNetwork: "ASTRA-sim's network.yml",
    workload.Workload: "The top level of a workload",
    workload.Model: "model",
    workload.Block: "model.blocks",
    workload.LatentAttention: "model.mla",
    workload.StateSpace: "model.mamba",
    workload.DeltaNet: "model.delta",
    workload.Indexer: "model.indexer",
    workload.Training: "training",
    workload.Documents: "training.packed",
    workload.Lora: "training.lora",
    workload.Offload: "training.offload",
    workload.Parallelism: "parallelism",
    workload.Fsdp: "parallelism.fsdp",
    workload.DeepSpeed: "parallelism.zero3",
    workload.Overlap: "parallelism.overlap",
    workload.Algorithms: "parallelism.algorithms",
    jobs.Jobs: "The top level of a file of jobs",
    jobs.Entry: "jobs",
    machine.MachineSpec: "The top level of a machine file",
    machine.MachineConstant: "constants",
    Gpu: "A GPU",
    StepEvidence: "evidence",
}

NAMED = {
    fields.Count: "count",
    fields.Index: "index",
    fields.Fraction: "share",
    fields.Name: "text",
    jobs.Ranges: "nodes (`0-3,8-11`)",
    fields.Time: "time",
    fields.Size: "size",
    fields.Bandwidth: "bandwidth",
    fields.LineRate: "bandwidth",
    fields.ComputeRate: "compute",
    fields.Power: "power",
    fields.Length: "length",
    fields.Frequency: "frequency",
}
"""A quantity is named by its row in the table of units."""
PLAIN = {str: "text", int: "integer", float: "number", bool: "bool"}
CHECKED = {
    (fabric.FatTree, "rails"): "`none`, `optimized` or a number of rails",
    (topology.Cluster, "node"): "name, or mapping with `extends`",
    (topology.NodePool, "node"): "name, or mapping with `extends`",
    (topology.Host, "pcie"): "generation and lanes, like `gen5x16`",
    (fabric.Tier, "name"): "word",
    (StepEvidence, "otherwise"): "one value, or one for each publisher",
    (machine.MachineConstant, "keys"): "mapping of dotted keys to values",
    (topology.TopologySpec, "fabric"): "mapping with `kind`",
    (topology.TopologySpec, "nodes"): "mapping of names to nodes",
}


KIND = "Name of this kind."
"""Text of the key `kind` of a fabric, whose values the headings list."""
SAME = "As in `model`."
"""Text of the keys of a block that replace those of the model; one line lists them."""


def reference() -> str:
    """Return the page."""
    parts = [HEAD, _units(), TOPOLOGY, _table(topology.TopologySpec), f"Shipped node types: {_listed(presets())}.\n"]
    parts += [_section(kind) for kind in TITLES if kind.__module__ in (topology.__name__, fabric.__name__)]
    parts += [WORKLOAD, *(_section(kind) for kind in TITLES if kind.__module__ == workload.__name__)]
    parts += ["Names of schedules, algorithms and predictors: [index](README.md#what-there-is).\n"]
    megatron = MEGATRON.format(names=len(ALIASES), ignored=len(NO_EFFECT), unmodelled=len(NOT_MODELLED))
    several = [JOBS, *(_section(kind) for kind in TITLES if kind.__module__ == jobs.__name__)]
    measured = [MACHINE, *(_section(kind) for kind in TITLES if kind.__module__ == machine.__name__)]
    return "\n".join([*parts, megatron, *several, *measured, GPU, _section(Gpu), _section(StepEvidence)])


def _section(kind: type[fields.Spec]) -> str:
    return f"### {TITLES[kind]}\n\n{_prose(kind)}\n\n{_table(kind)}"


def _prose(kind: type[fields.Spec]) -> str:
    """Return the docstring with its paragraphs on one line each."""
    paragraphs = (kind.__doc__ or "").strip().split("\n\n")
    return "\n\n".join(" ".join(line.strip() for line in part.splitlines()) for part in paragraphs)


def _table(kind: type[fields.Spec]) -> str:
    hints = typing.get_type_hints(kind, include_extras=True)
    texts = field_texts(kind)
    types = {name: CHECKED.get((kind, name)) or _type(hints[name]) for name in kind.model_fields}
    rows = [
        f"- `{name}` ({types[name]}{_default(info, types[name])}): {texts[name]}"
        for name, info in kind.model_fields.items()
        if texts[name] not in (KIND, SAME)
    ]
    same = [name for name in kind.model_fields if texts[name] == SAME]
    return "\n".join([*rows, *([f"- {_listed(same)}: {SAME[0].lower()}{SAME[1:]}"] if same else []), ""])


def _default(info: FieldInfo, kind: str) -> str:
    value = info.default_factory() if info.default_factory else info.default
    if value is PydanticUndefined:
        return ", required"
    if value is None or value in ((), {}) or isinstance(value, fields.Spec):
        return ""
    return f", `{str(value).lower() if isinstance(value, bool) else _number(value, kind)}`"


def _number(value: object, kind: str) -> str:
    if isinstance(value, float) and kind.startswith("time"):
        return seconds(value)
    return "0" if value == 0.0 else str(value)


def _type(hint: object) -> str:
    if hint in NAMED:
        return NAMED[hint]
    if hint in PLAIN:
        return PLAIN[hint]
    write = GENERIC.get(typing.get_origin(hint))
    return write(typing.get_args(hint)) if write else f"[mapping](#{_anchor(TITLES[hint])})"


def _anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _union(arguments: tuple[object, ...]) -> str:
    return " or ".join(dict.fromkeys(_type(a) for a in arguments if a is not type(None)))


def _listed(words: typing.Iterable[object]) -> str:
    return ", ".join(f"`{word}`" for word in words)


GENERIC = {
    typing.Annotated: lambda arguments: _annotated(*arguments),
    typing.Union: _union,
    types.UnionType: _union,
    typing.Literal: lambda words: "/".join(f"`{word}`" for word in words),
    tuple: lambda arguments: f"list of {_type(arguments[0])}",
    dict: lambda arguments: f"{_type(arguments[1])} by {_type(arguments[0])}",
}


def _annotated(kind: object, *rules: object) -> str:
    own = tuple(rule for rule in rules if not isinstance(rule, Declared))
    if own == rules:
        return _bounded(_type(kind), rules)
    return _type(typing.Annotated[(kind, *own)] if own else kind)


def _bounded(text: str, rules: tuple[object, ...]) -> str:
    """Return a type with its bounds; an upper bound above 100 only protects from typing errors."""
    found = [rule for one in rules for rule in getattr(one, "metadata", [one])]
    low = next((f" ≥{r.ge:,g}" for r in found if isinstance(r, Ge)), "")
    low = low or next((f" >{r.gt:,g}" for r in found if isinstance(r, Gt)), "")
    return text + low + next((f" ≤{r.le:,g}" for r in found if isinstance(r, Le) and r.le <= 100), "")


def _units() -> str:
    rows = [f"| {name} | `{EXAMPLES[name]}` | {_spelled(UNITS[name])} |" for name in UNITS]
    return "\n".join(["| quantity | example | units |", "| --- | --- | --- |", *rows, ""])


def _spelled(units: typing.Mapping[str, float]) -> str:
    """Return the units, those that differ in their prefix alone once: `s (m u µ n)` is s, ms, us, µs and ns."""
    groups: dict[str, list[str]] = {}
    for unit in units:
        base = next((short for short in groups if unit.endswith(short)), unit)
        groups.setdefault(base, []).extend([unit.removesuffix(base)] * (unit != base))
    return ", ".join(f"{base} ({'/'.join(prefixes)})" if prefixes else base for base, prefixes in groups.items())


HEAD = """\
# Keys of the YAML files

Every key of topology, workload, jobs, machine and GPU files: `key` (value, default): meaning. A key without a default is
optional unless it says *required*. Errors name file, line, column and a remedy.

## In an editor

`clustersim schema cluster` (or `workload`, `jobs`, `machine`, `gpu`) prints the keys as JSON Schema. Editors with a YAML
language server (VS Code, Neovim, Emacs) then complete and explain keys. `clustersim init --schemas` sets this up; by hand:

```sh
clustersim schema workload > workload.schema.json
sed -i '1i # yaml-language-server: $schema=workload.schema.json' my_workload.yaml
```

## Values

A quantity is text with a unit; a bare number is an error. Units may have the prefixes in parentheses. `Gb/s` is bits, `GB/s`
bytes; `GB` is 10^9 bytes, `GiB` 2^30. Bandwidths are per direction.
A *count* is an integer from 1, an *index* one from 0, a *share* a number above 0 and at most 1.
"""

TOPOLOGY = """\
Apart from `true`, `false`, `null` and decimal numbers (also `1e9`), values are text. Duplicate keys, tags and merge keys are
errors.

## Topology files

Commands take a path or the name of a shipped file: `clustersim run superpod_h100_128 llama3_70b`. The number in a shipped
name counts nodes (`mi300x_16`: 16 nodes of 8 GPUs), or the GPUs of a single node (`hgx_h100_8`).
"""

WORKLOAD = "## Workload files\n"
MEGATRON = """\
### Megatron's names

{names} arguments of Megatron-LM are accepted for these keys, at the top level or in any section, with hyphens or underscores
([which](../clustersim/convert/tables/megatron.csv)); some need another key, which the error names. `run` lists those that have no
effect on a step's time ({ignored} are known) and those whose effect is not modelled ({unmodelled}).
"""
JOBS = "## Files of jobs\n\nFor [`clustersim jobs`](several-jobs.md).\n"
MACHINE = "## Machine files\n\nFor `--machine`, as [`clustersim calibrate`](calibrate.md) writes them.\n"
GPU = "## GPU files\n\n`clustersim/hardware/gpus/*.yaml`, or [your own](how-to-add-a-gpu.md).\n"
