"""GPUs and variables of launchers: Slurm's header and `srun`, `flux run`, `torchrun`, `deepspeed`, `accelerate`, `mpirun`.

Sources: man pages of Slurm's sbatch and srun (INPUT and OUTPUT ENVIRONMENT VARIABLES) and of flux-run, torch/distributed/run.py,
OpenMPI's FAQ ("What environment variables will be set in MPI processes?"), DeepSpeed's launcher/runner.py, accelerate's launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clustersim.convert.table import records

_HEADER = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_LAST = re.compile(r"(?:^|[:\-])(\d{1,7})$")
"""Pattern of the number at the end of `8`, `a100:8`, `gpu:a100:8` or a range of nodes such as `4-8`."""
_SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "g": "gpus-per-task", "c": "cpus-per-task"}
_MPI = {"np": "ntasks", "n": "ntasks", "npernode": "ntasks-per-node", "N": "ntasks-per-node", "ppn": "ntasks-per-node"}
_TORCH = {"nproc-per-node": "gpus-per-node", "nnodes": "nodes", "num-gpus": "gpus-per-node", "num-nodes": "nodes"}
_TORCH |= {"num-machines": "nodes", "num-processes": "gpus"}


def _variables(launcher: str) -> dict[str, str]:
    """Return {environment variable: option by Slurm's name} of a launcher."""
    return {row["variable"]: row["option"] for row in records("launchers") if row["launcher"] == launcher}


class LaunchSettings(NamedTuple):
    """Processes and GPUs requested by a launcher."""

    variables: Mapping[str, str]
    """Environment variables that the launcher sets, by name."""
    nodes: int | None = None
    """Number of nodes; None if unknown."""
    gpus: int | None = None
    """GPUs per node; None if unknown."""


def of_header(text: str) -> LaunchSettings:
    """Return the launch settings in the `#SBATCH` lines of a script."""
    words = [word for line in _HEADER.findall(text) for word in line.partition(" #")[0].split()]
    return _launch(_options(words, _SHORT, {}), _variables("srun")) if words else LaunchSettings({})


def of_command(words: Sequence[str]) -> LaunchSettings:
    """Return the launch settings of a launcher command, such as `srun` or `python -m torch.distributed.run`."""
    names = [word.rsplit("/", 1)[-1] for word in words]
    if "srun" in names or names[:2] == ["flux", "run"]:  # Flux has the same letters, and most of the long names
        return _launch(_options(words, _SHORT, {"tasks-per-node": "ntasks-per-node"}), _variables("srun"))
    if "mpirun" in names or "mpiexec" in names:
        return _launch(_options(words, _MPI, _MPI), _variables("mpirun"))
    if any(name.startswith(("torchrun", "torch.distributed", "deepspeed", "accelerate")) for name in names):
        found = _options(words, {}, _TORCH)
        if any(name.startswith("accelerate") for name in names) and "--config" not in " ".join(words):
            found.setdefault("nodes", 1)  # accelerate's default, if no configuration file has another
        return _launch(found, _variables("torchrun"))
    return LaunchSettings({})


def _options(words: Sequence[str], short: Mapping[str, str], long: Mapping[str, str]) -> dict[str, int]:
    """Return {Slurm's long name: number} of options; `short` and `long` map the names of other launchers."""
    found: dict[str, int] = {}
    for name, value in _pairs(words):
        key = long.get(name, name) if len(name) > 1 else short.get(name, name)
        key = "gpus-per-node" if key == "gres" and value.startswith("gpu") else key
        number = _LAST.search(value)
        if number and int(number[1]):
            found[key] = int(number[1])
    return found


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of a command: `--nodes=4`, `--nodes 4`, `-N 4` and `-N4` give ("nodes" or "N", "4")."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        joined = re.fullmatch(r"([A-Za-z])(\d+)", name) if not word.startswith("--") else None
        if joined:
            yield joined[1], joined[2]
        else:
            yield name.replace("_", "-"), value if equals else after


def _launch(said: Mapping[str, int], names: Mapping[str, str]) -> LaunchSettings:
    """Return the launch settings for given numbers, with derived ones added. `names`: variables of each number."""
    found = dict(said)
    for whole, part, each in (
        ("ntasks", "nodes", "ntasks-per-node"),
        ("gpus", "nodes", "gpus-per-node"),
        ("gpus-per-node", "ntasks-per-node", "gpus-per-task"),
    ):
        if part in found and each in found:
            found.setdefault(whole, found[part] * found[each])
        elif whole in found and part in found and found[whole] % found[part] == 0:
            found.setdefault(each, found[whole] // found[part])
        elif whole in found and each in found and found[whole] % found[each] == 0:
            found.setdefault(part, found[whole] // found[each])
    gpus = found.get("gpus-per-node", found.get("ntasks-per-node"))
    variables = {name: str(found[key]) for name, key in names.items() if key in found}
    return LaunchSettings(variables, found.get("nodes"), gpus)
