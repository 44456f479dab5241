"""The same figures under every Python: `sum` of floats rounds otherwise from 3.12 on, `math.fsum` is exact under all."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "run": "run topologies/hgx_h100_8.yaml workloads/mixtral_8x7b.yaml --ignore-memory --no-save --json --tp 1 --pp 2 --ep 2"
    " --global-batch 16 --set training.expert_imbalance=1.3",
    "chunks": "run topologies/superpod_h100_128.yaml workloads/llama3_70b.yaml --no-save --json --set training.recompute=full"
    " --set parallelism.vpp=2 --set parallelism.schedule=interleaved",
    "share": "share docs/examples/oversubscribed.yaml docs/examples/gradients.yaml docs/examples/gradients.yaml"
    " --placement spread --no-save --json",
    "predict": "predict docs/examples/gpt2.json --gpu t4 --mode training --batch 1 --seq 128 --json --per-kernel",
    "fused": "predict docs/examples/gpt2.json --gpu a100 --fusion --batch 1 --seq 128 --json",
    "kernels": "kernels workloads/gpt2_large.yaml --gpu a100 --json",
    "collective": "collective all_reduce --topology topologies/hgx_h100_8.yaml --end 1M --json",
    "show": "show topologies/explicit_8.yaml --json",
    "schedule": "show --schedule interleaved --stages 4 --chunks 3 --microbatches 8 --json",
}
WATCHED = """
import builtins, math, sys
plain = builtins.sum

def naive(values, start=0):
    for value in values:
        start = start + value
    return start

def watched(values, /, start=0):
    values = list(values)
    kinds = {type(value) for value in values}
    if float in kinds and kinds <= {float, int}:
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__", "").startswith("clustersim"):
            print(f"sum of floats at {frame.f_code.co_filename}:{frame.f_lineno}", file=sys.stderr)
    return naive(values, start)

builtins.sum = watched
from clustersim.cli.app import app
for command in sys.argv[1:]:
    app()(command.split(), standalone_mode=False)
"""


def test_no_sum_of_floats_reaches_a_figure():
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *COMMANDS.values()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def others():
    """Other Pythons of this machine in which the project can run."""
    for name in ("python3.11", "python3.12", "python3.13", "python3.14"):
        path = shutil.which(name)
        if path and not sys.version.startswith(name.removeprefix("python")):
            test = [path, "-c", "import clustersim.simulation, simpy, pydantic, typer"]
            if not subprocess.run(test, cwd=ROOT, capture_output=True, check=False).returncode:
                yield path


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_python_gives_the_same_bytes(command):
    found = list(others())
    if not found:
        pytest.skip("no other Python of this machine has what clustersim needs")

    def figures(python):
        done = subprocess.run(
            [python, "-m", "clustersim", *command.split()], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    assert all(figures(python) == figures(sys.executable) for python in found)


def test_ci_runs_what_a_developer_runs_under_every_python_from_the_oldest_on():
    [job] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    pythons = job["strategy"]["matrix"]["python"]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert oldest == f">={pythons[0]}"
    assert [f"3.{int(pythons[0].partition('.')[2]) + i}" for i in range(len(pythons))] == pythons
    assert pythons[-1] == "3.14"
