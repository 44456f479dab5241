"""Formats of other tools: `clustersim import` takes launch files or Chakra traces, `clustersim export` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.cli import options
from clustersim.cli.answer import emphasis
from clustersim.cli.commands import CommandGroup
from clustersim.cli.results import rank_numbers
from clustersim.errors import ConfigError, InputError
from clustersim.files import read_text
from clustersim.writing import check_output, new_folder, save, unwritable, write

if TYPE_CHECKING:
    from clustersim.convert.megatron_script import Imported


OUT = "Write it here; default: print it."
YamlFile = Annotated[Path | None, OUT, "FILE.yaml", "-o"]
LaunchFile = Annotated[Path | None, OUT, "FILE", "-o"]
ImportSetting = Annotated[list[str] | None, "Override a key of the workload.", "KEY=VALUE", "--set"]
app = CommandGroup(
    help="Take a step from another tool: a launch script or job config as a workload, or execution traces to play."
)


@app.command()
def megatron(
    script: Annotated[
        Path, "A shell script that launches pretrain_gpt.py or its kin, or a model_config.yaml.", "SCRIPT"
    ],
    arguments: Annotated[
        list[str] | None,
        "The script's own arguments, as it would be called with; -- before one that begins with a dash.",
        "ARGUMENT …",
    ] = None,
    *,
    out: YamlFile = None,
    variables: Annotated[
        list[str] | None, "A variable of the environment, or an argument by its number.", "NAME=VALUE", "--var"
    ] = None,
    settings: ImportSetting = None,
) -> None:
    """Write a workload from a launch script of Megatron-LM, and say what was ignored and what assumed.

    The script is read, never run.
    """
    from clustersim.convert.megatron_script import ImportRequest, imported

    called = {str(number): value for number, value in enumerate(arguments or (), 1)}
    for text in variables or ():
        name, equals, value = text.partition("=")
        if not equals or not (name.isidentifier() or name.isdecimal()):
            such = "NNODES=16, or 1=dlc for the script's first argument"
            raise InputError(f"--var {text!r}: write NAME=VALUE, such as {such}")
        called[name] = value
    request = ImportRequest(called, _values(settings))
    _answer(script, imported(str(script), read_text(script, "a shell script"), request), out)


@dataclass(frozen=True)
class SettingsFile:
    """Options of the commands that read a settings file of another tool."""

    config: Annotated[Path, "The settings of the run.", "FILE"]
    model: Annotated[str | None, "The model's config.json, or a workload with its shapes.", "FILE"] = None
    gpus: Annotated[int | None, "Number of GPUs, if the file does not state it.", {"min": 1}] = None
    recipe: Annotated[str | None, "The function of a recipe in Python; default: the file's only one.", "NAME"] = None
    out: YamlFile = None
    settings: ImportSetting = None


SETTINGS: Mapping[str, tuple[str, ...]] = {
    "torchtitan": ("a job config of torchtitan v0.2 or earlier in TOML", "gpus"),
    "nemo": ("a launch file of NeMo up to 1.23 in YAML",),
    "megatron-bridge": (
        "Megatron-Bridge's ConfigContainer, in YAML such as its run_config.yaml, or a recipe in Python",
        *("model", "recipe"),
    ),
    "deepspeed": ("a DeepSpeed configuration in JSON", "model", "gpus"),
    "accelerate": ("an accelerate configuration in YAML", "model", "gpus"),
    "axolotl": ("an axolotl configuration in YAML", "model", "gpus"),
    "llama-factory": ("a LLaMA-Factory configuration in YAML", "model", "gpus"),
}
"""{tool: its settings file in words, and fields of SettingsFile besides `out` and `settings`}"""


def _importer(tool: str, file: str, *names: str) -> None:
    """Add the command that reads the settings file of a tool. names: fields of SettingsFile besides `out` and `settings`."""

    def command(request: SettingsFile) -> None:
        from clustersim.api.launch import imported
        from clustersim.convert.megatron_script import ImportRequest

        wanted = ImportRequest({}, _values(request.settings), request.model, request.gpus, request.recipe)
        text = read_text(request.config, file)
        _answer(request.config, imported(tool, str(request.config), text, wanted), request.out)

    command.__annotations__["request"] = Annotated[SettingsFile, ("config", *names, "out", "settings")]
    app.command(tool, help=f"Write a workload from {file}, and say what was ignored and what assumed.")(command)


for _tool, _file in SETTINGS.items():
    _importer(_tool, *_file)


def _values(settings: list[str] | None) -> dict[str, object]:
    """Return the values of `--set` by dotted key."""
    from clustersim.config.overrides import scalar

    return {key: scalar(key, value) for key, value in options.by_key(settings).items()}


def _answer(source: Path, imported: Imported, out: Path | None) -> None:
    """Write the workload from another tool's file and report what it leaves out, or print both. Raises InputError if invalid."""
    import yaml

    from clustersim.config.yaml import parse
    from clustersim.convert.megatron_script import lines
    from clustersim.parallel.load import build
    from clustersim.report.terminal import wrapped

    if out:
        check_output("--out", out, (".yaml", ".yml"), (source,))
    text = str(yaml.safe_dump(imported.workload, sort_keys=False, allow_unicode=True, width=120))
    try:
        build(parse(text, str(out or source)))
    except ConfigError as error:
        raise InputError(f"{source}: {error.message}; --set changes a key of the workload") from error
    notes = [part for line in lines(imported) for part in wrapped(line)]
    if out:
        save(out, text)
        typer.echo("\n".join([*notes, f"written to {out}"]))
    else:
        typer.echo("".join(f"# {line}\n" for line in notes) + text, nl=False)


