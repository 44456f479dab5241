"""The kept mutants can still be put into the code; `scripts/mutants` checks that tests notice them."""

import re

from documents import ROOT
from mutants import MUTANTS, misplaced


def test_the_text_that_a_mutant_replaces_stands_once_in_its_file():
    assert misplaced(ROOT) == [], "give the mutant the text of the same place in the new code"
    assert len(MUTANTS) >= 15


def test_the_files_that_the_quick_tests_leave_out_are_there():
    named = re.findall(
        r"\b(?:engine|collectives|model|parallel|predictors)/test_\w+", (ROOT / "scripts/quick").read_text()
    )
    assert [name for name in named if not (ROOT / f"tests/{name}.py").is_file()] == []
