"""A name in YAML is a file in a folder, or `package.module:attribute` from outside."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from clustersim import plugins
from clustersim.errors import InputError, UnknownNameError
from clustersim.report.store import question_of


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes a module which can be imported by its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


def test_a_new_file_is_found(tmp_path, monkeypatch):
    room = tmp_path / "some_room"
    room.mkdir()
    (room / "__init__.py").write_text("")
    for name in ("mine", "_hidden"):
        (room / f"{name}.py").write_text("def build():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.names("some_room") == {"mine": "some_room.mine"}
    assert plugins.load("some_room", "mine", "build")() == 42


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package:build", "'no_such_package:build' cannot be loaded (ModuleNotFoundError: No module named "),
        ("math:no_such", "'math:no_such' cannot be loaded (AttributeError: module 'math' has no attribute 'no_such'"),
        ("math:pi", "'math:pi' is not a function or class but 3.141592653589793; name one that is"),
    ],
)
def test_permitted_names_that_cannot_be_loaded(name, message):
    with plugins.permitted(name), pytest.raises(UnknownNameError) as caught:
        plugins.load("clustersim.collectives", name, "phases")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["math", "math:", ":sqrt", ".ring:phases", "a b:c", "math:sqrt:x", "../x:y"])
def test_what_is_no_spelling(text):
    with pytest.raises(InputError, match=r"write package\.module:attribute"), plugins.permitted(text):
        pass


@pytest.mark.parametrize(
    "text", ["1 / 0", "raise SystemExit(3)", "def broken(:", "import no_such_package", "raise GeneratorExit"]
)
def test_an_outside_module_that_fails_while_it_is_imported(text, module):
    module("outside_broken", text)
    with (
        plugins.permitted("outside_broken:build"),
        pytest.raises(UnknownNameError, match="'outside_broken:build' cannot be loaded"),
    ):
        plugins.load("clustersim.collectives", "outside_broken:build", "phases")


def test_ctrl_c_while_a_plugin_is_imported_stays_ctrl_c(module):
    module("outside_slow", "raise KeyboardInterrupt")
    with plugins.permitted("outside_slow:build"), pytest.raises(KeyboardInterrupt):
        plugins.load("clustersim.collectives", "outside_slow:build", "phases")


def test_an_outside_function_by_its_spelling_and_by_its_name():
    with plugins.permitted("math:sqrt"):
        for name in ("math:sqrt", "sqrt"):
            assert plugins.load("clustersim.collectives", name, "phases")(9.0) == 3.0
        assert plugins.spelled("clustersim.collectives", "sqrt") == "math:sqrt"
    with pytest.raises(UnknownNameError):
        plugins.load("clustersim.collectives", "math:sqrt", "phases")


def test_what_is_permitted_is_part_of_the_question():
    """A short name means another function under other permits: its result is another result."""
    asked = []
    for spelling in ("math:sqrt", "cmath:sqrt"):
        with plugins.permitted(spelling):
            asked.append(question_of("run", {}, {}, {"predictor": "sqrt"}).question)
    assert asked[0] != asked[1] != question_of("run", {}, {}, {"predictor": "sqrt"}).question


def test_a_short_name_of_two_plugins_must_be_written_out():
    with plugins.permitted("math:sqrt", "cmath:sqrt"):
        assert plugins.load("clustersim.collectives", "math:sqrt", "phases")(9.0) == 3.0
        with pytest.raises(UnknownNameError, match="'sqrt' may be math:sqrt or cmath:sqrt; write one of them out"):
            plugins.load("clustersim.collectives", "sqrt", "phases")


def test_a_built_in_name_cannot_be_shadowed_on_the_command_line():
    with pytest.raises(InputError, match="'ring' is a built-in algorithm"), plugins.permitted("mine:ring"):
        pass


# --- an installed package -------------------------------------------------------------------------------------------------

PACKAGE = """
import numpy as np
from clustersim.predictors.features import bound, columns
from clustersim.predictors.base import Predictor, Scope
from clustersim.schedules.kinds import gpipe
from clustersim.collectives.algorithms import ring
from clustersim.jobs.placements import packed
from clustersim.topology.kinds import switch

OPS, steps = ring.OPS, ring.steps
phases, build, place, kind = ring.phases, gpipe.build, packed.place, switch.build

class Half(Predictor):
    def predict(self, kernels, gpu, alone=False): return 2 * bound(columns(kernels), gpu) + 1e-6
    def statement(self, kernels, gpu): return (Scope("all", "half of the roofline", None, 0, gpu.name),)

