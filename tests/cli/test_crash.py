"""However a command ends (full disk, closed streams, Ctrl-C, kill -9), what is finished stays and nothing is left behind."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import command as ran

from clustersim.sweeps import log

ROOT = Path(__file__).parents[2]
NODE = str(ROOT / "topologies" / "hgx_h100_8.yaml")
JOB = str(ROOT / "workloads" / "gpt3_xl.yaml")
FAST = ["--predictor", "roofline", "--global-batch", "64"]
RUN = ["run", NODE, JOB, *FAST]
SWEEP = ["sweep", NODE, JOB, "--predictor", "roofline", "--tp", "1,2,4,8", "--pp", "1,2", "--micro-batch", "1,2,4"]
COMMANDS = {
    "run": [*RUN, "--no-save"],
    "run --json": [*RUN, "--no-save", "--json"],
    "share": ["share", NODE, JOB, *FAST, "--no-save"],
    "show": ["show", NODE],
    "show --schedule": ["show", "--schedule", "1f1b"],
    "kernels": ["kernels", JOB],
    "collective": ["collective", "all_reduce", "-t", NODE],
    "predict": ["predict", JOB, "--gpu", "h100", "--predictor", "roofline"],
    "list": ["list", "gpus"],
    "predictor show": ["predictor", "show"],
    "--help": ["--help"],
}
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals and streams of POSIX")]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "clustersim", *arguments]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
"""Bytecode that a full disk cuts short would stay."""


def limited(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def done(arguments: list[str], folder: Path, **more: object) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, **more}
    return subprocess.run(
        command(*arguments), cwd=folder, text=True, env=ENVIRONMENT, check=False, timeout=60, **options
    )


@pytest.mark.parametrize(
    "arguments", [RUN, [*SWEEP, "--workers", "1"], ["share", NODE, JOB, *FAST]], ids=lambda a: a[0]
)
def test_a_disk_that_is_full_is_one_sentence_and_leaves_the_old_result(tmp_path, arguments):
    """By `ulimit -f`, which fails as a full disk does, in the middle of any file."""
    most = 4096 if arguments[0] == "sweep" else 3072  # some points, and less than the summary
    full = done([*arguments, "--out", "x"], tmp_path, preexec_fn=lambda: limited(most))
    assert (full.returncode, full.stdout, full.stderr.count("\n")) == (1, "", 1)
    assert "x: cannot be written (File too large); make room, or choose another place with --out" in full.stderr
    if arguments[0] == "sweep":  # what is finished stays
        assert len(log.read(tmp_path / "x")[1]) >= 2
    else:
        assert not list(tmp_path.iterdir())
    ran(*arguments, "--out", "x", "-q", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    before = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    assert done([*arguments, "--out", "x", "-q"], tmp_path, preexec_fn=lambda: limited(most)).returncode == 1
    after = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    assert {name: after[name] for name in before if name != "manifest.json"} == {
        name: text for name, text in before.items() if name != "manifest.json"
    }


@pytest.mark.parametrize("arguments", [[*SWEEP, "--workers", "1"], ["validate", "runs.csv"]], ids=lambda a: a[0])
def test_a_disk_that_is_full_before_there_is_a_row_leaves_no_folder(tmp_path, arguments):
    """The manifest is written whole, and nothing of the first row's line fits."""
    if arguments[0] == "validate":
        table = (ROOT / "clustersim/validate/published_runs.csv").read_text(encoding="utf-8")
        (tmp_path / "runs.csv").write_text("".join(table.splitlines(keepends=True)[:2]))
    asked = done([*arguments, "--out", "x"], tmp_path, preexec_fn=lambda: limited(900))
    assert (asked.returncode, asked.stdout, asked.stderr.count("\n")) == (1, "", 1)
    assert "x: cannot be written (File too large); make room" in asked.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"] * (arguments[0] == "validate")


