"""`clustersim list`, help and completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import get_args

import pytest

from clustersim.cli import listing
from clustersim.cli.answer import amount_text
from clustersim.cli.listing import What

COMMANDS = (
    "run",
    "jobs",
    "share",
    "show",
    "schedule",
    "kernels",
    "collective",
    "sweep",
    "predict",
    "list",
    "lab train",
)


@pytest.mark.parametrize("what", get_args(What))
def test_a_list_has_a_line_for_each_name_and_says_what_it_is(call, what):
    code, out, err = call("list", what)
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.startswith("name ")
    assert all(line == line.rstrip() for line in lines)
    rows = json.loads(call("list", what, "--json")[1])[what]
    assert [row["name"] for row in rows] == [line.split()[0] for line in lines]
    assert all(row.get("what", "x") for row in rows)


@pytest.mark.parametrize("room", [8, 20, 40])
def test_a_list_in_a_narrow_terminal_keeps_the_beginning_of_each_name(monkeypatch, room):
    monkeypatch.setattr(listing, "terminal_width", lambda: room)
    names = ["superpod_h100_128_of_a_long_name", "a"]
    _, first, second = listing._table([{"name": name, "what": "nodes of eight GPUs each"} for name in names])
    assert max(map(len, (first, second))) <= room
    assert first.startswith(names[0][: room - 1]) and first.endswith("…") and second.startswith("a ")


def test_small_amounts_have_no_power_of_ten_and_those_near_one_the_form_of_their_neighbours():
    amounts = {0.0: "0", 1.2e-5: "0.000012", 0.0123: "0.012", 0.5: "0.5", 0.9999: "1.0", 1.0: "1.0", 1234.56: "1,234.6"}
    assert {value: amount_text(value, 1) for value in amounts} == amounts


def test_the_list_of_topologies_counts_nodes_and_gpus(call):
    rows = json.loads(call("list", "topologies", "--json")[1])["topologies"]
    [one] = [row for row in rows if row["name"] == "superpod_h100_128"]
    assert (one["nodes"], one["gpus"], one["gpu"]) == (128, 1024, "h100-sxm")
    assert one["what"] == "128 DGX H100 nodes, 1,024 GPUs: a rail-optimized two-level InfiniBand NDR SuperPOD"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_h(call, command):
    code, out, err = call(*command.split(), "-h")
    assert (code, err) == (0, "")
    assert out == call(*command.split(), "--help")[1]
    assert out.startswith(f"Usage: clustersim {command} ")


def completed(words: str) -> list[str]:
    number = str(len(words.split(" ")) - 1)
    environment = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": number, "_CLUSTERSIM_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "clustersim"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_a_shell_completes_commands_and_names():
    assert completed("clustersim s") == ["show", "schedule", "sweep", "serve", "schema"]
    assert completed("clustersim j") == ["jobs"]
    assert completed("clustersim run super") == ["superpod_h100_128"]
    assert completed("clustersim run superpod_h100_128 llama3_7") == ["llama3_70b"]
    assert completed("clustersim list wor") == ["workloads"]