def load(weights=None): return Half()
"""
POINTS = """
[clustersim.predictors]
half = outside_package:load
[clustersim.schedules]
mine = outside_package:build
[clustersim.collectives]
mine = outside_package:phases
[clustersim.topology]
mine = outside_package:kind
[clustersim.placements]
mine = outside_package:place
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package as pip lays it: a module, and the entry points beside it."""
    site = tmp_path / "site"
    info = site / "outside_package-0.1.dist-info"
    info.mkdir(parents=True)
    (site / "outside_package.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-package\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "outside_package", raising=False)
    return site


CLUSTER = """
cluster: {name: two, nodes: 2, node: hgx-h100}
fabric: {kind: KIND, link: {rate: 400Gb/s}}
"""
JOB = """
name: tiny
model: {layers: 4, hidden: 512, heads: 8, vocab: 1000, max_positions: 128}
training: {global_batch: 16, micro_batch: 2, seq: 128}
parallelism: {tp: 2, pp: 2, schedule: SCHEDULE, algorithms: {dp: DP}}
predictor: PREDICTOR
"""
BUILT_IN = {"KIND": "switch", "SCHEDULE": "gpipe", "DP": "ring", "PREDICTOR": "roofline"}


@pytest.fixture
def call(call):
    """Return a function that writes the two files with these names in them and runs a command line."""

    def run(*arguments: str, **names: str) -> tuple[int, str, str]:
        for name, text in (("c.yaml", CLUSTER), ("j.yaml", JOB)):
            for key, value in {**BUILT_IN, **names}.items():
                text = text.replace(key, f'"{value}"')  # noqa: PLW2901
            Path(name).write_text(text)
        return call(*arguments)

    return run


RUN = ("run", "c.yaml", "j.yaml", "--no-save")


def test_names_of_an_installed_package_work_everywhere(package, call):
    names = {"KIND": "mine", "SCHEDULE": "mine", "DP": "mine", "PREDICTOR": "half"}
    code, out, err = call(*RUN, "--verbose", **names)
    assert (code, err) == (0, "")
    assert "half of the roofline" in out
    for arguments in (
        ("share", "c.yaml", "j.yaml", "--no-save", "--placement", "mine"),
        ("show", "c.yaml", "--schedule", "mine"),
        ("collective", "all_reduce", "-t", "c.yaml", "--algo", "mine", "-b", "1M", "-e", "1M"),
        ("kernels", "j.yaml", "--gpu", "h100"),
        ("sweep", "c.yaml", "j.yaml", "--tp", "1,2", "--workers", "2"),
    ):
        code, out, err = call(*arguments, **names)
        assert (code, err) == (0, ""), arguments


def test_what_an_installed_package_offers_is_listed_with_its_package(package, call):
    assert plugins.installed("clustersim.schedules") == {"mine": "outside-package"}
    (package / "outside_package.py").write_text("raise RuntimeError('imported')\n")
    for what in ("kinds", "schedules", "placements", "algorithms"):
        code, out, err = call("list", what)
        assert (code, err) == (0, "")
        assert [line.split() for line in out.splitlines() if "outside" in line] == [
            ["mine", "From", "the", "installed", "package", "outside-package"]
        ]


def test_an_installed_kind_of_fabric_is_a_function_too(package):
    import clustersim as cs

    assert cs.mine(nodes=2, node="hgx-h100").gpus == 16
    assert "of the package outside-package" in cs.mine.__doc__
    with pytest.raises(AttributeError, match="no attribute 'half'"):
        _ = cs.half


def test_a_package_that_takes_a_built_in_name_is_refused_when_that_is_asked_for(package, call):
    points = package / "outside_package-0.1.dist-info" / "entry_points.txt"
    points.write_text("[clustersim.schedules]\ngpipe = outside_package:build\n")
    plugins._entries.cache_clear()
    code, out, err = call(*RUN)
    assert (code, out) == (2, "")
    assert "'gpipe' is a built-in schedule, and the package outside-package offers another one under that name" in err
    assert call(*RUN, SCHEDULE="1f1b")[0] == 0


# --- what no YAML file and no option may do ------------------------------------------------------------------------------


EVIL = "raise RuntimeError('imported')"


@pytest.mark.parametrize(
    ("arguments", "names", "place"),
    [
        (RUN, {"PREDICTOR": "evil:load"}, "j.yaml:6:12: predictor: "),
        (RUN, {"SCHEDULE": "evil:load"}, "j.yaml:5:39: parallelism.schedule: "),
        (RUN, {"DP": "evil:load"}, "j.yaml:5:65: parallelism.algorithms.dp: "),
        (RUN, {"KIND": "evil:load"}, "c.yaml:3:16: fabric.kind: "),
        ((*RUN, "--predictor", "evil:load"), {}, "predictor: "),
        (("show", "--schedule", "evil:load"), {}, "--schedule: "),
        (("collective", "all_reduce", "-t", "c.yaml", "--algo", "evil:load"), {}, "--algo: "),
        (("kernels", "j.yaml", "--gpu", "h100"), {"PREDICTOR": "evil:load"}, "predictor: "),
        (("share", "c.yaml", "j.yaml", "--no-save", "--placement", "evil:load"), {}, "--placement: "),
        (("sweep", "c.yaml", "j.yaml", "--tp", "1,2"), {"PREDICTOR": "evil:load"}, "predictor: "),
        (("lab", "evaluate", "--data", ".", "-p", "evil:load"), {}, "--predictor: "),
        (("lab", "train", "evil:load", "--data", "."), {}, "NAME: "),
    ],
)
def test_nothing_is_imported_without_permission(arguments, names, place, call, module):
    module("evil", EVIL)
    code, out, err = call(*arguments, **names)
    assert (code, out) == (2, "")
    assert "'evil:load' is not a built-in" in err
    assert place in err
    assert "add --plugins evil:load to the command if you trust it" in err
    assert err.count("\n") == 1


def test_a_predictor_that_derives_from_nothing_is_told_what_to_derive_from(call, module):
    module("plain", "class Plain:\n    def predict(self, kernels, gpu, alone=False): return 1.0\n")
    code, out, err = call(*RUN, "--plugins", "plain:Plain", PREDICTOR="plain:Plain")
    assert (code, out) == (2, "")
    assert "derive its class from clustersim.predictors.base.Predictor" in err


def test_a_predictor_may_come_from_an_object_that_has_no_hash(call, module):
    made = "\n@dataclass\nclass Make:\n    times: float\n    def __call__(self, weights=None): return Half()\n"
    module("unhashable", "from dataclasses import dataclass\n" + PACKAGE + made + "make = Make(2.0)\n")
    code, out, err = call(*RUN, "--verbose", "--plugins", "unhashable:make", PREDICTOR="unhashable:make")
    assert (code, err) == (0, "")
    assert "half of the roofline" in out


# --- what a plugin does wrong ------------------------------------------------------------------------------------------------

WRONG = """
import numpy as np
from clustersim.collectives.model import Phase, AllPairs
from clustersim.predictors.base import Predictor, Scope
from clustersim.topology.kinds import switch