@pytest.mark.parametrize("out", ["new", "empty", "new/deep"])
def test_a_disk_that_is_full_leaves_no_part_of_execution_traces(tmp_path, out):
    (tmp_path / "empty").mkdir()
    ran(*RUN, "--out", "r", "-q", cwd=tmp_path)
    asked = ["export", "chakra", "r", "--out", out]
    full = done(asked, tmp_path, preexec_fn=lambda: limited(600))
    assert (full.returncode, full.stdout, full.stderr.count("\n")) == (1, "", 1)
    assert f"{out}: cannot be written (File too large)" in full.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "r"]
    ran(*asked, cwd=tmp_path)
    assert (tmp_path / out / "comm_groups.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("size", [64, 96])  # full in the log, and in what is written at the end
def test_a_sweep_on_a_full_file_system_goes_on_when_there_is_room(tmp_path, size):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", small]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        asked = [*SWEEP, "--global-batch", "64,128", "--workers", "1", "--out", "small/x"]
        full = done(asked, tmp_path)
        assert (full.returncode, full.stdout, full.stderr.count("\n")) == (1, "", 1)
        assert "small/x: cannot be written (No space left on device); make room" in full.stderr
        kept = len(log.read(small / "x")[1])
        assert kept >= 20
        subprocess.run(["mount", "-o", "remount,size=4m", small], check=True)
        assert f", {kept} of them before" in done(asked, tmp_path).stdout
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_pipe_whose_reader_has_gone_is_silent(tmp_path, arguments):
    read, write = os.pipe()
    os.close(read)
    process = done(arguments, tmp_path, capture_output=False, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", [RUN, [*SWEEP[:-2], "--workers", "2"], ["show", "none.yaml"]], ids=lambda a: a[0])
def test_closed_streams(tmp_path, arguments, closed):
    line = f'"$@" {closed}'
    process = subprocess.run(
        ["bash", "-c", line, "bash", *command(*arguments)], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    right = 2 if arguments[0] == "show" else 0
    assert process.returncode == right
    assert (process.stderr == "") == (right == 0 or "2>&-" in closed)
    assert "Traceback" not in process.stderr
    assert process.stdout == "" if right or ">&- 2" in closed or closed == ">&-" else process.stdout


START = """\
import sys
class Say:
    def find_spec(self, name, path=None, target=None):
        if name == "clustersim.cli.app":
            print("imports", flush=True)
sys.meta_path.insert(0, Say())
from clustersim.cli.main import main
main()
"""


def interrupted(folder: Path, seconds: float) -> tuple[int, str]:
    """Return exit code and stderr of a run that gets Ctrl-C so long after its imports began."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, *RUN],
        cwd=folder,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    return process.wait(30), process.communicate(timeout=30)[1]


def test_ctrl_c_while_modules_are_imported(tmp_path):
    for seconds in (0.0, 0.02, 0.05, 0.1, 0.15, 0.2):
        assert interrupted(tmp_path, seconds) == (130, "clustersim: interrupted\n")
    assert not list(tmp_path.iterdir())


def killed(arguments: list[str], folder: Path, seconds: float) -> None:
    """Start a command and kill it, or let it end before."""
    process = subprocess.Popen(
        command(*arguments), cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def whole(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def moments(folder: Path, arguments: list[str], count: int) -> list[float]:
    """Return random moments of a command, most of them while it writes: in its last part."""
    begun = time.monotonic()
    assert done([*arguments, "--out", "warm", "-q"], folder).returncode == 0
    took = time.monotonic() - begun
    shutil.rmtree(folder / "warm")
    draw = random.Random(3)
    return [took * draw.uniform(0.5, 1.1) for _ in range(count)]


def test_kill_9_of_a_run_keeps_the_old_or_the_new_result(tmp_path):
    a, b = [*RUN, "--out", "x", "--force"], [*RUN, "--micro-batch", "2", "--out", "x", "--force"]
    ran(*b, "-q", cwd=tmp_path)
    new = whole(tmp_path / "x")
    ran(*a, "-q", cwd=tmp_path)
    old = whole(tmp_path / "x")
    for seconds in moments(tmp_path, RUN, 30):
        killed(b, tmp_path, seconds)
        ran(*RUN, "--out", "y", "-q", cwd=tmp_path)  # the next run beside it
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]
        found = whole(tmp_path / "x")
        assert found in (old, new)
        if found != old:
            ran(*a, "-q", cwd=tmp_path)
