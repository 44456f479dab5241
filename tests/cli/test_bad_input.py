"""Whatever is wrong with the input: exit code 2, one sentence with the place and the remedy, and nothing left behind."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from speed import slowness

from clustersim.cli.main import main

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
EXPLICIT = """\
cluster: {nodes: 2, node: {extends: hgx-h100, gpus: {count: 2}, nics: {count: 1}}}
fabric:
  kind: explicit
  nodes: [s0, s1]
  links:
    - {a: "nic[0]", b: s0, rate: 400Gb/s}
    - {a: "nic[1]", b: s1, rate: 400Gb/s}
    - {a: s0, b: s1, rate: 400Gb/s}
"""
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
HUGE = "1" + "0" * 40


def edit(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


# what is wrong: (changed line or whole file, place, what the sentence must say)
JOBS: dict[str, tuple[str | tuple[str, str], str, str]] = {
    "typo in a key": (("  heads: 8", "  haeds: 8"), "5:3", "unknown key 'haeds'; did you mean 'heads'?"),
    "typo in a section": (("training:", "trainin:"), "8:1", "unknown key 'trainin'; did you mean 'training'?"),
    "duplicate key": (("  heads: 8", "  heads: 8\n  heads: 8"), "6:3", "duplicate key 'heads'; keep one"),
    "negative": (("layers: 4", "layers: -4"), "3:11", "model.layers: -4 must be at least 1"),
    "zero": (("hidden: 512", "hidden: 0"), "4:11", "model.hidden: 0 must be at least 1"),
    "fraction": (("layers: 4", "layers: 4.5"), "3:11", "4.5 must be a whole number"),
    "missing key": (("  vocab: 1000\n", ""), "3:3", "model.vocab is missing; add it"),
    "empty value": (("vocab: 1000", "vocab:"), "6:9", "model.vocab is empty"),
    "word for a number": (("seq: 128", "seq: long"), "11:8", "training.seq: long must be a whole number"),
    "list for a number": (("seq: 128", "seq: [128]"), "11:8", "training.seq: a list must be a whole number"),
    "list for a section": (("  hidden: 512\n", "  hidden: 512\n  - 3\n"), "5:3", "not valid YAML"),
    "yes for true": (("  pp: 2", "  pp: 2\n  zero: yes"), "15:9", "yes must be a whole number"),
    "tp does not divide heads": (("tp: 2", "tp: 3"), "13:7", "3 does not divide 8 attention heads; use 1, 2, 4, 8"),
    "tp across nodes": (
        edit(JOB.replace("heads: 8", "heads: 16"), "tp: 2", "tp: 16"),
        "13:7",
        "groups of 16 would span nodes of 8 GPUs; use 1, 2, 4, 8",
    ),
    "pp > layers": (("pp: 2", "pp: 5"), "14:7", "5 stages cannot share 4 layers; use at most 4"),
    "vpp > layers": (("pp: 2", "pp: 2\n  vpp: 3"), "15:8", "use at most 2"),
    "cluster too small": (("pp: 2", "pp: 2\n  dp: 8"), "15:7", "needs 32 GPUs, there are 16"),
    "dp does not divide the batch": (("pp: 2", "pp: 2\n  dp: 3"), "15:7", "3 does not divide the 8 microbatches"),
    "unknown schedule": (("1f1b", "1f2b"), "15:13", "did you mean '1f1b'?"),
    "schedule of the wrong shape": (("1f1b", "interleaved"), "15:13", "interleaved"),
    "unknown predictor": (("roofline", "rooflin"), "18:12", "did you mean 'roofline'?"),
    "unknown algorithm": (("dp: ring", "dp: rng"), "17:9", "did you mean 'ring'?"),
    "algorithm that cannot": (
        edit(edit(JOB, "tp: 2", "tp: 2\n  zero: 1"), "dp: ring", "dp: tree"),
        "18:9",
        "tree cannot do reduce_scatter",
    ),
    "plugin that does not exist": (
        ("roofline", "no.such.package:load"),
        "18:12",
        "add --plugins no.such.package:load to the command",
    ),
    "plugin without permission": (("roofline", "math:sqrt"), "18:12", "'math:sqrt' is not a built-in predictor"),
    "NaN": (("hidden: 512", "hidden: .nan"), "4:11", ".nan is not a finite number"),
    "inf": (("hidden: 512", "hidden: .inf"), "4:11", ".inf is not a finite number"),
    "1e300": (("hidden: 512", "hidden: 1e300"), "4:11", "must be a whole number"),
    "10**40": (("hidden: 512", f"hidden: {HUGE}"), "4:11", "40 digits"),
    "10**39": (("hidden: 512", f"hidden: {HUGE[:-1]}"), "4:11", "must be at most"),
    "seq > max_positions": (("seq: 128", "seq: 129"), "11:8", "129 is longer than model.max_positions 128"),
    "micro_batch > global_batch": (
        ("micro_batch: 2", "micro_batch: 32"),
        "10:16",
        "32 does not divide global_batch 16",
    ),
    "a model that does not fit": (
        ("layers: 4\n  hidden: 512", "layers: 4\n  hidden: 65536"),
        "",
        "GiB and h100-sxm has 79.6 GiB",
    ),
    "a model beyond all sizes": (
        ("layers: 4\n  hidden: 512", "layers: 10000\n  hidden: 1000000\n  head_dim: 100000000"),
        "",
        "raise tp or pp",
    ),
    "a batch of no end": (("global_batch: 16", "global_batch: 100000000"), "9:17", "lower it or raise micro_batch"),
    "recursive alias": (("model:", "model: &m\n  ffn: *m"), "3:8", "never ends; write the values out"),
    "alias bomb": (BOMB + JOB, "1:", "after aliases; write them out"),
    "unknown alias": (("seq: 128", "seq: *s"), "11:8", "no anchor &s"),
    "merge key": (("seq: 128", "seq: 128\n  <<: {a: 1}"), "12:3", "merge keys (<<) are not supported"),
    "tag": (("name: tiny", "name: !!python/object/apply:os.system [ls]"), "1:7", "is not supported"),
    "a list at top level": ("- 1\n- 2\n", "1:1", "the top level must be a mapping of keys, not a list"),
    "a word at top level": ("hello\n", "1:1", "not a single value"),
    "empty file": ("", "1:1", "the file is empty"),
    "only comments": ("# nothing\n", "1:1", "the file is empty"),
    "tabs": (("  hidden: 512", "\thidden: 512"), "4:1", "indent with spaces, not tabs"),
    "several documents": (JOB + "---\n" + JOB, "19:1", "a second document starts here"),
    "open quote": (("name: tiny", "name: 'tiny"), "", "not valid YAML"),
    "deep nesting": ("a: " + "[" * 10_000, "1:", "levels of nesting"),
    "long line": ("a" * 2_000_000, "1:1", "not a single value"),
    "control character": (("name: tiny", "name: ti\x07ny"), "1:9", "control characters are not allowed"),
}
CLUSTERS: dict[str, tuple[str | tuple[str, str], str, str]] = {
    "wrong unit": (("400Gb/s", "400GiB"), "10:11", "'GiB' is not a unit of bandwidth"),
    "unit in the wrong case": (("400Gb/s", "400gb/s"), "10:11", "did you mean 'Gb/s'?"),
    "bare number": (("400Gb/s", "400"), "10:11", "400 has no unit; write a bandwidth with one, like 400Gb/s"),
    "zero bandwidth": (("400Gb/s", "0Gb/s"), "10:11", "must be greater than 0"),
    "negative bandwidth": (("400Gb/s", "-400Gb/s"), "10:11", "must be a finite bandwidth of zero or more"),
    "NaN bandwidth": (("400Gb/s", "nan Gb/s"), "10:11", "is not a bandwidth"),
    "a bandwidth of 1e300": (("400Gb/s", "1e300Gb/s"), "10:11", "fabric.link.rate"),
    "a bandwidth of 1e-300": (("400Gb/s", "1e-300Gb/s"), "10:11", "fabric.link.rate"),
    "infinite bandwidth": (("400Gb/s", "1e308PB/s"), "10:11", "must be a finite bandwidth"),
    "unknown fabric": (("fat_tree", "fattree"), "6:9", "did you mean 'fat_tree'?"),
    "no fabric": (CLUSTER[: CLUSTER.index("fabric")], "3:10", "add `fabric:`"),
    "unknown node": (("hgx-h100", "hgx-h10"), "4:9", "did you mean 'hgx-h100'?"),
    "unknown GPU": (
        ("hgx-h100", "{extends: hgx-h100, gpus: {model: h100-sx}}"),
        "4:43",
        "unknown GPU 'h100-sx'; did you mean 'h100-sxm'?",
    ),
    "a GPU file that is absent": (
        ("hgx-h100", "{extends: hgx-h100, gpus: {model: my.yaml}}"),
        "4:43",
        "gpus.model: my.yaml: no such file",
    ),
    "NIC faster than PCIe": (
        ("hgx-h100", "{extends: hgx-a100, nics: {rate: 400Gb/s}}"),
        "4:42",
        "more than the 31.5 GB/s of host.pcie gen4x16",
    ),
    "impossible radix": (("radix: 64", "radix: 1"), "8:27", "must be at least 2"),
    "radix too small": (("radix: 64", "radix: 8"), "8:5", "add a tier"),
    "ports beyond the radix": (("radix: 64", "radix: 4, down: 8"), "8:27", "radix 4"),
    "ten million nodes": (("nodes: 2", "nodes: 10000000"), "3:10", "at most 2097152 can be simulated"),
    "10**40 nodes": (("nodes: 2", f"nodes: {HUGE}"), "3:10", "40 digits"),
    "slowdown of nobody": (("cluster:", "faults: [{node: 7, slowdown: 2}]\ncluster:"), "1:", "there is no node 7"),
    "self link": (edit(EXPLICIT, "a: s0, b: s1", "a: s0, b: s0"), "8:", "a cable from 's0' to itself"),
    "link twice": (EXPLICIT + "    - {a: s1, b: s0, rate: 1Gb/s}\n", "9:", "joined twice"),
    "disconnected graph": (EXPLICIT[: EXPLICIT.rindex("    -")], "", "no cables lead from"),
}
COMMANDS: dict[str, tuple[list[str], str]] = {
    "no arguments": (["run"], "Missing argument 'TOPOLOGY'; `clustersim run --help`"),
    "unknown command": (["rum"], "Did you mean 'run'?"),
    "unknown option": (["run", "C", "J", "--tpp", "2"], "--tp"),
    "option without a value": (["run", "C", "J", "--tp"], "requires an argument"),
    "tp of no number": (["run", "C", "J", "--tp", "two"], "--tp"),
    "tp of zero": (["run", "C", "J", "--tp", "0"], "parallelism.tp: 0 must be at least 1"),
    "dp of a word": (["run", "C", "J", "--dp", "all"], "parallelism.dp: all must be"),
    "word of FLOP": (["run", "C", "J", "--flops", "half"], "'causal', 'full'"),
    "--set without a value": (["run", "C", "J", "--set", "training.seq"], "write key=value"),
    "--set of an unknown key": (["run", "C", "J", "--set", "training.sek=3"], "did you mean 'seq'?"),
    "--set of an unknown section": (["run", "C", "J", "--set", "train.seq=3"], "did you mean 'training'?"),
    "--set of a wrong value": (
        ["run", "C", "J", "--set", "training.seq=many"],
        "training.seq: many must be a whole number",
    ),
    "--set below a value": (["run", "C", "J", "--set", "training.seq.x=1"], "single value"),
    "--set of broken YAML": (["run", "C", "J", "--set", "training.seq=[1"], "training.seq=[1"),
    "--set without a key": (["run", "C", "J", "--set", "=3"], "write key=value"),
    "--set of an empty part": (["run", "C", "J", "--set", "training..seq=3"], "''"),
    "unknown schedule": (["run", "C", "J", "--schedule", "1f2b"], "(command line): parallelism.schedule: '1f2b'"),
    "unknown predictor": (["run", "C", "J", "--predictor", "tarot"], "(command line): predictor: 'tarot'"),
    "absent topology": (["run", "absent.yaml", "J"], "absent.yaml: no such file"),
    "absent workload": (["run", "C", "absent.yaml"], "absent.yaml: no such file"),
    "swapped files": (["run", "J", "C"], "this is a topology, not a workload; the topology comes first"),
    "directory": (["run", "C", "."], ".: cannot be read: Is a directory; give the path of a YAML file"),
    "path below a file": (["run", "C", "J/x"], "cannot be read: Not a directory"),
    "name too long": (["run", "C", "x" * 5000], "File name too long"),
    "unreadable file": (["run", "C", "/proc/self/mem"], "cannot be read"),
    "binary file": (["run", "C", sys.executable], "not a text file"),
    "endless file": (["run", "C", "/dev/zero"], "too large"),
    "--out that is a file": (
        ["run", "C", "J", "--out", "J"],
        "is a file, not a folder; choose another place with --out",
    ),
    "--out below a file": (["run", "C", "J", "--out", "J/x"], "is a file); choose another place with --out"),
    "--out that is full of other things": (["run", "C", "J", "--out", "."], "has files that do not belong to a result"),
    "--out nowhere": (["run", "C", "J", "--out", "/proc/no/where"], "cannot be written"),
    "--out that is no name": (["run", "C", "J", "--out", "a\nb"], "not a valid folder name"),
    "nothing to show": (["show"], "nothing to show; give a topology file (`clustersim schedule 1f1b` draws"),
    "show of an absent file": (["show", "absent.yaml"], "no such file"),
    "an unknown schedule drawn": (
        ["schedule", "1f2b"],
        "schedule: '1f2b' is not one of the schedules; did you mean '1f1b'?",
    ),
    "a schedule of no stages": (["schedule", "1f1b", "--pp", "0"], "--pp"),
    "an endless schedule": (["schedule", "gpipe", "--pp", "512", "--microbatches", "4096"], "too many"),
    "a schedule without a name": (["schedule"], "Missing argument 'NAME'"),
    "show of an unknown schedule": (["show", "--schedule", "1f2b"], "did you mean '1f1b'?"),
    "show of no stages": (["show", "--schedule", "1f1b", "--stages", "0"], "--stages"),
    "show of an impossible schedule": (
        ["show", "--schedule", "interleaved", "--chunks", "2", "--microbatches", "3"],
        "multiple",
    ),
    "show of an endless schedule": (
        ["show", "--schedule", "gpipe", "--stages", "512", "--microbatches", "4096"],
        "too many",
    ),
    "kernels of a stage that is none": (["kernels", "J", "--stage", "2"], "the job has 2 stages; use 0 to 1"),
    "kernels on too few GPUs": (["kernels", "J", "--gpus", "1"], "the cluster is too small"),
    "sweep without an axis": (["sweep", "C", "J"], "nothing to sweep; give at least one axis, such as --tp 1,2,4,8"),
    "sweep of a word": (["sweep", "C", "J", "--tp", "1,two"], "--tp: 'two' is not a whole number"),
    "sweep of zero": (["sweep", "C", "J", "--tp", "0"], "write a list like 1,2,4, 1-4 or 64..4096x2"),
    "sweep of a backward range": (["sweep", "C", "J", "--tp", "4-1"], "'4-1' begins above its end"),
    "sweep of nothing": (["sweep", "C", "J", "--tp", ","], "--tp: no value"),
    "sweep of too wide a range": (["sweep", "C", "J", "--tp", "1-100000"], "write a shorter range"),
    "sweep of 10**40": (["sweep", "C", "J", "--tp", HUGE], "parallelism.tp: 1000"),
    "sweep of too many": (["sweep", "C", "J", "--tp", "1-9999", "--pp", "1-9999"], "points are too many"),
    "sweep of an axis that is set": (["sweep", "C", "J", "--tp", "1,2", "--set", "parallelism.tp=1"], "one of the two"),
    "sweep of an unknown key": (["sweep", "C", "J", "--tp", "1,2", "--set", "training.sek=1"], "did you mean 'seq'?"),
    "sweep of an unknown schedule": (["sweep", "C", "J", "--schedule", "1f1b,1f2b"], "did you mean '1f1b'?"),
    "sweep of an unknown predictor": (["sweep", "C", "J", "--tp", "1", "--predictor", "tarot"], "'tarot' is not one"),
    "sweep of no workers": (["sweep", "C", "J", "--tp", "1", "--workers", "0"], "--workers"),
    "sweep of an absent topology": (["sweep", "absent.yaml", "J", "--tp", "1"], "no such file"),
    "sweep of a rate that is none": (
        ["sweep", "C", "J", "--nic", "200Gb/s,-4Gb/s"],
        "'-4Gb/s' must be a finite bandwidth",
    ),
    "sweep of an unknown GPU": (["sweep", "C", "J", "--gpu", "h100,h101"], "unknown GPU 'h101'; did you mean 'h100'?"),
    "sweep of an unknown node": (
        ["sweep", "C", "J", "--set", "cluster.node=hgx-b200,hgx-b2"],
        "unknown node type 'hgx-b2'; did you mean 'hgx-b200'?",
    ),
    "sweep of an unknown word": (["sweep", "C", "J", "--recompute", "none,ful"], "write 'none', 'selective' or 'full'"),
    "sweep of a word for a number": (
        ["sweep", "C", "J", "--set", "parallelism.pp=1,x"],
        "pp: x must be a whole number",
    ),
    "sweep of an unknown framework": (
        ["sweep", "C", "J", "--set", "training.framework=nemo,nemu"],
        "(command line): training.framework: 'nemu' is none of the frameworks; did you mean 'nemo'?",
    ),
    "an option given twice": (["run", "C", "J", "--out", "a", "--out=b"], "--out is given twice; keep one of them"),
    "an axis given twice": (["sweep", "C", "J", "--tp", "1", "--tp", "2"], "all values in one, such as --tp 1,2,4"),
    "an option of a group given twice": (["lab", "train", "x", "--seed", "1", "--seed", "2"], "--seed is given twice"),
    "a key given twice": (["run", "C", "J", "--set", "x=1", "--set", "x=2"], "--set x is given twice, as 1 and as 2"),
    "a key given in two ways": (
        ["run", "C", "J", "--tp", "1", "--set", "parallelism.tp=2"],
        "--tp 1 and --set parallelism.tp=2 set the same key; give one of the two",
    ),
    "sweep into a file": (["sweep", "C", "J", "--tp", "1", "--out", "J"], "is a file, not a folder"),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("C").write_text(CLUSTER)
    Path("J").write_text(JOB)
    return tmp_path


def refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command line that must fail well, and return its sentence."""
    before = files()
    monkeypatch.setattr(sys, "argv", ["clustersim", *arguments])
    begun = time.process_time()
    with pytest.raises(SystemExit) as end:
        main()
    took = time.process_time() - begun
    out, err = capsys.readouterr()
    assert end.value.code == 2, err
    assert out == ""
    assert err.startswith("clustersim: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert len(err) < 6000
    assert files() == before
    assert took < slowness()
    return err


def files() -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in Path().rglob("*")}


