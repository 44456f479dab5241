"""Sweeps on a Ray cluster: the table of one process, nodes that are killed and join meanwhile, addresses where none is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from clustersim import extras

ROOT = Path(__file__).parents[2]
AXES = ["--tp", "1,2,4,8", "--pp", "auto", "--micro-batch", "auto", "--recompute", "auto", "--schedule", "auto"]
SWEEP = ["sweep", "superpod_h100_128", "gpt3_xl", "--global-batch", "512", *AXES]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what keeps Ray on loopback, on every system
    "RAY_USAGE_STATS_ENABLED": "0",
}
WITH_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


def begun(*words: str, environment: Mapping[str, str] = ENVIRONMENT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def points(folder: Path) -> int:
    return (folder / "points.jsonl").read_bytes().count(b"\n") if (folder / "points.jsonl").exists() else 0


class Nodes:
    """A cluster in a process of its own."""

    def __init__(self, count: int, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        self.process = begun(str(ROOT / "tests/support/ray_nodes.py"), str(count), environment=environment)
        self.address = self._line()

    def tell(self, word: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self._line()

    def end(self) -> None:
        self.process.communicate(timeout=60)

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        assert line, self.process.communicate()[1]
        return line


@pytest.mark.slow
@WITH_RAY
def test_a_killed_node_loses_nothing(tmp_path):
    """Three nodes, one killed in the midst of the work and another one joined: the table is that of this process alone."""
    alone = begun("-m", "clustersim", *SWEEP, "--workers", "1", "--out", str(tmp_path / "alone"), "--quiet")
    nodes = Nodes(3)
    assert alone.communicate(timeout=300)[1] == ""
    try:
        folder = tmp_path / "ray"
        sweep = begun("-m", "clustersim", *SWEEP, "--ray", nodes.address, "--out", str(folder), "--json")
        whole = points(tmp_path / "alone")
        while points(folder) < whole // 3 and sweep.poll() is None:
            time.sleep(0.05)
        nodes.tell("kill")
        killed = points(folder)
        nodes.tell("add")
        out, err = sweep.communicate(timeout=300)
    finally:
        nodes.end()
    assert sweep.returncode == 0, err
    assert killed < whole
    assert json.loads(out)["points"] == whole
    # Its worker dies with the node, unless it was between two tasks.
    assert err in ("", "1 worker died; others simulated the points again\n")
    assert (folder / "points.parquet").read_bytes() == (tmp_path / "alone" / "points.parquet").read_bytes()
    assert (folder / "points.jsonl").read_bytes() == (tmp_path / "alone" / "points.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (
            "127.0.0.1:{port}",
            "no Ray cluster answers (Connection refused); start one with `ray start --head`, and give",
        ),
        ("ray://127.0.0.1:{port}", "no Ray cluster answers (Connection refused); start one with `ray start --head`"),
        ("nowhere", "not an address; write auto, HOST:PORT or ray://HOST:PORT"),
        ("127.0.0.1:x", "not an address; write auto, HOST:PORT or ray://HOST:PORT"),
        (":6379", "not an address; write auto, HOST:PORT or ray://HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_one_sentence(call, monkeypatch, tmp_path, address, why):
    monkeypatch.setattr(extras, "find_spec", lambda name: name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = address.format(port=free.getsockname()[1])
        code, out, err = call(*SWEEP, "--ray", address)
    assert (code, out) == (2, "")
    assert err.startswith(f"clustersim: --ray {address}: {why}")
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@WITH_RAY
@pytest.mark.slow
def test_auto_where_no_cluster_runs_is_one_sentence(tmp_path):
    environment = {**ENVIRONMENT, "RAY_TMPDIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", "clustersim", *SWEEP, "--ray", "auto", "--out", "x"]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr.startswith("clustersim: --ray auto: no Ray cluster answers (")
    assert len(found.stderr.splitlines()) == 1


def test_without_ray_the_extra_is_named(call, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    code, out, err = call(*SWEEP, "--ray", "auto")
    assert (code, out) == (2, "")
    assert err == 'clustersim: --ray needs Ray, which is not installed; run pip install "clustersim[ray]"\n'
