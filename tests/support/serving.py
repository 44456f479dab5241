"""A server of `clustersim serve` for tests: on loopback, at a port of its own, with a folder of small results."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from commands import command
from documents import ROOT

from clustersim.cli.app import app
from clustersim.serve.form import FORMS, RunForm

CLUSTER, JOB = "nvlink_h100_4", ROOT / "docs/examples/pipeline.yaml"
RUN = ["run", CLUSTER, str(JOB), "--predictor", "roofline"]
LONG = {"topology": "hgx_h100_8", "workload": "llama3_8b", "set": [], "options": {"global_batch": "200000"}}
"""A run that takes minutes."""


def forms(topologies: Iterable[Path] = (), workloads: Iterable[Path] = ()) -> RunForm:
    """Return the forms of a server."""
    commands = {name: app((name,)).registered_commands[0].callback for name in FORMS}
    return RunForm.of(topologies, workloads, commands)


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url, self.port = process, url, int(url.rpartition(":")[2])

    def ask(self, path: str, body: Any = None, **headers: str) -> Answer:
        """Return the answer to a request, as `once`; where that was one of too many, the next."""
        while (answer := self.once(path, body, **headers)).text == "Too many requests; wait a second.":
            time.sleep(0.2)
        return answer

    def once(self, path: str, body: Any = None, **headers: str) -> Answer:
        """Return the answer to one request, whose path is sent as it is; `_` in names of headers is `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body, named = json.dumps(body).encode(), {"Content-Type": "application/json", **named}
        connection.putrequest("GET" if body is None else "POST", path, skip_host="Host" in named)
        for name, value in named.items():
            connection.putheader(name, value)
        if body is not None and "Content-Length" not in named:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        got = connection.getresponse()
        answer = Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        connection.close()
        return answer

    def child(self, number: int) -> dict[str, Any]:
        """Return what is said of a command."""
        return next(one for one in self.ask("/api/state").json["children"] if one["number"] == number)

    def wait(self, number: int, *states: str, seconds: float = 60) -> dict[str, Any]:
        """Return what is said of a command once it is in one of these states."""
        end = time.monotonic() + seconds
        while (found := self.child(number))["state"] not in states:
            assert time.monotonic() < end, found
            time.sleep(0.1)
        return found

    def begin(self, run: Mapping[str, Any] = LONG) -> int:
        """Start a run, and return its number."""
        answer = self.ask("/api/run", run)
        assert answer.status == 202, answer.text
        return int(answer.json["number"])

    def processes(self) -> list[int]:
        """Return the processes that it has started and that are there."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(one) for task in tasks for one in task.read_text().split()]


@contextmanager
def served(folder: Path, *options: str, cwd: Path | None = None, **environment: str) -> Iterator[Served]:
    """Yield a server of a folder, which ends with the test."""
    command = [sys.executable, "-P", "-m", "clustersim", "serve", str(folder), "--port", "0", *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=env
    ) as process:
        try:
            assert process.stdout and process.stderr
            line = process.stdout.readline()
            assert " at http://" in line, process.stderr.read()
            yield Served(process, line.partition(" at ")[2].split()[0])
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def filled(folder: Path) -> Path:
    """Return a folder of results: a run, the same with another pipeline, and a sweep; a secret lies beside it."""
    results = folder / "results"
    command(*RUN, "--out", str(results / "one"), "--quiet")
    command(*RUN, "--global-batch", "16", "--out", str(results / "deep/two"), "--html", "--quiet")
    sweep = ["sweep", *RUN[1:], "--global-batch", "8,16", "--workers", "1"]
    command(*sweep, "--out", str(results / "sweep"), "--quiet")
    shutil.copytree(results / "one", folder / "outside")
    (folder / "outside/summary.json").write_text('{"secret": "SECRET"}')
    (folder / "outside/report.html").write_text("SECRET")
    (folder / "secret.txt").write_text("SECRET")
    return results
