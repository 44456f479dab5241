"""Sweeps that are cut into parts or killed at any moment come to the table of one that was left alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import polars as pl
import pytest

from clustersim.errors import InputError
from clustersim.sweeps.run import Shard

ROOT = Path(__file__).parents[2]
AXES = ["--tp", "1,2", "--pp", "1,2", "--micro-batch", "1,2,4", "--recompute", "auto", "--predictor", "roofline"]
SWEEP = ["sweep", "nvlink_h100_4", "gpt3_xl", "--set", "training.global_batch=16", "--workers", "1", "--quiet"]


def sweep(*words: str, code: int = 0) -> str:
    """Sweep and return what is said on stderr."""
    return commands.command(*SWEEP, *words, code=code)[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of the sweep that was left alone."""
    folder = tmp_path_factory.mktemp("whole") / "x"
    sweep(*AXES, "--out", str(folder))
    return folder


def same(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in ("points.parquet", "points.jsonl"))


def test_shards_merge_into_the_table_of_the_whole(whole, tmp_path):
    for number in (1, 2, 3):
        sweep(*AXES, "--shard", f"{number}/3", "--out", str(tmp_path / str(number)))
    rows = [len(pl.read_parquet(tmp_path / str(number) / "points.parquet")) for number in (1, 2, 3)]
    assert rows == [12, 12, 12]
    merges = [word for number in (1, 2) for word in ("--merge", str(tmp_path / str(number)))]
    sweep(*AXES, *merges, "--out", str(tmp_path / "all"))  # what the third has, it simulates itself
    assert same(tmp_path / "all", whole)


def test_shards_are_all_points_once():
    points = [{"n": n} for n in range(100)]
    for count in (1, 3, 7, 100):
        parts = [Shard(number, count).points(points) for number in range(1, count + 1)]
        assert sorted(point["n"] for part in parts for point in part) == list(range(100))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "a/b", "1/0", "/", "1/3/5", "-1/3"])
def test_a_shard_that_is_none_is_one_sentence(text):
    with pytest.raises(InputError, match="write the number of the part and how many there are, such as 2/8"):
        Shard.read(text)


def test_other_sweeps_are_not_merged(tmp_path):
    y, z, none = (str(tmp_path / name) for name in ("y", "z", "none"))
    sweep("--tp", "1,2", "--predictor", "roofline", "--set", "training.seq=1024", "--out", y)
    said = sweep(*AXES, "--merge", y, "--out", z, code=2)
    assert "is a result of other inputs, fixed options or another version; give folders" in said
    said = sweep(*AXES, "--merge", none, "--out", z, code=2)
    assert "none: is no folder of a sweep; give folders of this very sweep" in said


@pytest.mark.slow
def test_writers_of_one_folder_wait_for_nobody_and_corrupt_nothing(whole, tmp_path):
    """Three at once: one simulates, the others are refused, or come so late that all is there; the table is that of one alone."""
    folder = tmp_path / "x"
    command = [sys.executable, "-m", "clustersim", *SWEEP, *AXES, "--out", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    for _ in range(3):
        writers = [subprocess.Popen(command, env=environment, **pipes) for _ in range(3)]
        ends = [(writer.communicate()[1], writer.returncode) for writer in writers]
        assert any(code == 0 for _, code in ends), ends
        assert all(code == 0 or (code == 2 and "is being written by process" in said) for said, code in ends), ends
        assert same(folder, whole)
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "workers"), [(signal.SIGKILL, "2"), (signal.SIGINT, "1")])
def test_a_sweep_that_is_killed_at_any_moment_goes_on(whole, tmp_path, how, workers):
    """Ten times at random: what was done stays, nothing is torn, and the end is that of a sweep that was left alone."""
    moments = random.Random(int(how))
    folder = tmp_path / "x"
    command = [sys.executable, "-m", "clustersim", *SWEEP, *AXES, "--out", str(folder)]
    command[command.index("--workers") + 1] = workers
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = 0
    for _ in range(10):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0.2, 2.0))
        process.send_signal(how)
        process.wait()
        if (folder / "points.jsonl").exists():
            lines = (folder / "points.jsonl").read_bytes().count(b"\n")
            assert lines >= done
            done = lines
    assert subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 0
    assert same(folder, whole)
    shutil.rmtree(folder)
