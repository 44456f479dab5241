"""The README and docs/ as programs: what their fenced blocks say is run, in order, in a folder of its own.

`console`: every line `$ command` is run by a shell and its output compared; one line `...` an output stands for any lines,
`...` inside a line for any text. `python`: run as one program a document. A block whose first line says
```` ```python title=name.py ```` is written to that file instead, whatever its language; a pyproject.toml is installed: its
entry points hold for the commands after it.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from doctest import ELLIPSIS, OutputChecker
from io import StringIO
from pathlib import Path

import pytest
from sybil import Document, Region, Sybil

from clustersim import plugins
from clustersim.cli.main import main
from clustersim.figures import canvas
from clustersim.figures.bars import splits
from clustersim.figures.timeline import picture
from clustersim.hardware import gpus
from clustersim.simulation import simulate
from clustersim.sweeps.evaluate import Files, Row, evaluate, load
from clustersim.sweeps.space import points

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("results/README.md")])
PICTURE = ROOT / "docs/images/pipeline.svg"
SPLITS = ROOT / "docs/images/splits.svg"
AXES = {"tp": [4, 8], "pp": [2, 4, 8]}
"""Of the sweep that the README begins with."""
BEST = {
    "tp": [4],
    "pp": [4],
    "cp": [2],
    "vpp": [20],
    "schedule": ["zero_bubble"],
    "zero": [1],
    "parallelism.overlap.tp": ["async"],
    "parallelism.overlap.grad_reduce": [True],
    "parallelism.overlap.param_gather": [True],
    "parallelism.overlap.p2p": [True],
}
"""The split that `optimize` finds for the same model and cluster; a slow test compares them."""
SHARED = ("topologies", "workloads", "docs", "clustersim", "README.md")
_BLOCK = re.compile(r"^```(\w+)(?: title=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WALL = re.compile(r"(?<=events in )[0-9.]+ (s|ms|us)\b")  # how long the simulation took, which no two runs agree on
_SHELL = re.compile(r"[|&;<>$`*?#~\\]")
"""What only a shell understands."""
SCREEN = {"COLUMNS": "120", "NO_COLOR": "1", "CLUSTERSIM_PROGRESS": "0"}
SECONDS = 60
PROJECT = "pyproject.toml"
ROOMS = {
    "kinds of fabric": "topology",
    "schedules": "schedules",
    "placements": "placements",
    "collectives": "collectives",
    "predictors": "predictors",
}
"""What stands in the index of the docs of the rooms whose files are names in YAML."""


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    text: str


@dataclass(frozen=True)
class Command:
    line: str
    expected: str


def prepare(folder: Path) -> Path:
    """Make `folder` look like a checkout; results and files of the documents stay in it."""
    for name in SHARED:
        (folder / name).symlink_to(ROOT / name)
    (folder / "results").mkdir()
    return folder


def blocks(document: Document):
    for match in _BLOCK.finditer(document.text):
        block = Block(match[1], match[2], match[3])
        if block.title or block.language in ("console", "python"):
            yield Region(match.start(), match.end(), block, _evaluate)


def _evaluate(example) -> str | None:
    block, folder = example.parsed, example.namespace["folder"]
    if block.title:
        (folder / block.title).write_text(block.text, encoding="utf-8")
        if block.title == PROJECT:
            _install(folder)
    elif block.language == "python":
        code = compile("\n" * example.line + block.text, example.path, "exec")
        exec(code, example.namespace)
    else:
        return "\n".join(filter(None, (_compare(c, folder) for c in commands(block.text))))
    return None


def _install(folder: Path) -> None:
    """Lay down what `pip install -e .` would: the entry points of the project, beside its modules."""
    project = tomllib.loads((folder / PROJECT).read_text(encoding="utf-8"))["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = (
        "\n".join((f"[{group}]", *(f"{name} = {place}" for name, place in points.items())))
        for group, points in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups) + "\n")


def commands(text: str) -> list[Command]:
    """Return the commands of a console block with the output that stands below each."""
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ""))
        else:
            found[-1] = Command(found[-1].line, f"{found[-1].expected}{line}\n")
    return found


def run(line: str, folder: Path) -> str:
    """Return what a command prints, both streams together, without spaces at the ends of lines.

    A command line of clustersim alone runs in this process, which saves half of its time.
    """
    alone = line.startswith("clustersim ") and not _SHELL.search(line) and not (folder / PROJECT).exists()
    printed = _run_here(shlex.split(line), folder) if alone else _run_in_shell(line, folder)
    return "".join(f"{one.rstrip()}\n" for one in printed.splitlines())


def _run_here(words: list[str], folder: Path) -> str:
    out = StringIO()
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        contextlib.suppress(SystemExit),
    ):
        patched.chdir(folder)
        patched.setattr(sys, "argv", words)
        for name, value in SCREEN.items():
            patched.setenv(name, value)
        main()
    return out.getvalue()


def _run_in_shell(line: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **SCREEN}
    if (folder / PROJECT).exists():
        environment["PYTHONPATH"] = str(folder)
    return subprocess.run(
        line, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, timeout=SECONDS, check=False,
    ).stdout  # fmt: skip


def same(expected: str, printed: str) -> bool:
    one, two = _WALL.sub("moments", expected), _WALL.sub("moments", printed)
    return OutputChecker().check_output(one, two, ELLIPSIS)


def _compare(command: Command, folder: Path) -> str | None:
    printed = run(command.line, folder)
    if same(command.expected, printed):
        return None
    return (
        f"$ {command.line}\nexpected:\n{command.expected}\nprinted:\n{printed}\n"
        "if what is printed is right, run scripts/update-docs"
    )


def draw() -> str:
    """Return the README's timeline."""
    files = ROOT / "topologies/nvlink_h100_4.yaml", ROOT / "docs/examples/pipeline.yaml"
    result = simulate(*files, {"predictor": "roofline"})
    return canvas.svg(picture(result.record, result.plan, f"{result.job.name} on {result.topology.name}"))