def test_the_sound_files_are_sound(place, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["clustersim", "run", "C", "J"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert sorted(p.name for p in Path().iterdir()) == ["C", "J", "results"]


@pytest.mark.parametrize("case", JOBS)
def test_broken_workload(case, place, monkeypatch, capsys):
    change, where, sentence = JOBS[case]
    Path("bad.yaml").write_text(change if isinstance(change, str) else edit(JOB, *change))
    err = refused(["run", "C", "bad.yaml"], monkeypatch, capsys)
    assert err.startswith(f"clustersim: bad.yaml:{where}")
    assert sentence in err


@pytest.mark.parametrize("case", CLUSTERS)
def test_broken_topology(case, place, monkeypatch, capsys):
    change, where, sentence = CLUSTERS[case]
    Path("bad.yaml").write_text(change if isinstance(change, str) else edit(CLUSTER, *change))
    for command in (["run", "bad.yaml", "J"], ["show", "bad.yaml"]):
        err = refused(command, monkeypatch, capsys)
        assert err.startswith(f"clustersim: bad.yaml:{where}") or not where
        assert sentence in err


@pytest.mark.parametrize("case", COMMANDS)
def test_broken_command(case, place, monkeypatch, capsys):
    arguments, sentence = COMMANDS[case]
    assert sentence in refused(arguments, monkeypatch, capsys)


@pytest.mark.parametrize("case", ["typo in a key", "empty file", "alias bomb", "deep nesting", "a list at top level"])
def test_the_installed_command(case, place):
    change, where, sentence = JOBS[case]
    Path("bad.yaml").write_text(change if isinstance(change, str) else edit(JOB, *change))
    command = [sys.executable, "-m", "clustersim", "run", "C", "bad.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"clustersim: bad.yaml:{where}")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(p.name for p in Path().iterdir()) == ["C", "J", "bad.yaml"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads and writes everything")
def test_permissions(place, monkeypatch, capsys):
    Path("J").chmod(0)
    assert "J: cannot be read: Permission denied" in refused(["show", "J"], monkeypatch, capsys)
    Path("locked").mkdir(mode=0o500)
    assert "read-only" in refused(["run", "C", "C", "--out", "locked/x"], monkeypatch, capsys)


def test_names_that_are_not_unicode(place, monkeypatch, capsys):
    name = os.fsdecode(b"\xff.yaml")
    assert "no such file" in refused(["run", name, "J", "--no-save"], monkeypatch, capsys)
    assert "not a valid folder name" in refused(["run", "C", "J", "--out", name], monkeypatch, capsys)


SHIPPED = Path(__file__).parents[2]
SOURCES = {
    "C": [CLUSTER, EXPLICIT, *(SHIPPED.joinpath("topologies", f"{n}.yaml").read_text() for n in ("explicit_8", "hgx_h100_8"))],
    "J": [JOB, *(SHIPPED.joinpath("workloads", f"{n}.yaml").read_text() for n in ("bert_large", "mixtral_8x7b", "gpt2_large"))],
}  # fmt: skip
WORDS = "0 -1 1 3 1.5 1e300 -1e-300 1000000000 null true nan [] {} [1] {a:1} x ' \" *a &a 400 1Gb/s 0s 1e30GB auto ring !!int"
JUNK = st.sampled_from(["", HUGE, "gpipe", "math:sqrt", *WORDS.split()]) | st.text(max_size=8)


@st.composite
def mutated(draw, sources):
    """A text from `sources` in which one to three things went wrong."""
    lines = draw(st.sampled_from(sources)).split("\n")
    for _ in range(draw(st.integers(1, 3))):
        i = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["delete", "double", "value", "value", "value", "key", "indent", "cut", "insert"])):
            case "delete":
                lines[i] = ""
            case "double":
                lines.insert(i, lines[i])
            case "value":
                parts = re.split(r"(?<=[:,{\[] )", lines[i])
                j = draw(st.integers(0, len(parts) - 1))
                tail = re.search(r"[,}\]]*\s*(\w+:\s)?$", parts[j]).group()
                lines[i] = "".join([*parts[:j], draw(JUNK) + tail, *parts[j + 1 :]])
            case "key":
                lines[i] = re.sub(r"\w(\w*):", r"\1:", lines[i], count=1)
            case "indent":
                lines[i] = draw(st.sampled_from(["  ", "\t", " ", "- "])) + lines[i]
            case "cut":
                lines = lines[: i + 1]
            case "insert":
                at = draw(st.integers(0, len(lines[i])))
                lines[i] = lines[i][:at] + draw(st.text(max_size=4)) + lines[i][at:]
    return "\n".join(lines)


