"""The kept mutants can still be put into the code; `scripts/mutants` checks that the quick tests notice them."""

from documents import ROOT
from mutants import MUTANTS, misplaced


def test_the_text_that_a_mutant_replaces_stands_once_in_its_file():
    assert misplaced(ROOT) == [], "give the mutant the text of the same place in the new code"
    assert len(MUTANTS) >= 15