def rows_of_splits() -> list[Row]:
    """Return the rows of the sweep that the README begins with, then that of the best of all splits."""
    files = Files(str(ROOT / "topologies/superpod_h100_128.yaml"), str(ROOT / "workloads/llama3_70b.yaml"), {})
    case = load(files)
    return [evaluate(case, point) for point in (*points(AXES), *points(BEST))]


def draw_splits() -> str:
    """Return the picture that the README begins with."""
    *rows, best = rows_of_splits()
    batch = f"{best['global_batch']} sequences of {best['seq']:,} tokens, {best['precision']}"
    what = f"where one step of {batch} goes, on the mean of {best['gpus']:,} GPUs"
    title = "Llama 3 70B on 128 nodes of 8 H100: the best of all splits, and six usual ones"
    return canvas.svg(splits([*rows, best], title, what))


NAMES = re.compile(r"(?<=<!-- begin names -->\n).*?(?=<!-- end names -->)", re.DOTALL)


def names_table() -> str:
    """Return the table of what there is: each name is a file, and nobody has to list it."""
    rooms = {what: sorted(plugins.names(f"clustersim.{room}")) for what, room in ROOMS.items()}
    files = {what: [path.stem for path in sorted(ROOT.glob(f"{what}/*.y*ml"))] for what in ("topologies", "workloads")}
    rows = {**files, **rooms, "GPUs": sorted(gpu.name for gpu in gpus.everything())}
    lines = (f"| {what} | {', '.join(f'`{name}`' for name in names)} |" for what, names in rows.items())
    return "\n".join(("| what | names |", "| --- | --- |", *lines, ""))


def parse(page: Path, folder: Path) -> Document:
    document = Sybil(parsers=[blocks], path=str(ROOT)).parse(page)
    document.namespace["folder"] = folder
    return document


def refreshed(page: Path, folder: Path) -> str:
    """Return a page with the outputs of its commands as they are now; what `...` hides stays hidden."""
    document = parse(page, folder)
    text, offset = document.text, 0
    for example in document.examples():
        if example.parsed.language != "console" or example.parsed.title:
            example.evaluate()
            continue
        new = "".join(_refreshed(c, folder) for c in commands(example.parsed.text))
        block = f"```console\n{new}```"
        text = text[: example.region.start + offset] + block + text[example.region.end + offset :]
        offset += len(block) - (example.region.end - example.region.start)
    return text


def _refreshed(command: Command, folder: Path) -> str:
    printed = run(command.line, folder)
    if same(command.expected, printed):
        return f"$ {command.line}\n{command.expected}"
    if "Traceback (most recent call last)" in printed:
        raise RuntimeError(f"$ {command.line}\n{printed}")
    head, dots, tail = command.expected.partition("\n...\n")
    lines = printed.splitlines()
    if dots:
        first, last = len(head.splitlines()), len(tail.splitlines())
        lines = [*lines[:first], "...", *(lines[-last:] if last else [])]
    return "\n".join((f"$ {command.line}", *lines, ""))
