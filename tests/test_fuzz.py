"""Mutated inputs end in exit code 0, or in 2 with one sentence; `python -m tests.fuzz 10000` runs as many as you like."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from examples import examples

from clustersim.cli.main import main
from tests import fuzz

CASES = fuzz.cases()


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n].kind}")
def test_what_is_mutated_works_unmutated(number, tmp_path, monkeypatch):
    """Else the mutations would be refused for another reason than themselves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.setattr(fuzz.sys, "argv", [])
    case = CASES[number]
    for name, value in case.files.items():
        Path(name).write_text(value if isinstance(value, str) else json.dumps(value))
    Path("p_.py").write_text(fuzz.PLUGIN.replace("ANSWER", "good"))
    arguments = ["out" if word == "FOLDER" else word for word in case.arguments]
    if arguments == ["show"]:
        arguments += ["--schedule", "1f1b"]
    assert fuzz.judged(arguments, main) == (0, None)


def test_a_few_hundred_inputs():
    ends, findings = fuzz.fuzz(examples(200), seed=10)
    assert not findings
    assert sum(ends.values()) == examples(200)


@pytest.mark.slow
def test_some_thousand_inputs():
    assert not fuzz.fuzz(3000, seed=11)[1]


def test_an_input_is_the_same_whenever_it_is_asked_for():
    one, other = (fuzz.mutated(random.Random("7 7"), fuzz.JOB) for _ in range(2))
    assert one == other


def test_a_traceback_several_lines_and_a_hang_are_findings(monkeypatch):
    def crash():
        raise ZeroDivisionError

    def chat():
        print("a\nb", file=fuzz.sys.stderr)
        raise SystemExit(2)

    def hang():
        while True:
            pass

    monkeypatch.setattr(fuzz, "SECONDS", 1)
    for end, what in ((crash, "traceback"), (chat, "not one sentence"), (hang, "hang")):
        assert fuzz.judged([], end)[1].what == what
