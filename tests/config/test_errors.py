"""The tree of errors: exit codes, places, suggestions, and the way through pickle between processes."""

from __future__ import annotations

import pickle

import pytest

from clustersim import errors
from clustersim.errors import ConfigError, InputError, shown, suggest

TREE = {
    errors.ClustersimError: 1, errors.SimulationError: 1, errors.DeadlockError: 1, errors.DiskFullError: 1,
    errors.InterruptedSweepError: 130, errors.InputError: 2, errors.ConfigError: 2, errors.UnknownNameError: 2,
    errors.PluginError: 2, errors.DataError: 2, errors.OutOfMemoryError: 2,
}  # fmt: skip


def test_exit_codes_of_the_whole_tree() -> None:
    defined = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert defined == set(TREE)
    assert all(kind.exit_code == code for kind, code in TREE.items())
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in TREE)


def test_a_place_is_file_line_column() -> None:
    assert str(ConfigError("w.yaml", 12, 5, "wrong")) == "w.yaml:12:5: wrong"
    assert str(ConfigError("w.yaml", 0, 0, "wrong")) == "w.yaml: wrong"


@pytest.mark.parametrize("error", [ConfigError("w.yaml", 12, 5, "wrong"), InputError("bad"), errors.DataError("worse")])
def test_errors_survive_pickling(error: errors.ClustersimError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_suggestions() -> None:
    assert suggest("rign", ["ring", "tree"]) == "did you mean 'ring'? known: ring, tree"
    assert suggest("zzz", ["tree", "ring"]) == "known: ring, tree"
    assert suggest("1F1B", ["1f1b", "gpipe"]) == "did you mean '1f1b'? known: 1f1b, gpipe"
    assert suggest("", []) == "known: "


def test_shown_is_one_short_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert shown(3) == "3"
    assert len(shown("x" * 10**6)) == len(shown(list(range(1000)))) == 60
