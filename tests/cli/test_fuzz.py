"""Mutated inputs end in exit code 0, or in 2 with one sentence; `python tests/support/fuzz.py 10000` runs as many as you like."""

from __future__ import annotations

import random
import shutil

import fuzz
import fuzz_tables
import pytest
from examples import examples

from clustersim.cli.app import OLD
from clustersim.cli.main import main


def test_every_command_of_the_program_is_drawn():
    old = {(name, *path[1:]) for path in fuzz_tables.commands() for name in OLD if path[0] == name}
    assert fuzz_tables.commands().keys() - old == fuzz_tables.BASES.keys() | fuzz_tables.NOT_DRAWN.keys()


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    place = tmp_path_factory.mktemp("pool")
    fuzz_tables.pool(place, fuzz.FILES)
    return place


@pytest.mark.parametrize("path", fuzz_tables.BASES, ids=" ".join)
def test_a_line_that_options_are_added_to_works(path, pool, tmp_path, monkeypatch):
    """Else they would be refused for another reason than themselves."""
    shutil.copytree(pool, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fuzz.sys, "argv", [])
    for words in fuzz_tables.BASES[path]:
        assert fuzz.judged([*path, *words], main) == (0, None)
        shutil.rmtree("o", ignore_errors=True)


def test_values_are_drawn_from_the_schemas():
    assert {
        "parallelism.overlap.tp",
        "training.recompute",
        "fabric.tiers.0.radix",
        "faults.0.slowdown",
    } <= fuzz_tables.keys().keys()
    chance = random.Random(1)
    words = {fuzz_tables.legal(chance, fuzz_tables.keys()["parallelism.overlap.tp"]) for _ in range(50)}
    assert words == {"none", "bulk", "ring", "async"}


def test_a_thousand_inputs():
    ends, findings = fuzz.fuzz(examples(1000), seed=11)
    assert not findings
    assert sum(ends.values()) == examples(1000)


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
