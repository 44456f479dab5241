"""Options that several commands share: the files, the form of output, and workload keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clustersim import plugins
from clustersim.cli.commands import OptionGroup, parameter
from clustersim.config.options import Option
from clustersim.config.shipped import Room, files, find, renamed
from clustersim.errors import InputError
from clustersim.parallel.options import FLAGS, RUN_OPTIONS
from clustersim.report.table import fitted
from clustersim.topology import options as cluster_keys
from clustersim.writing import check_output

if TYPE_CHECKING:
    from clustersim.costs.figures import Figures
    from clustersim.simulation import Progress


def topology_file(name: str) -> Path:
    """Return the file of a topology; print a note on standard error if it was named by an old name."""
    path, new = find("topologies", name), renamed("topologies", name)
    if new:
        note = f"{name} is now called {new}, as the number counts nodes; the old name still works"
        typer.echo(f"clustersim: {note}", err=True)
    return path


def model_file(name: str) -> str:
    """Return the argument of `predict`: the file of a shipped workload for its bare name, anything else unchanged."""
    return str(files("workloads")[name]) if name in files("workloads") and not Path(name).exists() else name


def completing(room: Room) -> Callable[[str], list[str]]:
    """Return the shell completion of shipped names; if none matches, shells complete paths."""

    return lambda incomplete: [name for name in files(room) if name.startswith(incomplete)]


TOPOLOGY: dict[str, Any] = {
    "metavar": "TOPOLOGY",
    "help": "A topology file, or the name of a shipped one, such as fattree_3840.",
    "parser": topology_file,
    "autocompletion": completing("topologies"),
}
"""Properties of an argument or an option that names a topology."""
TopologyFile = Annotated[Path, TOPOLOGY]
WORKLOAD: dict[str, Any] = {
    "metavar": "WORKLOAD",
    "help": "A workload file, the name of a shipped one, such as gpt3, or a model's config.json.",
    "parser": lambda given: find("workloads", given),
    "autocompletion": completing("workloads"),
}
WorkloadFile = Annotated[Path, WORKLOAD]
ResultFolder = Annotated[Path, "The folder that `clustersim run` wrote.", "RESULT"]


def quantity(flag: str, text: str, dimension: str) -> float:
    """Return the SI value of a text of option `flag`, such as 60 for `60s`, dimension `time`. Raises InputError for others."""
    from clustersim.units import parse

    try:
        return parse(text, dimension)
    except InputError as error:
        raise InputError(f"{flag}: {error}") from error


_TIME = {"parser": lambda text: quantity("--within", text, "time")}
Within = Annotated[float | None, "Time limit, such as 60s.", "TIME", _TIME]
Force = Annotated[bool, "Let --out replace the result of another question."]
NoSave = Annotated[bool, "Write no files."]
NoFold = Annotated[bool, "Simulate every rank, also identical ones."]
ObjectiveName = Literal["soonest", "rent", "owned", "gpus", "energy"]
"""Names of objectives, `optimization.objective.OBJECTIVES`, which is imported only by commands that search."""
Unlikely = Annotated[
    bool, "Include splits unlikely to fit: under half of published runs at their memory level succeeded."
]
IgnoreMemory = Annotated[bool, "Continue if a job does not fit."]
EngineName = Annotated[
    Literal["auto", "simpy"], "simpy: the reference; auto: the event loop, faster with the same result."
]
Setting = Annotated[
    list[str] | None, "Override a key, such as training.clip_gradients=false or cluster.nodes=64.", "KEY=VALUE", "--set"
]
Settings = Annotated[
    list[str] | None,
    "Override a key; values separated by commas are all tried, auto means all legal ones.",
    "KEY=VALUE",
    "--set",
]
Workers = Annotated[int | None, "Number of processes; default: one per core.", {"min": 1, "max": 1024}]
Blocking = Annotated[bool, "Steps wait while a checkpoint is written."]
ReliabilityFile = Annotated[
    Path | None, "A YAML file of failures, restarts and storage, instead of the defaults.", "FILE"
]
CostsOption = Annotated[Path | None, "A YAML file of prices, power and carbon, instead of the defaults.", "FILE"]
MachineOption = Annotated[
    Path | None, "Measured constants of this cluster: a file of `clustersim calibrate`.", "FILE.yaml"
]


def _workload(workload: Path | None, model: Path | None) -> Path:
    """Return the file of a workload, or of a model instead. Raises InputError for none and for both."""
    if workload is None and model is None:
        raise InputError("Missing argument 'WORKLOAD'; give a workload, or a model's config.json with --model")
    if workload is not None and model is not None:
        raise InputError(f"--model {model}: and the workload {workload} exclude each other; give one of them")
    return workload or model  # type: ignore[return-value]


_MODEL = Annotated[Path | None, "A model's config.json, instead of a workload.", "FILE", {"parser": WORKLOAD["parser"]}]
_FILES = [parameter("workload", Annotated[Path | None, WORKLOAD], positional=True), parameter("model", _MODEL)]
WorkloadOrModel = Annotated[Path, OptionGroup(_FILES, _workload)]
"""File of a workload, or of `--model`."""


RUN: Mapping[str, Option] = {one.name: one for one in RUN_OPTIONS}
"""Options of `run` that set a key, by name; other commands reuse their help and example values."""


def key_options(options: Sequence[Option], lists: bool = False) -> OptionGroup:
    """Return options of keys, whose value is {dotted key: value, or None}. lists: whether they take several, with commas."""

    def key_option(option: Option) -> Any:
        """Return the parameter of one option."""
        kind = str if lists or option.form in ("word", "degree") else int
        shown = {"help": option.what, "metavar": option.values if lists else None}
        flags = "--seq --sequence" if option.name == "seq" else option.flag
        return parameter(option.name, Annotated[kind | None, shown, flags])

    keys = {option.name: option.key for option in options}
    return OptionGroup([*map(key_option, options)], lambda **values: {keys[name]: values[name] for name in keys})


def change_options(keys: Sequence[Option]) -> OptionGroup:
    """Return the options of keys, and `--set`; their value is {dotted key: value} of what is given."""
    group, setting = key_options(keys), parameter("settings", Setting)
    return OptionGroup([*group.options, setting], lambda settings, **values: overrides(group.value(**values), settings))


RunChanges = Annotated[dict[str, Any], change_options(RUN_OPTIONS)]
"""Changes of a topology and a workload."""
SweptKeys = Annotated[dict[str, Any], key_options(RUN_OPTIONS, lists=True)]
"""Options of the keys of a topology and a workload, each with one or several values as text; None if not given."""
ClusterChanges = Annotated[dict[str, Any], change_options(cluster_keys.OPTIONS)]
"""Changes of a topology."""


def _permit(context: typer.Context, texts: list[str] | None) -> list[str] | None:
    """Permit the plugins named by `--plugins` until the command ends. Return `texts`."""
    names = [part.strip() for text in texts or () for part in text.split(",") if part.strip()]
    context.with_resource(plugins.permitted(*names))
    return texts


def naming(option: str) -> AbstractContextManager[None]:
    """Add the option to errors about an unknown name, or a failing plugin, that it gave."""
    return plugins.named_by(lambda text: InputError(f"{option}: {text}"))


Plugins = Annotated[
    list[str] | None,
    "Permit outside code, such as mine:build; separated by commas, or repeated.",
    "MODULE:NAME",
    "--plugins",
    {"callback": _permit},
]


@dataclass(frozen=True)
class CommandOutput:
    """Options for the output of a command, and for the outside code that it may run."""

    plugins: Plugins = None
    as_json: Annotated[bool, "Print JSON instead of text.", "--json"] = False
    out: Annotated[Path | None, "Also write the JSON of the answer here.", "FILE.json", "-o"] = None
    verbose: Annotated[bool, "Also print memory by kind, links, and the errors of kernel times.", "-v"] = False
    brief: Annotated[bool, "Print the three numbers and warnings alone."] = False
    quiet: Annotated[bool, "Print only errors.", "-q"] = False

    def progress(self) -> AbstractContextManager[Progress]:
        """Show the current phase of the command on standard error, unless only errors or JSON are printed."""
        from clustersim.cli.progress import progressing

        return progressing(self.silent)

    @property
    def silent(self) -> bool:
        """Whether no progress is shown."""
        return self.quiet or self.as_json

    def check_file(self, *inputs: Path) -> None:
        """Raise InputError if the file of --out cannot be written, or is one of the input files."""
        if self.out:
            check_output("--out", self.out, (".json",), inputs)

    def show(self, command: str, data: Callable[[], Mapping[str, Any]], lines: Callable[[], Iterable[str]]) -> None:
        """Write the JSON of a result to --out and print it with --json; print its lines of text unless --quiet or --json.
        `data` (the fields of the JSON) and `lines` are called only if their result is needed."""
        if self.as_json or self.out:
            from clustersim.cli.answer import print_json

            print_json(command, data(), self.out, self.as_json)
        if not self.silent:
            self.say(*lines())

    def show_saved(
        self, command: str, summary: Mapping[str, Any], lines: Callable[[], Iterable[str]], folder: Path | None
    ) -> None:
        """Print the result of a simulation, its summary or its lines of text, and the folder that it was saved in."""
        from clustersim.report.trace import left_out

        where = [f"written to {folder}/ (open trace.json.gz at https://ui.perfetto.dev)"] if folder else []
        self.show(command, lambda: summary, lambda: [*lines(), *where, *(left_out(summary) if folder else ())])

    def say(self, *lines: str) -> None:
        """Print lines of text unless --quiet or --json, wrapped where a terminal is narrower."""
        if not self.silent:
            typer.echo("\n".join(fitted(lines)))


FullOutput = Annotated[CommandOutput, ("plugins", "as_json", "verbose", "brief", "quiet")]
SearchOutput = Annotated[CommandOutput, ("plugins", "out", "as_json", "quiet")]
StandardOutput = Annotated[CommandOutput, ("plugins", "as_json", "quiet")]
JsonOutput = Annotated[CommandOutput, ("plugins", "as_json")]
TextOutput = Annotated[CommandOutput, ("plugins", "quiet")]


@dataclass(frozen=True)
class Prices:
    """Options for prices, power and carbon."""

    price: Annotated[float | None, "Rent in USD per GPU-hour; default by GPU (docs/planning.md).", "USD"] = None
    costs: CostsOption = None

    def figures(self) -> Figures | None:
        """Return prices, power and carbon; None if neither option is given. Raises InputError for an invalid file or price."""
        if self.costs is None and self.price is None:
            return None
        from clustersim.costs.figures import load

        return load(self.costs, self.price)


PriceOptions = Annotated[Prices, ()]


def overrides(changes: Mapping[str, object | None], settings: Sequence[str] | None) -> dict[str, object]:
    """Return {dotted key: value} of the options in `changes`, then of `--set`. Raises InputError for a key set by both."""
    by_option = {key: value for key, value in changes.items() if value is not None}
    by_set = by_key(settings)
    for key in by_option.keys() & by_set.keys():
        both = f"{FLAGS[key]} {by_option[key]} and --set {key}={by_set[key]}"
        raise InputError(f"{both} set the same key; give one of the two")
    return by_option | by_set


def on_machine(
    machine: Path | None,
    topology: Path,
    changes: Mapping[str, object],
    axes: Mapping[str, Sequence[object]] | None = None,
) -> dict[str, object]:
    """Return overrides by dotted key with a machine file's. axes: keys with several values. Raises InputError if it is unfit."""
    if machine is None:
        return dict(changes)
    from clustersim.calibration.machine import Machine

    measured, several = Machine.read(machine), axes or {}
    measured_values: dict[str, object] = {}
    for gpu in several.get("cluster.gpu", [None]):
        point = {key: values[0] for key, values in several.items()} | ({"cluster.gpu": gpu} if gpu is not None else {})
        measured_values = measured.overrides(topology, {**changes, **point})
    return {key: value for key, value in measured_values.items() if key not in several}


def by_key(settings: Sequence[str] | None) -> dict[str, str]:
    """Return {key: value} of `--set key=value` options. Raises InputError for another form, and for a key given twice."""
    by_name: dict[str, str] = {}
    for text in settings or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise InputError(f"--set {text!r} has no value; write key=value, such as training.recompute=full")
        if key in by_name:
            raise InputError(f"--set {key} is given twice, as {by_name[key]} and as {value}; keep one of them")
        by_name[key] = value
    return by_name
