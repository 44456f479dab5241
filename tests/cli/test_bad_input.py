"""Whatever is wrong with the input: exit code 2, one sentence with the place and the remedy, and nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
CLUSTER = """\
cluster:
  name: two
  nodes: 2
  node: hgx-h100
fabric:
  kind: fat_tree
  tiers:
    - {name: leaf, radix: 64}
  link:
    rate: 400Gb/s
"""
JOB = """\
name: tiny
model:
  layers: 4
  hidden: 512
  heads: 8
  vocab: 1000
  max_positions: 128
training:
  global_batch: 16
  micro_batch: 2
  seq: 128
parallelism:
  tp: 2
  pp: 2
  schedule: 1f1b
  algorithms:
    dp: ring
predictor: roofline
"""
HUGE = "1" + "0" * 40


def edit(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


# what is wrong: (changed line or whole file, place, what the sentence must say)
JOBS: list[tuple[str | tuple[str, str], str, str]] = [
    (("  heads: 8", "  haeds: 8"), "5:3", "unknown key 'haeds'; did you mean 'heads'?"),
    (("tp: 2", "tp: 3"), "13:7", "3 does not divide 8 attention heads; use 1, 2, 4, 8"),
    (("1f1b", "interleaved"), "15:13", "interleaved"),
    (("roofline", "rooflin"), "18:12", "did you mean 'roofline'?"),
    (edit(edit(JOB, "tp: 2", "tp: 2\n  zero: 1"), "dp: ring", "dp: tree"), "18:9", "tree cannot do reduce_scatter"),
    (("roofline", "no.such.package:load"), "18:12", "add --plugins no.such.package:load to the command"),
    (("hidden: 512", "hidden: 1e300"), "4:11", "must be a whole number"),
    (("layers: 4\n  hidden: 512", "layers: 4\n  hidden: 65536"), "", "GiB and h100-sxm has 79.6 GiB"),
    (("layers: 4\n  hidden: 512", "layers: 10000\n  hidden: 1000000\n  head_dim: 100000000"), "", "raise tp or pp"),
    (("global_batch: 16", "global_batch: 100000000"), "9:17", "lower it or raise micro_batch"),
    ("a" * 2_000_000, "1:1", "not a single value"),
]
CLUSTERS: list[tuple[str | tuple[str, str], str, str]] = [
    (("400Gb/s", "400GiB"), "10:11", "'GiB' is not a unit of bandwidth"),
    (("400Gb/s", "1e300Gb/s"), "10:11", "fabric.link.rate"),
    (("fat_tree", "fattree"), "6:9", "did you mean 'fat_tree'?"),
    (("hgx-h100", "{extends: hgx-h100, gpus: {model: my.yaml}}"), "4:43", "gpus.model: my.yaml: no such file"),
]
# command: how the sentence begins, with … where words are left out
COMMANDS = {
    "run": "Missing argument 'TOPOLOGY'; `clustersim run --help`",
    "rum": "No such command 'rum'…Did you mean 'run'?",
    "run C J --tpp 2": "No such option: --tpp…--tp, ",
    "run C J --tp": "Option '--tp' requires an argument",
    "run C J --tp 0": "J (command line): parallelism.tp: 0 must be at least 1",
    "run C J --tp x": "--tp 'x': write a whole number; `clustersim run --help`",
    "kernels J --gpus 0": "--gpus '0': write 1 or more; `clustersim kernels --help`",
    "show --schedule 1f1b --stages 600": "--stages '600': write 512 or less; `clustersim show --help`",
    "collective all_reduce -t C -f x": "-f 'x': write a number; `clustersim collective --help`",
    "list gpus --set a=b": (
        "no such option: --set; --set changes keys of a topology or a workload where a command takes it"
    ),
    "run --workload gpt3": "no such option: --workload; the workload is not an option; write it after the topology;",
    "run C J --set training.seq": "--set 'training.seq' has no value; write key=value",
    "run C J --set training.sek=3": "J (command line): unknown key 'sek'; did you mean 'seq'?",
    "run C J --set train.seq=3": "J (command line): unknown key 'train'; did you mean 'training'?",
    "run C J --set =3": "--set '=3' has no value; write key=value",
    "run C J --predictor tarot": "J (command line): predictor: 'tarot'",
    "run absent.yaml J": "absent.yaml: no such file",
    "run J C": "C:1:1: this is a topology, not a workload; the topology comes first",
    "run C .": ".: cannot be read: Is a directory; give the path of a YAML file",
    "run C /proc/self/mem": "/proc/self/mem: cannot be read: ",
    "run C J --out J": "J: is a file, not a folder; choose another place with --out",
    "run C J --out J/x": "J/x: cannot be written (…is a file); choose another place with --out",
    "run C J --out /proc/no/where": "/proc/no/where: cannot be written (",
    "run C J --out a\\nb": "'a\\nb': not a valid folder name",
    "show": "nothing to show; give a topology file (`clustersim schedule 1f1b` draws",
    "schedule 1f2b": "schedule: '1f2b' is not one of the schedules; did you mean '1f1b'?",
    "kernels J --gpus 1": "J:14:7: parallelism.pp: the cluster is too small",
    "sweep C J": "nothing to sweep; give at least one axis, such as --tp 1,2,4,8",
    "sweep C J --tp 1,two": "--tp: 'two' is not a whole number",
    "sweep C J --tp 0": "--tp: '0' is not a whole number of 1 or more; write a list like 1,2,4, 1-4 or 64..4096x2",
    "sweep C J --tp 1-100000": "--tp: '1-100000' is more than 10,000 values; write a shorter range",
    f"sweep C J --tp {HUGE}": "J (command line): parallelism.tp: 1000",
    "sweep C J --tp 1-9999 --pp 1-9999": "99,980,001 points are too many",
    "sweep C J --tp 1,2 --set parallelism.tp=4": (
        "--set parallelism.tp is also an axis of the sweep; give one of the two"
    ),
    "sweep C J --tp 1 --workers 0": "--workers",
    "sweep C J --nic 200Gb/s,-4Gb/s": "C (command line): cluster.node.nics.rate: '-4Gb/s' must be a finite bandwidth",
    "sweep C J --set cluster.node=hgx-b200,hgx-b2": "C (command line): unknown node type 'hgx-b2'; did you mean 'hgx-b200'?",
    "sweep C J --set parallelism.pp=1,x": "J (command line): parallelism.pp: x must be a whole number",
    "goodput --nodes 4 --step 5GB": "--step: 'GB' is not a unit of time",
    "run C J --out a --out=b": "--out is given twice; keep one of them",
    "sweep C J --tp 1 --tp 2": "--tp is given twice; write all values in one, such as --tp 1,2,4",
    "lab train x --seed 1 --seed 2": "--seed is given twice",
    "run C J --set x=1 --set x=2": "--set x is given twice, as 1 and as 2",
    "run C J --tp 1 --set parallelism.tp=2": "--tp 1 and --set parallelism.tp=2 set the same key; give one of the two",
}


@pytest.fixture
def call(call: Call) -> Call:
    """Return the command line in a folder with a cluster C and a job J."""
    Path("C").write_text(CLUSTER)
    Path("J").write_text(JOB)
    return call


def refused(call: Call, *arguments: str) -> str:
    """Run a command line that must fail well, and return its sentence."""
    before = files()
    code, out, err = call(*arguments)
    assert (code, out) == (2, ""), err
    assert err.startswith("clustersim: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert len(err) < 6000
    assert files() == before
    return err


def files() -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in Path().rglob("*")}


def test_the_sound_files_are_sound(call):
    assert call("run", "C", "J")[0] == 0
    assert sorted(p.name for p in Path().iterdir()) == ["C", "J", "results"]


@pytest.mark.parametrize(("change", "where", "sentence"), JOBS)
def test_broken_workload(change, where, sentence, call):
    Path("bad.yaml").write_text(change if isinstance(change, str) else edit(JOB, *change))
    err = refused(call, "run", "C", "bad.yaml")
    assert err.startswith(f"clustersim: bad.yaml:{where}")
    assert sentence in err


@pytest.mark.parametrize(("change", "where", "sentence"), CLUSTERS)
def test_broken_topology(change, where, sentence, call):
    Path("bad.yaml").write_text(change if isinstance(change, str) else edit(CLUSTER, *change))
    for command in (("run", "bad.yaml", "J"), ("show", "bad.yaml")):
        err = refused(call, *command)
        assert err.startswith(f"clustersim: bad.yaml:{where}") or not where
        assert sentence in err


@pytest.mark.parametrize("line", COMMANDS)
def test_broken_command(line, call):
    err = refused(call, *line.replace("\\n", "\n").split(" "))
    beginning, *others = COMMANDS[line].split("…")
    assert err.startswith(f"clustersim: {beginning}")
    assert all(part in err for part in others)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads and writes everything")
def test_permissions(call):
    Path("J").chmod(0)
    assert "J: cannot be read: Permission denied" in refused(call, "show", "J")
    Path("locked").mkdir(mode=0o500)
    assert "read-only" in refused(call, "run", "C", "C", "--out", "locked/x")


def test_names_that_are_not_unicode(call):
    name = os.fsdecode(b"\xff.yaml")
    assert "no such file" in refused(call, "run", name, "J", "--no-save")
    assert "not a valid folder name" in refused(call, "run", "C", "J", "--out", name)
