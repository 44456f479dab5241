"""GPUs and variables of launchers: headers of Slurm, PBS and LSF, `srun`, `flux run`, `jsrun`, `torchrun`, `deepspeed`, `mpirun`.

Sources: tables/launchers.csv and tables/launch_options.csv; DeepSpeed's launcher/runner.py, accelerate's launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clustersim.convert.table import records

_HEADER = re.compile(r"^#(SBATCH|PBS|BSUB)[ \t]+(.*)$", re.MULTILINE)
_RESOURCE = re.compile(r"[ :+,\"']+(?=\w+=)")
"""Pattern of what precedes a resource in a header: `-l select=4:ngpus=8` of PBS, `-gpu "num=8:mode=shared"` of LSF."""
_LAST = re.compile(r"(?:^|[:\-])(\d{1,7})$")
"""Pattern of the number at the end of `8`, `a100:8`, `gpu:a100:8` or a range of nodes such as `4-8`."""


def _names(table: str, launcher: str) -> dict[str, str]:
    """Return {variable or option of a launcher: option by Slurm's name}. table: `launchers` (variables) or `launch_options`."""
    return {row["name"]: row["option"] for row in records(table) if launcher in row["launcher"].split()}


class LaunchSettings(NamedTuple):
    """Processes and GPUs requested by a launcher."""

    variables: Mapping[str, str]
    """Environment variables that the launcher sets, by name."""
    nodes: int | None = None
    """Number of nodes; None if unknown."""
    gpus: int | None = None
    """GPUs per node; None if unknown."""


def of_header(text: str) -> LaunchSettings:
    """Return the launch settings in the `#SBATCH`, `#PBS` or `#BSUB` lines of a script."""
    lines = _HEADER.findall(text)
    scheduler = next((name.lower() for name, _ in lines), "")
    words = [word for _, line in lines for word in _RESOURCE.sub(" --", line.partition(" #")[0]).split()]
    return _launch(_options(words, scheduler), scheduler)


def of_command(words: Sequence[str]) -> LaunchSettings:
    """Return the launch settings of a launcher command, such as `srun` or `python -m torch.distributed.run`."""
    names = [word.rsplit("/", 1)[-1] for word in words]
    flux = "srun" if names[:2] == ["flux", "run"] else ""  # Flux has the same letters, and most of the long names
    if launcher := next((name for name in names if name in ("srun", "jsrun", "mpirun", "mpiexec")), flux):
        return _launch(_options(words, launcher), launcher)
    if any(name.startswith(("torchrun", "torch.distributed", "deepspeed", "accelerate")) for name in names):
        options = _options(words, "torchrun")
        if any(name.startswith("accelerate") for name in names) and "--config" not in " ".join(words):
            options.setdefault("nodes", 1)  # accelerate's default, if no configuration file has another
        return _launch(options, "torchrun")
    return LaunchSettings({})


def _options(words: Sequence[str], launcher: str) -> dict[str, int]:
    """Return {option by Slurm's long name: number at the end of its value}, without options that lack one or have 0."""
    numbers: dict[str, int] = {}
    names = _names("launch_options", launcher)
    for name, value in _pairs(words):
        key = names.get(name, name)
        key = "gpus-per-node" if key == "gres" and value.startswith("gpu") else key
        number = _LAST.search(value)
        if number and int(number[1]):
            numbers[key] = int(number[1])
    return numbers


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of a command: `--nodes=4`, `--nodes 4`, `-N 4` and `-N4` give ("nodes" or "N", "4")."""
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        attached = re.fullmatch(r"([A-Za-z])(\d+)", name) if not word.startswith("--") else None
        if attached:
            yield attached[1], attached[2]
        else:
            yield name.replace("_", "-"), value if equals else after


def _launch(numbers: Mapping[str, int], launcher: str) -> LaunchSettings:
    """Return the settings of a launcher for {option by Slurm's name: number}; missing numbers follow from products of others."""
    counts = dict(numbers)
    for total, part, each in (
        ("gpus", "sets", "gpus-per-set"),
        ("gpus-per-node", "sets-per-node", "gpus-per-set"),
        ("ntasks", "sets", "ntasks-per-set"),
        ("ntasks-per-node", "sets-per-node", "ntasks-per-set"),
        ("ntasks", "nodes", "ntasks-per-node"),
        ("gpus", "nodes", "gpus-per-node"),
        ("gpus-per-node", "ntasks-per-node", "gpus-per-task"),
    ):
        if part in counts and each in counts:
            counts.setdefault(total, counts[part] * counts[each])
        elif total in counts and part in counts and counts[total] % counts[part] == 0:
            counts.setdefault(each, counts[total] // counts[part])
        elif total in counts and each in counts and counts[total] % counts[each] == 0:
            counts.setdefault(part, counts[total] // counts[each])
    gpus = counts.get("gpus-per-node", counts.get("ntasks-per-node"))
    variables = {name: str(counts[key]) for name, key in _names("launchers", launcher).items() if key in counts}
    return LaunchSettings(variables, counts.get("nodes"), gpus)