def survive(cluster: str, job: str) -> None:
    """Run two texts, and demand an answer or one sentence."""
    out, err = io.StringIO(), io.StringIO()
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.chdir(folder)
        Path("C").write_text(cluster, encoding="utf-8", errors="surrogateescape", newline="")
        Path("J").write_text(job, encoding="utf-8", errors="surrogateescape", newline="")
        patch.setattr(
            sys,
            "argv",
            ["clustersim", "run", "C", "J", "--no-save", "--ignore-memory", "--predictor", "roofline", "--json"],
        )
        with redirect_stdout(out), redirect_stderr(err):
            main()
    if end.value.code:
        assert end.value.code == 2
        assert err.getvalue().count("\n") == 1
        assert out.getvalue() == ""
    else:
        assert err.getvalue() == ""
        summary = json.loads(out.getvalue(), parse_constant=lambda name: pytest.fail(f"{name} in the result"))
        assert summary["step_time_s"] > 0


FUZZ = settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(mutated(SOURCES["J"]))
def test_mutated_workloads(text):
    survive(CLUSTER, text)


@FUZZ
@given(mutated(SOURCES["C"]))
def test_mutated_topologies(text):
    survive(text, JOB)


@pytest.mark.slow
@settings(FUZZ, max_examples=examples(500))
@given(mutated(SOURCES["C"]), mutated(SOURCES["J"]))
def test_mutated_both(cluster, job):
    survive(cluster, job)


@settings(FUZZ, max_examples=examples(60))
@given(st.binary(max_size=200))
def test_random_bytes(data):
    survive(CLUSTER, data.decode("utf-8", errors="surrogateescape"))