class P(Predictor):
    name = "p"
    def predict(self, kernels, gpu, alone=False): return SECONDS
    def statement(self, kernels, gpu): return STATEMENT

def predictor(weights=None): return P()
def schedule(stages, microbatches, chunks=1): return ROWS
def phases_(op, group): return PHASES
def kind(site): return TOPOLOGY
def place_(wanted, free, seed): return PLACE
def leave(): raise SystemExit(3)
class Mute(Exception):
    def __str__(self): raise ValueError
def mute(): raise Mute
"""
SANE = {
    "SECONDS": "np.full(len(kernels), 1e-6)",
    "STATEMENT": "(Scope('all', 'made up', None, 0, gpu.name),)",
    "ROWS": "None",
    "PHASES": "None",
    "TOPOLOGY": "None",
    "PLACE": "None",
}
FAILS = ("1 / 0", "leave()", "mute()", "None", "'abc'", "object()", "open('/none')")


FAULTS = "does not work here ("
PREDICTOR = f"j.yaml:6:12: predictor: wrong:predictor {FAULTS}"
COLLECTIVE = ("collective", "all_reduce", "-t", "c.yaml", "--algo", "phases_")
SHARE = ("share", "c.yaml", "j.yaml", "--no-save", "--placement", "wrong:place_")
REPLACE = "__import__('dataclasses').replace(switch.build(site), "
WAYS = [
    ("predictor", "SECONDS", {"PREDICTOR": "wrong:predictor"}, RUN, PREDICTOR),
    ("predictor", "STATEMENT", {"PREDICTOR": "wrong:predictor"}, RUN, PREDICTOR),
    (
        "schedule",
        "ROWS",
        {"SCHEDULE": "wrong:schedule"},
        RUN,
        "j.yaml:5:39: parallelism.schedule: wrong:schedule does not work",
    ),
    ("schedule", "ROWS", {}, ("show", "--schedule", "schedule"), f"--schedule: schedule {FAULTS}"),
    ("phases_", "PHASES", {"DP": "phases_"}, RUN, "j.yaml:5:65: parallelism.algorithms.dp: "),
    ("phases_", "PHASES", {}, COLLECTIVE, f"--algo: wrong:phases_ {FAULTS}"),
    ("kind", "TOPOLOGY", {"KIND": "wrong:kind"}, RUN, f"c.yaml:3:16: fabric.kind: wrong:kind {FAULTS}"),
    ("place_", "PLACE", {}, SHARE, f"--placement: placement wrong:place_ {FAULTS}"),
]
"""The function of a plugin, what it returns, names in the files, a command, and the place that its refusal names."""
BAD = {
    "SECONDS": (
        *("-np.ones(len(kernels))", "np.full(len(kernels), np.nan)", "np.ones(1)", "[1e300] * len(kernels)", "1.0"),
    ),
    "STATEMENT": ("('good',)",),
    "ROWS": (
        *(
            "[[]]",
            "[[(0, 'F', 0)]] * stages",
            "[[(0, 'X', 0)]] * stages",
            "[[(0.5, 'F', 'x')]] * stages",
            "iter(int, 1)",
        ),
    ),
    "PHASES": (
        *("(Phase(1, [0], [1], [np.nan]),)", "(Phase(np.inf, [0], [1], [1]),)", "(Phase(1, [0], [99], [1]),)"),
        *("(Phase(1, [0, 1], [1], [1]),)", "(AllPairs(1, [1], [1]),)", "()", "(Phase(1, [0], [1], [0.0]),)"),
    ),
    "TOPOLOGY": (
        *(f"{REPLACE}capacity=np.full(3, np.nan))", f"{REPLACE}router=lambda a, b: 1 / 0)"),
        f"{REPLACE}numbering=switch.build(site).numbering.only(np.arange(1)))",
    ),
    "PLACE": ("[[0], [0]]",),
}


def _wrong():
    for function, what, names, arguments, place in WAYS:
        for bad in (*FAILS, *BAD[what]):
            own = "placement wrong:place_ does not give each job its own free nodes" if bad == "[[0], [0]]" else place
            yield pytest.param(function, what, bad, names, arguments, own, id=f"{arguments[0]}-{what}-{bad[:30]}")


@pytest.mark.parametrize(("function", "what", "bad", "names", "arguments", "place"), list(_wrong()))
def test_whatever_a_plugin_does_wrong_is_one_sentence(function, what, bad, names, arguments, place, call, module):
    text = WRONG
    for key, value in {**SANE, what: bad}.items():
        text = text.replace(key, value)
    module("wrong", text)
    code, out, err = call(*arguments, "--plugins", f"wrong:{function}", **names)
    assert (code, out) == (2, ""), err
    assert place in err
    assert err.count("\n") == 1


def test_ctrl_c_in_a_plugin_stays_ctrl_c(call, module):
    module("stopped", "def build(*_):\n    raise KeyboardInterrupt\n")
    code, _, err = call("show", "--schedule", "stopped:build", "--plugins", "stopped:build")
    assert (code, err) == (130, "clustersim: interrupted\n")


def test_an_error_deep_inside_is_laid_on_the_plugin_that_it_went_through(call, module):
    text = """
from dataclasses import replace
from clustersim.topology.kinds import switch

class Late:
    calls = 0
    def __init__(self, own): self.own = own
    def __call__(self, *pairs):
        Late.calls += 1
        if Late.calls > 3: raise ValueError("too late")
        return self.own(*pairs)

def kind(site):
    built = switch.build(site)
    return replace(built, router=Late(built.router))
"""
    module("late", text)
    code, out, err = call(*RUN, "--plugins", "late:kind", KIND="late:kind")
    assert (code, out) == (2, "")
    assert "late:kind does not work here (ValueError: too late)" in err
    assert err.count("\n") == 1


def test_workers_of_a_sweep_are_permitted_the_same(call, tmp_path, monkeypatch, module):
    module("own_", "from clustersim.schedules.kinds.gpipe import build as own_gpipe\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    swept = ("sweep", "c.yaml", "j.yaml", "--tp", "1,2", "--workers", "2", "--plugins", "own_:own_gpipe")
    code, out, err = call(*swept, SCHEDULE="own_gpipe")
    assert (code, err) == (0, "")
    assert "illegal" not in out
    assert "--plugins own_:own_gpipe" in out  # the best one alone
