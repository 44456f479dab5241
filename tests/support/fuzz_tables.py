"""Command lines and calls of the API drawn from the program's own tables: its commands, their options, and its JSON Schemas.

A command or an option that is new is drawn from its first commit on: `BASES` has a command line that works for each command, and
a test fails where one has none.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import typer

import clustersim as cs
from clustersim.cli.app import app
from clustersim.cli.schema import document
from clustersim.parallel.options import RUN_OPTIONS

Path_ = tuple[str, ...]
PAIR = ("c.yaml", "j.yaml")
FEW = "--set", "parallelism.tp=2", "--set", "parallelism.schedule=1f1b", "--set", "training.recompute=none"
"""Of all splits so few that a plan takes a second; of all of them it takes as long as an input may."""
BASES: dict[Path_, tuple[tuple[str, ...], ...]] = {
    ("run",): (
        (*PAIR, "--no-save"),
        (*PAIR, "--out", "o"),
        (*PAIR, "--no-save", "--why"),
        (*PAIR, "--no-save", "--machine", "mine.yaml"),
        *((cluster, "j.yaml", "--no-save") for cluster in ("x.yaml", "torus.yaml", "net.yml")),
        ("c.yaml", "e.yaml", "--no-save"),
    ),
    ("explain",): (("r",),),
    ("compare",): (("r", "r2"), ("r", "trace.json")),
    ("trace",): (("r",), ("r", "-o", "t.json.gz")),
    ("rerun",): (("r",),),
    ("jobs",): (("c.yaml", "jobs.yaml", "--no-save"), (*PAIR, "--no-save")),
    ("show",): tuple((cluster,) for cluster in ("c.yaml", "x.yaml", "torus.yaml", "net.yml", "n.xml")),
    ("schedule",): (("1f1b",),),
    ("kernels",): (("j.yaml",), ("j.yaml", "--gpu", "g.yaml")),
    ("collective",): (
        ("all_reduce", "-t", "c.yaml", "-b", "1M", "-e", "4M"),
        *(("all_reduce", "-t", "c.yaml", "--measured", table) for table in ("m.csv", "log.txt")),
    ),
    ("sweep",): (
        (*PAIR, "--tp", "1,2", "--workers", "1", "--out", "o"),
        (*PAIR, "--tp", "1,2", "--workers", "1", "--out", "s"),
    ),
    ("optimize",): ((*PAIR, "--tp", "2", "--schedule", "1f1b", "--recompute", "none", "--micro-batch", "1,2"),),
    ("plan",): (("j.yaml", *("--tokens", "1G", "--days", "1", "--nodes", "2", "--global-batch", "16"), *FEW),),
    ("validate",): (("runs.csv", "--workers", "1", "--out", "o"),),
    ("calibrate",): (("runs.csv",), ("runs.csv", "--nccl", "nccl.log", "--out", "o.yaml")),
    ("report",): (("r", "--out", "a.html"),),
    ("explore",): (("s", "--out", "a.html"),),
    ("plot",): (("r", "--kind", "breakdown", "--out", "a.svg"), ("s", "--kind", "scaling", "--out", "a.svg")),
    ("predict",): tuple(
        (config, "--gpu", "h100", "--predictor", "roofline") for config in ("config.json", "gpt2.json", "bert.json")
    ),
    ("import", "megatron"): (("m.sh",), ("m.sh", "-o", "o.yaml")),
    ("import", "torchtitan"): (("t.toml", "--gpus", "8"), ("t.toml", "--gpus", "8", "-o", "o.yaml")),
    ("import", "nemo"): (("n.yaml",),),
    ("import", "megatron-bridge"): (("mb.yaml",),),
    ("import", "deepspeed"): (("ds.json", "--model", "j.yaml", "--gpus", "8"),),
    ("import", "accelerate"): (("acc.yaml", "--model", "j.yaml"),),
    ("import", "axolotl"): (("ax.yaml", "--model", "j.yaml", "--gpus", "8"),),
    ("import", "llama-factory"): (("lf.yaml", "--model", "j.yaml", "--gpus", "8"),),
    ("import", "chakra"): (("et", "c.yaml"),),
    ("export", "chakra"): (("r", "--out", "o"),),
    ("export", "megatron"): (("r",), ("r", "--out", "o.sh")),
    ("export", "nemo"): (("r",), ("r", "--out", "o.yaml")),
    ("export", "megatron-bridge"): (("r",),),
    ("export", "deepspeed"): (("r2",), ("r2", "--out", "o.json")),
    ("export", "torchtitan"): (("rt",), ("rt", "--out", "o.toml")),
    ("list",): (("gpus",), ("kinds",)),
    ("init",): (("o",), ()),
    ("goodput",): (("--step", "5s", "--nodes", "4"),),
    ("schema",): (("workload",),),
    ("lab", "evaluate"): (("--data", "own.csv", "-p", "roofline"),),
    ("lab", "show"): (("-p", "linear"),),
}
"""Of each command a few lines that work, in a folder with the files of `pool`."""
NOT_DRAWN = {
    ("serve",): "it serves until somebody stops it (tests/cli/test_serve.py)",
    ("lab", "train"): "it trains for hours (tests/support/training_tables.py)",
    ("lab", "profile"): "it measures a GPU (tests/lab/test_profiling.py)",
}
"""Commands that are not, and why."""
LONG = frozenset(
    {"api", "plan", "optimize", "validate", "calibrate", "sweep", "jobs", "share", "report", "explain", "compare"}
)
"""Commands that may take as long as what is asked of them: more time than there is is no finding."""
LAUNCHED = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64, "micro_batch_size": 1}
LAUNCHED |= {"vocab_size": 256, "tensor_model_parallel_size": 2, "ffn_hidden_size": "${multiply:4, ${.hidden_size}}"}
"""Settings of `model` in files of NeMo and Megatron-Bridge."""
JOB_CONFIG = """
[model]
name = "qwen3"
flavor = "0.6B"
[training]
local_batch_size = 1
[parallelism]
pipeline_parallel_degree = 2
"""
EXAMPLES = Path(cs.__file__).parents[1] / "docs/examples"
"""Folder of files that pages and tests read."""
NCCL_LOG = """# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  1 on a device  0
#  Rank  1 Group  0 Pid  1 on a device  1
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
       65536         16384     float     sum      -1    30.00    2.18    2.18      0    30.00    2.18    2.18      0
   134217728      33554432     float     sum      -1   900.00  149.13  149.13      0   900.00  149.13  149.13      0