@app.command()
def chakra(
    traces: Annotated[Path, "Chakra execution traces NAME.RANK.et of all ranks, with comm_groups.json.", "FOLDER"],
    topology: options.TopologyFile,
    *,
    roofline: Annotated[bool, "Compute times by this cluster's rooflines from FLOP and bytes."] = False,
    trace: Annotated[Path | None, "Write a trace for Perfetto.", "FILE.json.gz"] = None,
    no_fold: options.NoFold = False,
    changes: options.ClusterChanges,
    output: options.StandardOutput,
) -> None:
    """Play Chakra execution traces on a cluster, rank i on GPU i, and say how long the step takes and why."""
    from clustersim.convert.chakra import read
    from clustersim.engine.chakra import replay_tasks
    from clustersim.engine.replay import replay
    from clustersim.report.replay import facts, lines, write_trace
    from clustersim.topology.build import load

    if trace:
        check_output("--trace", trace, (".gz",))
    with output.progress() as progress:
        progress("load")
        cluster = load(topology, changes)
        trace_set = read(traces)
        tasks = replay_tasks(trace_set, cluster, roofline)
        progress("simulate")
        record = replay(cluster, tasks, fold=not no_fold)
        summary = facts(cluster, trace_set, tasks, record)
        if trace:
            write_trace(trace, summary, record)
    output.show("import chakra", lambda: summary, lambda: lines(summary, emphasis()))


export_app = CommandGroup(help="Write a result in the format of another tool.")


def _exporter(tool: str, file: str, says: str, *endings: str) -> None:
    """Add the command that writes a result's job as the launch file of a tool; says: what the file is made of."""
    back = f"`clustersim import {tool}` reads the same job from it, except for these keys."

    @export_app.command(tool, help=f"Write {file} for a result's job, and say what {says} cannot. {back}")
    def _export(
        result: options.ResultFolder,
        *,
        out: LaunchFile = None,
        output: Annotated[options.CommandOutput, ("plugins",)],
    ) -> None:
        from clustersim.api.launch import differences, read_back, written
        from clustersim.question import StoredRun

        if out:
            check_output("--out", out, endings)
        stored = StoredRun.of(result)
        with stored.holding():
            cluster = stored.question.cluster
            job = stored.question.job.place(cluster.gpus, cluster.gpus_per_node)
        text = written(tool, job, cluster.gpus_per_node)
        missing = differences(job, read_back(tool, text, job))
        notes = [f"not said by {says}: {key}: {value}" for key, value in missing]
        if out:
            save(out, text)
            typer.echo("\n".join([*notes, f"written to {out}"]))
        else:
            typer.echo(text + "".join(f"# {line}\n" for line in notes), nl=False)


_exporter("megatron", "the script of Megatron-LM", "Megatron-LM's arguments", ".sh", ".bash")
_exporter("nemo", "the launch file of NeMo 1.23", "NeMo's settings", ".yaml", ".yml")
_exporter("megatron-bridge", "overrides of a recipe of Megatron-Bridge", "its ConfigContainer", ".yaml", ".yml")
_exporter("torchtitan", "the job config of torchtitan v0.2", "torchtitan's settings", ".toml")
_exporter("deepspeed", "the DeepSpeed configuration", "DeepSpeed's settings", ".json")


@export_app.command("chakra")
def export_chakra(
    result: options.ResultFolder,
    *,
    out: Annotated[Path, "A new or empty folder.", "FOLDER", "-o"],
    ranks: Annotated[str, "all, or numbers such as 0,8-15.", "RANKS"] = "all",
    output: options.TextOutput,
) -> None:
    """Write the step of a result as Chakra execution traces: NAME.RANK.et for each rank, and comm_groups.json.

    Kernels between two collectives are one node with the seconds that are forecast for them.
    """
    from clustersim.convert.chakra import GROUPS, encoded
    from clustersim.engine.compile import families_of
    from clustersim.question import StoredRun
    from clustersim.report.chakra import RankTrace, group_ranks
    from clustersim.report.store import write_json

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: is there and not an empty folder; choose a new one")
    with output.progress() as progress:
        run = StoredRun.of(result).again(progress)
        wanted = rank_numbers(ranks, run.job.mesh.size)
        families = families_of(run.work, run.topology)
        try:
            with new_folder(out) as place:
                for rank in wanted:
                    progress(f"rank {rank}")
                    write(place / f"step.{rank}.et", encoded(RankTrace(run.plan, rank, families).written()))
                write_json(place / GROUPS, group_ranks(families))
        except OSError as error:
            raise unwritable(out, error) from error
    output.say(f"{len(wanted)} execution traces written to {out}/")
