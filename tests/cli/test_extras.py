"""What an installation brings: the wheel's files, and commands that go without PyTorch or say how to get it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from clustersim import extras

ROOT = Path(__file__).parents[2]
REMEDY = 'needs PyTorch, which is not installed; run pip install "clustersim[torch]"\n'
SPLIT = "--set parallelism.dp=1 --set training.global_batch=4 --set training.micro_batch=1 --set predictor=roofline"
FORECASTS = [  # the commands of one process
    [
        f"run hgx_h100_8 gpt3_2.7b --tp 2 {SPLIT} --no-save",
        "jobs hgx_h100_8 gpt2_large --set predictor=roofline --no-save",
        f"sweep hgx_h100_8 gpt3_2.7b --tp 1,2 {SPLIT} --quiet",
        "show hgx_h100_8",
        "schedule 1f1b",
        "kernels gpt3_2.7b --gpu h100",
        "collective all_reduce --topology hgx_h100_8 -b 1M -e 1M",
    ],
    [f"predict {model} --gpu h100 --seq 64" for model in ("config.json", "gpt2_large")],
    ["lab show"],
]
CONFIG = '{"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2, "n_positions": 64, "vocab_size": 100}'


@pytest.mark.parametrize(
    "arguments",
    [
        ["lab", "train", "neusight"],
        ["lab", "train", "habitat"],
        ["lab", "profile"],
        ["predict", "mine.py:model", "--gpu", "h100"],
    ],
    ids=" ".join,
)
def test_commands_that_need_torch_say_how_to_get_it(arguments, tmp_path, monkeypatch, call):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    (tmp_path / "own.csv").touch()
    monkeypatch.setenv("CLUSTERSIM_DATA", "own.csv")  # what training reads is there; PyTorch is not
    (tmp_path / "mine.py").write_text("import torch\n", encoding="utf-8")
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("clustersim: ")
    assert err.endswith(REMEDY)
    assert err.count("\n") == 1


@pytest.mark.parametrize("lines", FORECASTS, ids=lambda lines: lines[0].split()[0])
def test_forecasts_need_neither_torch_nor_the_lab(lines, tmp_path):
    (tmp_path / "config.json").write_text(CONFIG, encoding="utf-8")
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom clustersim.cli.main import main\n"
        "for line in sys.argv[1:]:\n    sys.argv = ['clustersim', *line.split()]\n"
        "    try:\n        main()\n    except SystemExit as end:\n        assert not end.code, line\n"
        "print('modules:', *sys.modules)\n"
    )
    command = [sys.executable, "-c", code, *lines]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = done.stdout.rpartition("modules: ")[2].split()
    assert "clustersim.cli.main" in found
    assert not {"networkx", "transformers", "pandas", "scipy"} & {*found}
    assert lines == ["lab show"] or not [name for name in found if name.startswith("clustersim.lab")]
    assert not lines[0].startswith("predict") or not {"polars", "simpy", "rich"} & {*found}


def test_torch_is_an_extra_and_part_of_what_tests_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not [one for one in project["dependencies"] if one.startswith("torch")]
    assert project["optional-dependencies"]["torch"] == ["torch>=2.6,<2.14"]
    assert "clustersim[torch,plots,ray,serve,docs]" in project["optional-dependencies"]["dev"]


def built(folder, root):
    pytest.importorskip("hatchling", reason="hatchling is not installed (extra `dev`)")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=root)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("dist"), ROOT)


def test_the_lab_is_a_distribution_of_its_own(wheel, tmp_path):
    """A forecast's wheel has none of it, the lab's has nothing else, and without it `clustersim lab` says what to install."""
    house = {path.relative_to(ROOT).as_posix() for path in (ROOT / "clustersim").rglob("*.py")}
    lab = {path for path in house if path.startswith("clustersim/lab/")}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    assert names == house - lab
    own = zipfile.ZipFile(built(tmp_path, ROOT / "lab")).namelist()
    assert {name for name in own if name.endswith(".py")} == lab
    assert "clustersim/lab/model_card.md" in own
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); from clustersim.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "lab", "show"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install clustersim-lab" in done.stderr


def test_the_wheel_holds_shipped_files_and_says_that_it_is_typed(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    rooms = [path for room in ("topologies", "workloads") for path in (ROOT / room).glob("*.y*ml")]
    assert {f"clustersim/_data/{path.parent.name}/{path.name}" for path in rooms} <= names
    assert {
        "clustersim/py.typed",
        "clustersim/cli/templates/cluster.yaml",
        "clustersim/cli/templates/workload.yaml",
    } <= names


def test_bare_names_work_from_the_wheel_alone(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    code = "from clustersim.topology.build import load; import clustersim; print(load('mi300x_128').name, clustersim.__file__)"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["mi300x-16", str(tmp_path / "site/clustersim/__init__.py")]