"""
HOST = {"name": "host, megatron-core", "factor": 1.2, "spread": 0.1, "usual_spread": 0.3}
MACHINE = {
    "version": 1,
    "gpu": "h100-sxm",
    "remainder": 0.065,
    "constants": [{**HOST, "keys": {"cluster.node.host.slowdown": 1.2}}],
}


class Parameter(NamedTuple):
    """An option of a command."""

    flag: str
    kind: Any
    """What Typer reads it as."""
    metavar: str
    help: str
    plain: bool
    """Whether it takes no value."""


@cache
def commands() -> dict[Path_, tuple[Parameter, ...]]:
    """Return the options of each command, as the program's own parser has them; those that are called by an old name too."""

    def walk(command: Any, path: Path_) -> Iterator[tuple[Path_, Any]]:
        if hasattr(command, "commands"):
            for name, one in command.commands.items():
                yield from walk(one, (*path, name))
        else:
            yield path, command

    return {path: tuple(map(_parameter, _options(one))) for path, one in walk(typer.main.get_command(app()), ())}


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if one.opts and one.opts[0].startswith("-") and "--help" not in one.opts]


def _parameter(one: Any) -> Parameter:
    longest = max(one.opts, key=len)
    return Parameter(longest, one.type_descriptor.annotation, one.metavar or "", one.help or "", bool(one.is_flag))


@cache
def keys() -> dict[str, dict[str, Any]]:
    """Return the schema of each dotted key of a workload and of a topology."""
    found: dict[str, dict[str, Any]] = {}
    for what in ("workload", "cluster"):
        whole = document(what)  # type: ignore[arg-type]
        top = whole if what == "workload" else whole["else"]
        for key, one in _leaves(top, whole["definitions"], 0):
            found.setdefault(key, one)
    return found


