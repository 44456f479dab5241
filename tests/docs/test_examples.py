"""Examples in docstrings print what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import clustersim

ROOT = Path(clustersim.__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "clustersim").rglob("*.py")
    if "\n    >>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name):
    failed, tried = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert tried and not failed
