"""Options that several commands share: the files, the form of output, and workload keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clustersim import plugins
from clustersim.config.options import Option
from clustersim.config.shipped import Room, files, find, renamed
from clustersim.errors import InputError
from clustersim.parallel.options import FLAGS, OPTIONS
from clustersim.topology import options as cluster_keys

if TYPE_CHECKING:
    from clustersim.costs.figures import Figures


def topology_file(given: str) -> Path:
    """Return the file of a topology; print a note on standard error if it was named by an old name."""
    path, new = find("topologies", given), renamed("topologies", given)
    if new:
        typer.echo(
            f"clustersim: {given} is now called {new}, as the number counts nodes; the old name still works", err=True
        )
    return path


def workload_file(given: str) -> Path:
    """Return the file of a workload, or of several jobs."""
    return find("workloads", given)


def model_file(given: str) -> str:
    """Return the argument of `predict`: the file of a shipped workload for its bare name, anything else unchanged."""
    return str(files("workloads")[given]) if given in files("workloads") and not Path(given).exists() else given


def completing(room: Room) -> Callable[[str], list[str]]:
    """Return the shell completion of shipped names; if none matches, shells complete paths."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in files(room) if name.startswith(incomplete)]

    return complete


TopologyFile = Annotated[
    Path,
    typer.Argument(
        metavar="TOPOLOGY",
        help="A topology file, or the name of a shipped one, such as fattree_3840.",
        parser=topology_file,
        autocompletion=completing("topologies"),
    ),
]
WorkloadFile = Annotated[
    Path,
    typer.Argument(
        metavar="WORKLOAD",
        help="A workload file, the name of a shipped one, such as gpt3, or a model's config.json.",
        parser=workload_file,
        autocompletion=completing("workloads"),
    ),
]
ModelFile = Annotated[
    Path | None,
    typer.Option("--model", help="A model's config.json, instead of a workload.", parser=workload_file, metavar="FILE"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
Force = Annotated[bool, typer.Option("--force", help="Let --out replace the result of another question.")]
NoSave = Annotated[bool, typer.Option("--no-save", help="Write no files.")]
NoFold = Annotated[bool, typer.Option("--no-fold", help="Simulate every rank, also identical ones.")]
Unlikely = Annotated[
    bool,
    typer.Option(
        "--unlikely",
        help="Include splits unlikely to fit: under half of published runs at their memory level succeeded.",
    ),
]
IgnoreMemory = Annotated[bool, typer.Option("--ignore-memory", help="Continue if a job does not fit.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print memory by kind, links, and the errors of kernel times.")
]
EngineName = Annotated[
    Literal["auto", "simpy"],
    typer.Option("--engine", help="simpy: the reference; auto: the event loop, faster with the same result."),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Override a key, such as training.clip_gradients=false or cluster.nodes=64.", metavar="KEY=VALUE"
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a key; values separated by commas are all tried, auto means all legal ones.",
        metavar="KEY=VALUE",
    ),
]
RentOption = Annotated[
    float | None, typer.Option(help="Rent in USD per GPU-hour; default by GPU (docs/planning.md).", metavar="USD")
]
ReliabilityFile = Annotated[
    Path | None,
    typer.Option(help="A YAML file of failures, restarts and storage, instead of the defaults.", metavar="FILE"),
]
CostsOption = Annotated[
    Path | None, typer.Option(help="A YAML file of prices, power and carbon, instead of the defaults.", metavar="FILE")
]
MachineOption = Annotated[
    Path | None,
    typer.Option(
        "--machine", help="Measured constants of this cluster: a file of `clustersim calibrate`.", metavar="FILE.yaml"
    ),
]
Changes = dict[str, Any]
"""Values of options for topology and workload keys, by dotted key; None if an option is not given."""


def workload_options(lists: bool, cluster: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's parameter `changes: Changes` by options for the keys of a workload.

    lists: whether an option takes several values, separated by commas, as one text. cluster: whether to include the topology's.
    """
    return _key_options((*(cluster_keys.OPTIONS if cluster else ()), *OPTIONS), lists)


def cluster_options() -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the same decorator for a command that has a topology and no workload."""
    return _key_options(cluster_keys.OPTIONS, lists=False)


def _key_options(options: Sequence[Option], lists: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for one in own.parameters.values():
            parameters += _replaced(one, options, lists)

        @wraps(command)
        def taken(**given: Any) -> None:
            changes = {option.key: given.pop(option.name) for option in options}
            if "model" in given:
                given["workload"] = _workload(given["workload"], given.pop("model"))
            command(**given, changes=changes)

        taken.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        taken.__annotations__ = {one.name: one.annotation for one in parameters}
        return taken

    return decorate


def _replaced(one: inspect.Parameter, options: Sequence[Option], lists: bool) -> list[inspect.Parameter]:
    """Return the parameters that replace one: options for `changes`, and a workload or --model for `workload`."""
    if one.name == "changes":
        return [_parameter(option, lists) for option in options]
    if one.annotation != WorkloadFile:
        return [one]
    argument = Annotated[Path | None, *WorkloadFile.__metadata__]
    model = inspect.Parameter("model", one.kind, default=None, annotation=ModelFile)
    return [one.replace(annotation=argument, default=None), model]


def _workload(given: Path | None, model: Path | None) -> Path:
    """Return the file of a workload, or of a model instead. Raises InputError for none and for both."""
    if given is None and model is None:
        raise InputError("Missing argument 'WORKLOAD'; give a workload, or a model's config.json with --model")
    if given is not None and model is not None:
        raise InputError(f"--model {model}: and the workload {given} exclude each other; give one of them")
    return given or model  # type: ignore[return-value]


def _parameter(option: Option, lists: bool) -> inspect.Parameter:
    kind = str if lists or option.form in ("word", "degree") else int
    shown = typer.Option(*_flags(option), help=option.what, metavar=option.values if lists else None)
    annotation = Annotated[kind | None, shown]  # type: ignore[valid-type]
    return inspect.Parameter(option.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def _flags(option: Option) -> tuple[str, ...]:
    return (option.flag, "--sequence") if option.name == "seq" else (option.flag,)


def _permit(context: typer.Context, given: list[str] | None) -> list[str] | None:
    """Permit the plugins named by `--plugins` until the command ends."""
    context.with_resource(plugins.permitted(*plugins.strings(given or ())))
    return given


def naming(option: str) -> AbstractContextManager[None]:
    """Add the option to errors about an unknown name, or a failing plugin, that it gave."""
    return plugins.named_by(lambda text: InputError(f"{option}: {text}"))


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugins",
        callback=_permit,
        help="Permit outside code, such as mine:build; separated by commas, or repeated.",
        metavar="MODULE:NAME",
    ),
]


def overrides(changes: Mapping[str, object | None], settings: Sequence[str] | None) -> dict[str, object]:
    """Return the overrides of a command line: options that were given, then every `--set key=value`. Raises InputError."""
    given = {key: value for key, value in changes.items() if value is not None}
    found = by_key(settings)
    for key in given.keys() & found.keys():
        raise InputError(
            f"{FLAGS[key]} {given[key]} and --set {key}={found[key]} set the same key; give one of the two"
        )
    return given | found


def on_machine(
    machine: Path | None,
    topology: Path,
    given: Mapping[str, object],
    axes: Mapping[str, Sequence[object]] | None = None,
) -> dict[str, object]:
    """Return the overrides by dotted key, together with those of a machine file. Raises InputError if the file does not apply.

    axes: keys with several values, which must all describe the measured cluster.
    """
    if machine is None:
        return dict(given)
    from clustersim.calibration.machine import Machine

    measured, several = Machine.read(machine), axes or {}
    found: dict[str, object] = {}
    for gpu in several.get("cluster.gpu", [None]):
        point = {key: values[0] for key, values in several.items()} | ({"cluster.gpu": gpu} if gpu is not None else {})
        found = measured.overrides(topology, {**given, **point})
    return {key: value for key, value in found.items() if key not in several}


def figures(costs: Path | None, price: float | None) -> Figures | None:
    """Return the prices, power and carbon given by a command line; None for the defaults. Raises InputError."""
    from clustersim.costs.figures import load

    return None if costs is None and price is None else load(costs, price)


def words(option: str, text: str) -> tuple[str, ...]:
    """Return the parts of an option between its commas. Raises InputError if there are none."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise InputError(f"--{option}: no value; write a list with commas between")
    return parts


def by_key(settings: Sequence[str] | None) -> dict[str, str]:
    """Return {key: value} of `--set key=value` options. Raises InputError for another form, and for a key given twice."""
    found: dict[str, str] = {}
    for text in settings or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise InputError(f"--set {text!r} has no value; write key=value, such as training.recompute=full")
        if key in found:
            raise InputError(f"--set {key} is given twice, as {found[key]} and as {value}; keep one of them")
        found[key] = value
    return found