def _leaves(schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the keys below a schema, as dotted keys, with the schema of each; the first item of a list is called 0."""
    if depth > 13:
        return
    inner = [
        *schema.get("anyOf", ()),
        *schema.get("allOf", ()),
        *(schema[key] for key in ("then", "else") if key in schema),
    ]
    if "$ref" in schema:
        inner.append(definitions[schema["$ref"].rpartition("/")[2]])
    for part in inner:
        yield from _leaves(part, definitions, depth + 1)
    below = dict(schema.get("properties", {}))
    if isinstance(schema.get("items"), dict):
        below["0"] = schema["items"]
    for name, one in below.items():
        yield name, one
        yield from ((f"{name}.{key}", found) for key, found in _leaves(one, definitions, depth + 2))


def legal(chance: random.Random, schema: dict[str, Any]) -> Any:  # noqa: PLR0911
    """Return a value that a schema allows, a small one where it is a number; None where it does not say."""
    options = [one for one in (schema, *schema.get("anyOf", ())) if one.keys() & {"enum", "const", "type"}]
    if not options:
        return schema.get("default")
    one = chance.choice(options)
    if "enum" in one or "const" in one:
        return chance.choice(one.get("enum") or [one["const"]])
    match one["type"]:
        case "integer":
            least = int(one.get("minimum", 0))
            return chance.choice([n for n in (0, 1, 2, 4, 8, 16, 64) if n >= least] or [least])
        case "number":
            return chance.choice((0.0, 0.5, 0.85, 1.0, 2.0, 4.0))
        case "boolean":
            return chance.choice((True, False))
        case "string":
            return chance.choice(one.get("examples") or ["x", "auto"])
        case "array":
            return [legal(chance, one.get("items", {})) for _ in range(chance.choice((0, 1, 2)))]
        case "object":
            return {}
    return None


def value(chance: random.Random, option: Parameter, odd: tuple[str, ...]) -> str:
    """Return a word for an option: what its key, type, metavar or help says is legal, or something odd."""
    if chance.random() < 0.3:
        return chance.choice(odd)
    if option.flag == "--set":
        return setting(chance, odd)
    key = next((one.key for one in RUN_OPTIONS if one.flag == option.flag), None)
    if key in keys() and chance.random() < 0.7:
        return ",".join(str(legal(chance, keys()[key])) for _ in range(chance.choice((1, 1, 1, 2))))
    return chance.choice(_words(option))


def _words(option: Parameter) -> list[str]:
    """Return words that the type, the metavar or the help of an option names."""
    kinds = [one for one in (option.kind, *get_args(option.kind)) if one is not type(None)]
    literal = [str(word) for one in kinds if get_origin(one) is Literal for word in get_args(one)]
    if literal:
        return literal
    if any(isinstance(one, type) and issubclass(one, Path) for one in kinds):
        names = [*sorted(path.name for path in Path().iterdir()), "new", "new/deep", "."]
        ending = re.search(r"FILE(\.[\w.]+)", option.metavar)
        return [*names, *([f"new{ending[1]}"] * len(names) if ending else [])]
    said = re.findall(r"(?:such as|default:?|or) ([\w.,:/-]*\w)", option.help)
    said += [word for word in option.metavar.split("|") if re.search(r"[a-z0-9]", word)]
    return said if said and not {int, float} & {*kinds} else ["1", "2", "3", "4", "8", "16", "0.5", "30"]


def setting(chance: random.Random, odd: tuple[str, ...]) -> str:
    """Return a word for `--set`."""
    key = chance.choice(sorted(keys()))
    if chance.random() < 0.1:
        key = f"{key}.{chance.choice(('0', '1', 'x', 'name'))}"
    found = legal(chance, keys()[key]) if key in keys() and chance.random() < 0.7 else chance.choice(odd)
    return f"{key}={found if isinstance(found, str) else json.dumps(found)}"


def drawn(chance: random.Random, path: Path_, odd: tuple[str, ...], most: int = 4) -> list[str]:
    """Return a command line of a command, with none to `most` options beside those that make it work."""
    words = [*path, *chance.choice(BASES[path])]
    options = commands()[path]
    for option in chance.choices(options, k=min(most, chance.choice((0, 1, 1, 2, 2, 2, 3, 4)))) if options else ():
        if option.flag == "--plugins":
            continue  # tests/cli/test_plugins.py has them go wrong
        if option.flag in words and not option.plain and option.flag != "--set":
            words[words.index(option.flag) + 1] = value(chance, option, odd)
        else:
            words += [option.flag] if option.plain else [option.flag, value(chance, option, odd)]
    return words


def pool(place: Path, files: dict[str, Any]) -> None:
    """Write what the lines of `BASES` read into a folder: files, and results that the program itself writes."""
    place.mkdir(parents=True, exist_ok=True)
    more = {
        "m.sh": (EXAMPLES / "train_mixtral.sh").read_text(encoding="utf-8"),
        "t.toml": JOB_CONFIG,
        "n.yaml": {
            "trainer": {"devices": 8, "num_nodes": 1, "precision": "bf16"},
            "model": {**LAUNCHED, "megatron_amp_O2": True},
        },
        "mb.yaml": {
            "model": LAUNCHED,
            "train": {"micro_batch_size": 1, "global_batch_size": 8},
            "dataset": {"seq_length": 64},
        },
        "ds.json": {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}},
        "ax.yaml": {"sequence_len": 128, "adapter": "lora", "lora_r": 8, "lora_target_linear": True, "bf16": "auto"},
        "lf.yaml": {"finetuning_type": "full", "cutoff_len": 128, "bf16": True, "deepspeed": "ds.json"},
        "acc.yaml": {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {"fsdp_version": 2}},
        "trace.json": (EXAMPLES / "trace.json").read_text(encoding="utf-8"),
        "nccl.log": NCCL_LOG,
        "mine.yaml": MACHINE,
        "axes.yaml": {"tp": [1, 2]},
        "costs.yaml": {"power": {"pue": {"value": 1.2}}},
    }
    for name, content in {**files, **more}.items():
        (place / name).write_text(content if isinstance(content, str) else json.dumps(content))
    (place / "runs.csv").write_text(run_of())
    shutil.copy(Path(cs.__file__).parent / "planning/reliability.yaml", place / "reliability.yaml")
    for words in (
        ("run", *PAIR, "--out", "r", "-q"),
        ("run", *PAIR, "--pp", "1", "--out", "r2", "-q"),
        ("sweep", *PAIR, "--nodes", "1,2", "--tp", "1,2", "--workers", "1", "--out", "s", "-q"),
        ("export", "chakra", "r", "--out", "et", "-q"),
        ("import", "torchtitan", "t.toml", "--gpus", "8", "--out", "t.yaml"),
        ("run", "c.yaml", "t.yaml", "--out", "rt", "-q"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "clustersim", *words], cwd=place, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def run_of() -> str:
    """Return the shipped table of measured runs with its first row alone."""
    table = Path(cs.__file__).parent / "validate/published_runs.csv"
    return "".join(table.read_text(encoding="utf-8").splitlines(keepends=True)[:2])


def named(place: Path, words: list[str]) -> list[Path]:
    """Return the files of a folder that a command line names, those inside folders too, and what a result was made of."""
    found = []
    for word in words:
        path = place / word
        if word and "/" not in word and os.path.lexists(path):
            found += sorted(path.rglob("*")) if path.is_dir() else [path]
    return [path for path in found if path.is_file()]


def call(chance: random.Random, odd: tuple[Any, ...], clusters: tuple[Any, ...], jobs: tuple[Any, ...]) -> object:
    """Call a function of the API with values that its keys can have, or odd ones. Raises ClustersimError."""
    cluster = chance.choice(odd) if chance.random() < 0.1 else chance.choice(clusters)
    job = chance.choice(odd) if chance.random() < 0.1 else chance.choice(jobs)
    engine = {"engine": chance.choice(("auto", "simpy", "static", "x", 3, None))} if chance.random() < 0.5 else {}
    one, several = _keywords(chance, odd, False), _keywords(chance, odd, True)
    name = chance.choice(sorted(FABRICS))
    nodes, node = chance.choice((1, 2, 4, 0, "x", 3.5)), chance.choice(("hgx-h100", {"extends": "hgx-a100"}, 3))
    own = {key.removeprefix("fabric."): value for key, value in one.items() if key.startswith("fabric.")}
    own.pop("nodes", None)  # as the function calls those of the cluster
    tokens, days = chance.choice((1e9, 0, "x", float("nan"), 1e12)), chance.choice((1.0, None, -1, "x"))
    few = {"tp": 2, "schedule": "1f1b", "recompute": "none"}
    small = {**few, "micro_batch": [1, 2]}
    calls: tuple[Callable[[], object], ...] = (
        lambda: cs.simulate(cluster, job, **{**engine, **one}),
        lambda: cs.simulate(cluster, job, **{**engine, **one}),
        lambda: cs.sweep(cluster, job, **{"tp": [1, 2], **engine, **several}),
        lambda: cs.load_cluster(cluster, **one),
        lambda: cs.load_workload(job, **one),
        lambda: cs.optimize(cluster, job, top=chance.choice((1, 2, 0, "x")), **{**small, **several}),
        lambda: getattr(cs, name)(nodes=nodes, node=node, **own),
        lambda: cs.plan(job, **{"tokens": tokens, "days": days, "nodes": 2, "global_batch": 16, **few, **one}),
    )
    return chance.choice(calls)()


def _keywords(chance: random.Random, odd: tuple[Any, ...], several: bool) -> dict[str, Any]:
    """Return keywords that set keys; several: some have a list of values."""
    found: dict[str, Any] = {}
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        option = chance.choice(RUN_OPTIONS)
        key = (
            option.key if chance.random() < 0.5 else chance.choice([one for one in sorted(keys()) if one != "cluster"])
        )
        schema = keys().get(key, {})
        value = legal(chance, schema) if chance.random() < 0.6 else chance.choice(odd)
        name = option.name if key == option.key else key
        found[name] = [value, legal(chance, schema)] if several and chance.random() < 0.5 else value
    return found


FABRICS = frozenset(
    {"fat_tree", "dragonfly", "dragonfly_plus", "torus", "switch", "grid", "rail_optimized", "leaf_spine"}
)
"""Kinds of fabric that are functions."""
