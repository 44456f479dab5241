"""However a validation ends (full disk, kill -9, a second one at its folder), what is finished stays, the rest is done anew."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from until import until
from validate_cases import write

from clustersim.report.store import question_of
from clustersim.validate import log, run
from clustersim.writing import LOCK

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and streams of POSIX")
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "clustersim", "validate", "runs.csv", "--workers", "1", "--out", "x"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def table(folder, runs):
    write(folder / "runs.csv", *({"id": f"MINE-{i}", "layers": str(4 * i + 4)} for i in range(runs)))


def done(folder, *more, **options):
    return subprocess.run(
        [*COMMAND, *more], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60, **options
    )  # fmt: skip


def lines(folder):
    path = folder / "x/runs.jsonl"
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def test_a_disk_that_is_full_is_one_sentence_and_what_is_finished_stays(tmp_path):
    """By `ulimit -f`, which fails as a full disk does, in the middle of any file."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    table(tmp_path, 5)
    full = done(tmp_path, preexec_fn=limited)
    assert (full.returncode, full.stdout, full.stderr.count("\n")) == (1, "", 1)
    assert "x: cannot be written (File too large); make room, or choose another place with --out" in full.stderr
    kept = lines(tmp_path)
    assert kept
    assert done(tmp_path, "-q").returncode == 0
    assert lines(tmp_path)[: len(kept)] == kept
    assert len(lines(tmp_path)) == 5
    before = {name: (tmp_path / "x" / name).read_bytes() for name in ("runs.parquet", "report.html")}
    assert done(tmp_path, preexec_fn=limited).returncode == 1
    assert {name: (tmp_path / "x" / name).read_bytes() for name in before} == before


def test_one_that_was_killed_goes_on_where_it_was_and_keeps_a_second_one_away(tmp_path):
    table(tmp_path, 40)
    with subprocess.Popen(
        COMMAND, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as first:
        until(lambda: len(lines(tmp_path)) >= 2)
        first.send_signal(signal.SIGSTOP)
        second = done(tmp_path)
        assert (second.returncode, second.stdout, second.stderr.count("\n")) == (2, "", 1)
        assert f"x: is being written by process {first.pid} on " in second.stderr
        first.send_signal(signal.SIGKILL)
    kept = lines(tmp_path)
    assert len(kept) < 40
    last = done(tmp_path, "--json")
    assert last.returncode == 0, last.stderr
    assert lines(tmp_path)[: len(kept)] == kept
    assert [one["id"] for one in json.loads(last.stdout)["runs"]] == [f"MINE-{i}" for i in range(40)]
    assert not (tmp_path / "x" / LOCK).exists()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text[:-20], id="torn at the end"),
        pytest.param(lambda text: text[:50] + text[120:], id="torn in the middle"),
        pytest.param(lambda text: b"\xff\x00\n[1]\n" + text, id="foreign"),
        pytest.param(lambda text: text.replace(b'"architecture"', b'"architektur"', 1), id="of another release"),
        pytest.param(lambda text: text.replace(b'"status": "ok"', b'"status": "failed"', 1), id="failed"),
    ],
)
def test_a_damaged_line_is_cut_out_and_its_run_done_anew(tmp_path, damage):
    table(tmp_path, 2)
    asked = question_of("validate", {}, {}, {})
    with log.opened(tmp_path / "x", asked) as kept:
        run.simulate(run.load([tmp_path / "runs.csv"]), [], 1, kept)
    path = tmp_path / "x/runs.jsonl"
    good = path.read_bytes()
    path.write_bytes(damage(good))
    with log.opened(tmp_path / "x", asked) as kept:
        assert len(kept.known) in (1, 2)
        run.simulate(run.load([tmp_path / "runs.csv"]), [], 1, kept)
    assert sorted(lines(tmp_path)) == sorted(good.split(b"\n")[:-1])
