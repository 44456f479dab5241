"""Every command of the command line is a function of `clustersim`, with the same answer."""

import json
import subprocess
import sys

import pytest

import clustersim as cs
from clustersim.cli.app import COMMANDS
from clustersim.errors import InputError

TINY = {
    "name": "tiny",
    "model": {"layers": 2, "hidden": 512, "heads": 8, "vocab": 1024},
    "training": {"global_batch": 8, "seq": 256},
    "predictor": "roofline",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_an_attribute(name):
    attribute = "import_" if name == "import" else name
    assert callable(getattr(cs, attribute))
    assert attribute in dir(cs)


def test_parts_with_the_name_of_a_command_are_called_after_they_are_imported_too():
    import clustersim.jobs.simulate
    import clustersim.report.terminal

    assert callable(cs.report)
    assert cs.report.terminal is clustersim.report.terminal
    found = cs.jobs("hgx_h100_8", TINY)
    assert [job["name"] for job in found["jobs"]] == ["tiny"]
    assert clustersim.jobs.simulate.__name__ == "clustersim.jobs.simulate"


def test_a_function_answers_what_its_command_prints():
    words = ["collective", "all_reduce", "--topology", "hgx_h100_8", "--begin", "1M", "--end", "4M", "--json"]
    done = subprocess.run([sys.executable, "-m", "clustersim", *words], capture_output=True, check=True)
    assert cs.collective("all_reduce", topology="hgx_h100_8", begin="1M", end="4M") == json.loads(done.stdout)


def test_options_are_words():
    """A mapping is a file, a dotted key --set, False --no-…, and a list repeats its option."""
    kernels = cs.kernels({**TINY, "model": {**TINY["model"], "layers": 1}})["kernels"]
    assert sum(row["op"] == "forward" for row in kernels) > 0
    plain, slow = (
        cs.collective("all_reduce", topology="hgx_h100_8", begin="1G", end="1G", nvls=on) for on in (True, False)
    )
    assert plain["lines"][0]["time_us"] < slow["lines"][0]["time_us"]
    dotted = cs.collective("all_reduce", topology="hgx_h100_8", begin="1G", end="1G", **{"cluster.nodes": 1})
    assert dotted["nodes"] == 1


def test_a_result_is_saved_for_commands_that_take_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = cs.run("hgx_h100_8", TINY, tp=2)
    assert "events written" in cs.trace(result, out=tmp_path / "trace.json.gz")
    assert (tmp_path / "trace.json.gz").stat().st_size > 0
    assert "--tensor-model-parallel-size 2" in cs.export("megatron", result)
    assert cs.explain(result)["command"] == "explain"


def test_amounts_are_numbers_or_text():
    asked = {"nodes": 1, "tp": 1, "pp": 1, "recompute": "none", "micro_batch": 4, "predictor": "roofline"}
    text, number = (cs.plan("gpt3_xl", tokens=tokens, **asked).best for tokens in ("1B", 1e9))
    assert text == number
    with pytest.raises(InputError, match="tokens= 'many'"):
        cs.plan("gpt3_xl", tokens="many", nodes=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (cs.trace, "Missing argument 'RESULT'"),
        (lambda: cs.collective("all_reduce", topology="hgx_h100_8", colour="red"), "No such option: --colour"),
        (lambda: cs.collective("all_redu", topology="hgx_h100_8"), "did you mean 'all_reduce'"),
    ],
)
def test_a_wrong_call_is_one_sentence(call, message):
    with pytest.raises(InputError, match=message):
        call()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cs.nothing
