"""`clustersim schema` and `clustersim init`: JSON Schema of the YAML files, and files to begin with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from clustersim import plugins
from clustersim.errors import InputError
from clustersim.writing import save, unwritable

FileKind = Literal["cluster", "workload", "jobs", "gpu", "machine"]
JsonSchema = dict[str, Any]
TEMPLATES = Path(__file__).with_name("templates")
FILES: Mapping[FileKind, str] = {"cluster": "cluster.yaml", "workload": "workload.yaml"}
"""Name of the file that `init` writes for each kind."""


def schema(
    what: Annotated[FileKind, "cluster, workload, jobs, gpu or machine.", "WHAT", {"show_default": False}],
) -> None:
    """Print the JSON Schema of a kind of YAML file, for editors: every key, its values, its unit and what it means."""
    typer.echo(json.dumps(document(what), indent=1))


def init(
    folder: Annotated[Path, "Folder to write to; created if missing.", "FOLDER"] = Path(),
    *,
    schemas: Annotated[bool, "Also write JSON Schemas, for editors that complete and check."] = False,
    force: Annotated[bool, "Replace existing files."] = False,
) -> None:
    """Write a commented cluster and workload that run as they are."""
    texts = {name: (TEMPLATES / name).read_text(encoding="utf-8") for name in FILES.values()}
    if schemas:
        for what, name in FILES.items():
            texts[name] = f"# yaml-language-server: $schema={what}.schema.json\n{texts[name]}"
            texts[f"{what}.schema.json"] = json.dumps(document(what), indent=1) + "\n"
    there = [name for name in texts if (folder / name).exists() or (folder / name).is_symlink()]
    if there and not force:
        raise InputError(f"{folder / there[0]}: is there already; give another folder, or replace it with --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    for name, text in texts.items():
        save(folder / name, text)
    prefix = "" if folder == Path() else f"{folder}/"
    typer.echo(f"written: {', '.join(prefix + name for name in texts)}")
    typer.echo(f"now:     clustersim run {prefix}cluster.yaml {prefix}workload.yaml")


def document(what: FileKind) -> JsonSchema:
    """Return the JSON Schema of a kind of file, with all built-in and installed names."""
    from clustersim.config.json_schema import DRAFT

    return {"$schema": DRAFT, "title": f"clustersim {what}", **_DOCUMENTS[what]()}


def _cluster() -> JsonSchema:
    """Return the schema of a topology file, of ASTRA-sim's network.yml too."""
    from clustersim.config.json_schema import definitions
    from clustersim.config.topology import Node, TopologySpec
    from clustersim.convert.astra_sim import AstraNetwork
    from clustersim.convert.override import presets
    from clustersim.hardware import gpus

    modules = {kind: import_module(module) for kind, module in plugins.names("clustersim.topology").items()}
    specs = {kind: spec for kind, module in modules.items() if (spec := getattr(module, "SPEC", None)) is not None}
    boards = [name for gpu in gpus.everything() for name in (gpu.name, *gpu.aliases)]
    schemas = definitions(TopologySpec, AstraNetwork, Node, *dict.fromkeys(specs.values()))
    schemas["Gpus"]["properties"]["model"] |= _one_of(boards, r"\.ya?ml$")
    complete = {"if": {"not": {"required": ["extends"]}}, "then": {"required": schemas["Node"]["required"]}}
    for part in ("Gpus", "Nics", "ScaleUp", "NodePower", "Node"):  # keys that a node extends may supply the rest
        schemas[part].pop("required", None)
    schemas["Node"] |= complete
    types = {"anyOf": [{"enum": list(presets())}, {"type": "string"}, _ref("Node")]}
    schemas["Cluster"]["properties"]["node"] |= types
    top = schemas.pop("TopologySpec")
    top["properties"]["nodes"] |= {"additionalProperties": _ref("Node")}
    cases = [
        {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": _ref(spec.__name__)}
        for kind, spec in specs.items()
    ]
    kinds = {"properties": {"kind": _one_of(_names("topology"))}, "allOf": cases}
    fabric = {"type": "object", "required": ["kind"], **kinds}
    top["properties"]["fabric"] |= {"anyOf": [fabric, {"type": "null"}]}
    foreign = {"anyOf": [{"required": ["npus_count"]}, {"required": ["topology"]}]}
    return {"if": foreign, "then": _ref("AstraNetwork"), "else": top, "definitions": schemas}


def _workload() -> JsonSchema:
    """Return the schema of a workload file, with Megatron's names of its keys; a file with one needs none of ours."""
    from clustersim.config.json_schema import definitions
    from clustersim.config.workload import Workload
    from clustersim.convert.megatron import ALIASES, NO_EFFECT, NOT_MODELLED, REMEDIES
    from clustersim.convert.megatron_groups import GROUPED
    from clustersim.frameworks.table import everything

    schemas = definitions(Workload)
    for group in schemas["Algorithms"]["properties"].values():
        group.update(_one_of(["nccl", *_names("collectives")]))
    schemas["Parallelism"]["properties"]["schedule"] |= _one_of(_names("schedules"))
    frameworks = [framework.name for framework in everything()]
    schemas["Training"]["properties"]["framework"] |= {"anyOf": [{"enum": frameworks}, {"type": "null"}]}
    top = schemas.pop("Workload")
    top["properties"]["predictor"] |= _one_of(_names("predictors"))
    arguments = sorted({*ALIASES, *REMEDIES, *GROUPED, *NO_EFFECT, *NOT_MODELLED})
    name = f"^({'|'.join(argument.replace('_', '[-_]') for argument in arguments)})$"
    ours, needed = {"propertyNames": {"not": _ref("Megatron")}}, {}
    for section in ("Model", "Training", "Parallelism"):
        required = schemas[section].pop("required", [])
        schemas[section]["patternProperties"] = {name: {"description": "An argument of Megatron-LM."}}
        needed[section.lower()] = {"if": ours, "then": {"required": required}}
    schemas["Megatron"] = {"description": "Names of arguments of Megatron-LM.", "pattern": name}
    then = {"required": top.pop("required"), "properties": needed}
    aliases = {"patternProperties": {name: {"description": "An argument of Megatron-LM."}}}
    return {**top, **aliases, "required": ["name"], "if": ours, "then": then, "definitions": schemas}


def _single_spec(module: str, name: str) -> JsonSchema:
    """Return the schema of a file whose keys are the fields of one spec of `clustersim.config`."""
    from clustersim.config.json_schema import definitions

    schemas = definitions(getattr(import_module(f"clustersim.config.{module}"), name))
    return {**schemas.pop(name), "definitions": schemas}


_DOCUMENTS: Mapping[FileKind, Callable[[], JsonSchema]] = {
    "cluster": _cluster,
    "workload": _workload,
    "jobs": partial(_single_spec, "jobs", "Jobs"),
    "gpu": partial(_single_spec, "gpu", "Gpu"),
    "machine": partial(_single_spec, "machine", "MachineSpec"),
}


def _names(room: str) -> list[str]:
    """Return the names of the plugins of a room, built in or installed."""
    return [*plugins.names(f"clustersim.{room}"), *plugins.installed(f"clustersim.{room}")]


def _one_of(names: Iterable[str], pattern: str = r"^[\w.]+:\w+$") -> JsonSchema:
    """Return the schema of a name: a known one, or text of another form, such as `package.module:build`."""
    return {"anyOf": [{"enum": list(names)}, {"type": "string", "pattern": pattern}]}


def _ref(name: str) -> JsonSchema:
    """Return a reference to the schema of a spec in `definitions`."""
    return {"$ref": f"#/definitions/{name}"}
