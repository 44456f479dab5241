"""A name in YAML is a file in a folder, or `package.module:attribute` from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustersim import plugins
from clustersim.errors import UnknownNameError

ROOMS = [f"clustersim.{room}" for room in ("schedules", "collectives", "placements", "predictors", "topology")]


@pytest.mark.parametrize("room", ROOMS)
def test_names_are_the_files_of_the_room(room: str) -> None:
    folder = Path(plugins.__file__).parent / room.split(".")[1]
    files = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    known = plugins.names(room)
    assert known
    for name, module in known.items():
        assert module.rsplit(".", 1)[1] in files
        assert not name.startswith("_")


def test_a_name_that_is_no_identifier() -> None:
    assert plugins.names("clustersim.schedules")["1f1b"] == "clustersim.schedules.one_f_one_b"
    assert "one_f_one_b" not in plugins.names("clustersim.schedules")
    assert "check" not in plugins.names("clustersim.schedules")
    assert plugins.load("clustersim.schedules", "1f1b", "build").__module__ == "clustersim.schedules.one_f_one_b"


def test_a_new_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tmp_path / "some_room"
    room.mkdir()
    (room / "__init__.py").write_text("SHARED = ('common',)\n")
    for name in ("mine", "common", "_hidden"):
        (room / f"{name}.py").write_text("def build():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.names("some_room") == {"mine": "some_room.mine"}
    assert plugins.load("some_room", "mine", "build")() == 42


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rings", "'rings' is none of the collectives; did you mean 'ring'? known: "),
        ("", "'' is none of the collectives; known: "),
        ("../ring", "'../ring' is none of the collectives; did you mean 'ring'? known: "),
        ("model", "'model' is none of the collectives; known: "),
        ("no_such_package:build", "'no_such_package:build' cannot be loaded (ModuleNotFoundError: No module named "),
        ("math:no_such", "'math:no_such' cannot be loaded (AttributeError: module 'math' has no attribute 'no_such'"),
        (":build", "':build' cannot be loaded (ValueError: Empty module name); write package.module:attribute"),
        (".ring:phases", "'.ring:phases' cannot be loaded (TypeError: "),
        ("math:", "'math:' cannot be loaded (AttributeError: "),
        ("math:pi", "'math:pi' is no function or class but 3.141592653589793; name one that is"),
    ],
)
def test_names_that_do_not_exist(name: str, message: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        plugins.load("clustersim.collectives", name, "phases")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["1 / 0", "raise SystemExit(3)", "def broken(:", "import no_such_package"])
def test_an_outside_module_that_fails_while_it_is_imported(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside_broken.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnknownNameError, match="'outside_broken:build' cannot be loaded"):
        plugins.load("clustersim.collectives", "outside_broken:build", "phases")


def test_an_outside_function() -> None:
    assert plugins.load("clustersim.collectives", "math:sqrt", "phases")(9.0) == 3.0
