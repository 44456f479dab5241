"""docs/yaml.md, written from the specs that read the files, so that it cannot go stale."""

import types
import typing
from pathlib import Path

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from clustersim import plugins
from clustersim.config import fabric, fields, jobs, machine, topology, workload
from clustersim.config.evidence import Declared, StepEvidence
from clustersim.config.gpu import Gpu
from clustersim.config.json_schema import field_texts
from clustersim.convert.megatron import ALIASES, REMEDIES
from clustersim.parallel.ignored import NO_EFFECT, NOT_MODELLED
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
    topology.AstraNetwork: "ASTRA-sim's network.yml",
    workload.Workload: "The top level of a workload",
    workload.Model: "model",
    workload.Block: "model.blocks",
    workload.LatentAttention: "model.mla",
    workload.Training: "training",
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
    fields.Count: "whole number of 1 or more",
    fields.Index: "whole number of 0 or more",
    fields.Fraction: "number above 0, at most 1",
    fields.Name: "text",
    jobs.Ranges: "nodes (`0-3,8-11`)",
    **{
        kind: f"{name} (`{EXAMPLES[name]}`)"
        for kind, name in (
            (fields.Time, "time"),
            (fields.Size, "size"),
            (fields.Bandwidth, "bandwidth"),
            (fields.LineRate, "bandwidth"),
            (fields.ComputeRate, "compute"),
            (fields.Power, "power"),
            (fields.Length, "length"),
            (fields.Frequency, "frequency"),
        )
    },
}
PLAIN = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}
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


def reference() -> str:
    """Return the page."""
    parts = [HEAD, _units(), TOPOLOGY, _table(topology.TopologySpec), f"Shipped node types: {_listed(presets())}.\n"]
    parts += [_section(kind) for kind in TITLES if kind.__module__ in (topology.__name__, fabric.__name__)]
    parts += [WORKLOAD, *(_section(kind) for kind in TITLES if kind.__module__ == workload.__name__)]
    rooms = {"schedule": "schedules", "algorithms": "collectives", "predictor": "predictors"}
    parts += [f"Names for `{key}`: {_listed(plugins.names(f'clustersim.{room}'))}.\n" for key, room in rooms.items()]
    several = [JOBS, *(_section(kind) for kind in TITLES if kind.__module__ == jobs.__name__)]
    measured = [MACHINE, *(_section(kind) for kind in TITLES if kind.__module__ == machine.__name__)]
    return "\n".join([*parts, _aliases(), *several, *measured, GPU, _section(Gpu), _section(StepEvidence)])


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
        f"| `{name}` | {types[name]} | {_default(info, types[name])} | {texts[name]} |"
        for name, info in kind.model_fields.items()
    ]
    return "\n".join(["| key | value | default | what |", "| --- | --- | --- | --- |", *rows, ""])


def _default(info: FieldInfo, kind: str) -> str:
    value = info.default_factory() if info.default_factory else info.default
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ((), {}) or isinstance(value, fields.Spec):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else _number(value, kind)}`"


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
    return write(typing.get_args(hint)) if write else f"mapping, see [{TITLES[hint]}](#{_anchor(TITLES[hint])})"


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
    typing.Literal: _listed,
    tuple: lambda arguments: f"list of {_type(arguments[0])}",
    dict: lambda arguments: f"mapping of {_type(arguments[0])} to {_type(arguments[1])}",
}


def _annotated(kind: object, *rules: object) -> str:
    own = tuple(rule for rule in rules if not isinstance(rule, Declared))
    if own == rules:
        return _bounded(_type(kind), rules)
    return _type(typing.Annotated[(kind, *own)] if own else kind)


def _bounded(text: str, rules: tuple[object, ...]) -> str:
    found = [rule for one in rules for rule in getattr(one, "metadata", [one])]
    low = next((f" from {r.ge:,g}" for r in found if isinstance(r, Ge)), "")
    low = low or next((f" above {r.gt:,g}" for r in found if isinstance(r, Gt)), "")
    return text + low + next((f" to {r.le:,g}" for r in found if isinstance(r, Le)), "")


def _units() -> str:
    rows = [f"| {name} | `{EXAMPLES[name]}` | {_spelled(UNITS[name])} |" for name in UNITS]
    return "\n".join(["| quantity | example | units |", "| --- | --- | --- |", *rows, ""])


def _spelled(units: typing.Mapping[str, float]) -> str:
    return " ".join(units)


def _aliases() -> str:
    rows = [f"| `{name}` | `{'.'.join(map(str, loc))}` |" for name, (loc, _) in ALIASES.items()]
    refused = "\n".join(f"- `{name}`: {remedy}" for name, remedy in REMEDIES.items())
    ignored = [IGNORED, f"{_listed(sorted(NO_EFFECT))}.\n", UNMODELLED, f"{_listed(sorted(NOT_MODELLED))}.\n"]
    return "\n".join([MEGATRON, "| Megatron | here |", "| --- | --- |", *rows, "", REFUSED, refused, "", *ignored])


HEAD = """\
# Keys of the YAML files

Which keys does a topology, workload, machine or GPU file have, with which values and defaults? All of them are here.

This page is written by `scripts/update-docs` from the specs in `clustersim/config/` that read the files; a test compares the
two. Every error names file, line and column, says what is wrong and what would be right.

## In an editor

`clustersim schema cluster`, `workload`, `jobs`, `machine` and `gpu` print the same as JSON Schema, with the names that are
built in or installed. An editor that knows it completes keys, explains them and underlines mistakes. `clustersim init --schemas`
writes the schemas beside two files to begin with, which name them in their first line. By hand:

```sh
clustersim schema workload > workload.schema.json
sed -i '1i # yaml-language-server: $schema=workload.schema.json' my_workload.yaml
```

VS Code with its YAML extension, Neovim, Emacs and others with the YAML language server read that line.

## Values

A quantity is text with a unit; a bare number where a unit is needed is an error, because "400" means 400 Gb/s to one
reader and 400 GB/s to the next. Case matters: `Gb/s` is bits, `GB/s` bytes. `GB` is 10^9 bytes, `GiB` 2^30. Every bandwidth
is that of one direction.
"""

TOPOLOGY = """\
YAML is read more strictly than YAML 1.1 asks: only `true`, `false`, `null` and decimal numbers are anything but text, and
duplicate keys, tags and merge keys are errors. `1e9` is a number.

## Topology files

A command takes a path, or the bare name of a shipped file: `clustersim run superpod_h100_128 llama3_70b`. An existing path wins.
The number in a shipped name counts nodes: `mi300x_16` has 16 nodes of 8 GPUs. Only a single server is named by its GPUs, as its
makers do: `hgx_h100_8`, `dgx_a100_8`, `mi300x_8`, `nvlink_h100_4`, `nvlink_a100_40gb_4`. `rail_optimized` has as many as
`--nodes` says. Old names, in which GPUs were counted,
still work.

The top level:
"""

WORKLOAD = """\
## Workload files

A command takes a path, or the bare name of a shipped file: `clustersim kernels llama3_70b`.
"""
MEGATRON = """\
### Megatron's names

The arguments of Megatron-LM are understood too, at the top level or in any section, with hyphens or underscores. Those that
change nothing here are ignored, and `run` lists them once.
"""
REFUSED = "These have no counterpart, and are refused unless they are off:\n"
IGNORED = "These do not change the time of a step:\n"
UNMODELLED = "These change it somewhat, and are not modelled:\n"
JOBS = "## Files of jobs\n\nFor `clustersim jobs` ([how](several-jobs.md)).\n"
MACHINE = "## Machine files\n\nFor `--machine`, as `clustersim calibrate` writes them ([how](calibrate.md)).\n"
GPU = "## GPU files\n\n`clustersim/hardware/gpus/*.yaml`, or a file of your own ([how](how-to-add-a-gpu.md)).\n"
