"""Inputs of every kind, through the command line and the API in this process: `python tests/support/fuzz.py 10000 --seed 1`.

Command lines and calls are drawn from the program's own tables (`fuzz_tables.py`), on files and results that may be mutated.
Each ends in exit code 0, in 2 with one sentence, or in 1 where `rerun` finds a difference; anything else is a
finding: a traceback, a hang, several lines, much memory.
"""

from __future__ import annotations

import argparse
import atexit
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import fuzz_tables
from speed import slowness

from clustersim.errors import ClustersimError
from clustersim.topology.specs import MAX_GPUS

SECONDS = 10
WORK = ("steps", "global_batch")
"""Numbers that ask for as much real work as they say."""
MEMORY = 512 * MAX_GPUS
"""Bytes by which one input may raise the peak of the process: so many for each GPU of the largest cluster that there may be."""

CLUSTER = {
    "cluster": {"name": "two", "nodes": 2, "node": {"extends": "hgx-h100", "gpus": {"count": 4}, "nics": {"count": 4}}},
    "fabric": {
        "kind": "fat_tree",
        "rails": "optimized",
        "tiers": [{"name": "leaf", "radix": 64}],
        "link": {"rate": "400Gb/s", "cable": ["3m"]},
        "routing": {"mode": "adaptive"},
    },
    "nccl": {"launch": "5us", "version": "2.27"},
    "faults": [{"link": "nic[1]", "rate": "100Gb/s"}, {"gpu": 1, "slowdown": 1.1}],
}
EXPLICIT = {
    "cluster": {"nodes": 2, "node": {"extends": "hgx-h100", "gpus": {"count": 2}, "nics": {"count": 1}}},
    "fabric": {
        "kind": "explicit",
        "nodes": ["s0", "s1"],
        "links": [
            {"a": "nic[0]", "b": "s0", "rate": "400Gb/s"},
            {"a": "nic[1]", "b": "s1", "rate": "400Gb/s"},
            {"a": "s0", "b": "s1", "rate": "400Gb/s", "latency": "1us"},
        ],
    },
}
TORUS = {
    "cluster": {"nodes": 4, "node": "hgx-h100"},
    "fabric": {"kind": "torus", "dims": [2, 2], "link": {"rate": "400Gb/s"}},
}
ASTRA = {"topology": ["Ring", "Switch"], "npus_count": [4, 2], "bandwidth": [200.0, 50.0], "latency": [50.0, 500.0]}
JOB = {
    "name": "tiny",
    "model": {"layers": 4, "hidden": 512, "heads": 8, "vocab": 1000, "max_positions": 128},
    "training": {"global_batch": 16, "micro_batch": 2, "seq": 128, "recompute": "none", "precision": "bf16"},
    "parallelism": {"tp": 2, "pp": 2, "schedule": "1f1b", "algorithms": {"dp": "ring"}, "zero": 1},
    "predictor": "roofline",
    "clocks": "boost",
}
EXPERTS = {
    **JOB,
    "model": {**JOB["model"], "experts": 4, "topk": 2},
    "parallelism": {"tp": 2, "ep": 2, "sequence_parallel": True},
}  # type: ignore[dict-item]
JOBS = {
    "placement": "packed",
    "steps": 2,
    "jobs": [{"workload": "j.yaml", "nodes": 1}, {"workload": "j.yaml", "start": "1ms"}],
}
GPU = {
    "name": "x200", "vendor": "nvidia", "architecture": "imagined", "sms": 160, "clock": "2.1GHz", "memory": "160GiB",
    "memory_bandwidth": "6TB/s", "l2": "80MiB", "matrix": {"fp32": "80TFLOP/s", "bf16": "1400TFLOP/s"},
    "vector": {"fp32": "80TFLOP/s"}, "power": "900W", "sources": {"sms": "made up", "memory_bandwidth": "x", "matrix": "x"},
}  # fmt: skip
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 100},
    "llama": {
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
        "intermediate_size": 128, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    },
    "bert": {
        "model_type": "bert", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
        "intermediate_size": 128, "max_position_embeddings": 64, "type_vocab_size": 2,
    },
}  # fmt: skip
XML = '<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel">' + "".join(
    f'<pci busid="0000:{i:02x}:00.0" class="0x030200" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">'
    f'<gpu dev="{i}" sm="90" rank="{i}"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu></pci>'
    f'<pci busid="0000:a{i}:00.0" class="0x020700"><nic><net name="m{i}" dev="{i}" speed="400000" port="1"/></nic></pci>'
    for i in range(4)
)
XML += "</cpu></system>"
TIMES = "size_bytes,time_us,op,gpus,source\n8,16,all_reduce,8,a\n1048576,90.5,all_reduce,8,a\n"
LOG = """# Collective test starting: all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    59.12   17.74   31.04      0    58.31   17.98   31.47      0
"""
OWN = "gpu,kind,op,dtype,layout,batch,m,n,k,latency_s,mode\n" + "".join(
    f"h200,linear,forward,bf16,tn,1,{m},4096,4096,{m * 1e-7:g},burst\n" for m in (256, 1024, 4096)
)

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 0.5, -0.0, 1e-300, 1e300, 10**9, 10**12, 10**18, 2**63, 10**30,
    float("nan"), float("inf"),
    "", " ", "x", "auto", "none", "1f1b", "ring", "nan", "-1", "1e9", "400Gb/s", "0Gb/s", "-5us", "1e400Gb/s", "3m",
    "8 GiB", "os:abort",
    "../../etc/passwd", "/dev/zero", "a\0b", "é", "\U0001f600", "\u202e", "\ud7ff", "x" * 300, "9" * 30, "[0]",
    "nic[0]", "gpu[99]",
    [], {}, [[]], {"": None}, [1, 2, 3], ["x"], {"x": 1}, "0-3", "hgx-h100", "fat_tree", "torus", "grid", "switch", "dragonfly",
)  # fmt: skip
MILD = (1, 2, 4, 8, 16, 64, True, False, "auto", "full", "none", "selective", "gpipe", "interleaved", "zero_bubble",
"tree", "direct",
        "hierarchical", "nccl", "neusight", "habitat", "linear", "fp32", "fp16", "fp8", "torus", "ecmp", "dmodk",
        "100Gb/s", "1us",
        "sustained", 0.5, 0.85, "dgx-a100", "h200-sxm", "mi300x", [2], [4, 2], [2, 2, 2], "spread", "random:3",
        "0-1")  # fmt: skip
WORDS = (
    "0", "1", "2", "3", "-1", "8", "64", "1e9", "nan", "inf", "x", "", " ", "auto", "ring", "tree", "nvls", "1f1b", "gpipe",
    "interleaved", "zero_bubble", "roofline", "0.5", "0-3", "1,2", "1-4", "full", "LL", "2.27", "24us", "1M", "1GB",
    "9" * 30, "é", "a:b",
    "os:abort", "training.seq=64", "parallelism.tp=x", "=", "a=b", "model.layers=", "training=1", "/dev/null",
    "x.svg", "random:3", "c.yaml",
    "class", "gpu,dtype", "inference", "training", "bf16", "fp8", "hierarchical", "direct",
)  # fmt: skip


class Case(NamedTuple):
    """A kind of input: a command, or a call of the API."""

    kind: str
    path: tuple[str, ...]


def cases() -> list[Case]:
    """Return the kinds of input, those with several lines in `BASES` more often."""
    drawn = [Case("table", path) for path, lines in fuzz_tables.BASES.items() for _ in (*lines, None)]
    return [*drawn, *[Case("api", ("api",))] * 9]


FILES = {
    "c.yaml": CLUSTER, "j.yaml": JOB, "jobs.yaml": JOBS, "g.yaml": GPU, "config.json": CONFIGS["llama"],
    "gpt2.json": CONFIGS["gpt2"], "bert.json": CONFIGS["bert"], "e.yaml": EXPERTS, "x.yaml": EXPLICIT,
    "torus.yaml": TORUS, "n.xml": XML, "m.csv": TIMES, "log.txt": LOG, "own.csv": OWN, "net.yml": ASTRA,
}  # fmt: skip
"""What command lines that are drawn from tables read."""


def mutated(chance: random.Random, value: Any) -> str | bytes:
    """Return a file with one to three things wrong."""
    if isinstance(value, str):
        text = value
        for _ in range(chance.choice((1, 1, 1, 2))):
            text = _in_text(chance, text)
    else:
        tree = json.loads(json.dumps(value))
        for _ in range(chance.choice((1, 1, 1, 2))):
            _in_tree(chance, tree)
        text = json.dumps(tree, ensure_ascii=False, indent=chance.choice((None, 1)))
    raw = text.encode(errors="surrogatepass")
    return _in_bytes(chance, raw) if chance.random() < 0.15 else raw


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def _in_tree(chance: random.Random, tree: Any) -> None:
    places = list(_places(tree))
    if not places:
        return
    numbers = [(parent, key) for parent, key in places if type(parent[key]) in (int, float) and key not in WORK]
    if numbers and chance.random() < 0.5:  # gently, to get past the checks of types
        parent, key = chance.choice(numbers)
        parent[key] = chance.choice(
            (1, 2, 3, 4, 5, 8, 12, 16, 32, 64, 100, 4096, 10**6, parent[key] * 2, parent[key] * 8)
        )
        return
    parent, key = chance.choice(places)
    kinds = (0, 1, 2, 3, 4, 4, 4, 4, 5, 5, 6, 6)
    match chance.choice(kinds):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[chance.choice(("x", "", "é", str(key) + "s", str(key).upper(), "<<", "faults", "nodes"))] = (
                parent.pop(key)
            )
        case 2:
            other, place = chance.choice(places)
            if place in other if isinstance(other, dict) else place < len(other):
                parent[key] = json.loads(json.dumps(other[place]))
        case 3:
            for _ in range(chance.choice((1, 5, 200))):
                parent[key] = [parent[key]]
        case 4 if isinstance(parent[key], int | float) and key not in WORK:
            parent[key] *= chance.choice(
                (-1, 0, 2, 2, 2, 3, 4, 4, 8, 8, 16, 0.1, 10, 100, 1000, 1000000, 1e6, 1e12, 1e200)
            )
        case 6:
            parent[key] = deepcopy(chance.choice(MILD))
        case _:
            parent[key] = deepcopy(chance.choice(ODD))  # what is put in may be mutated next


def _in_text(chance: random.Random, text: str) -> str:
    """Replace a word or number, or drop or double a line or tag."""
    words = list(re.finditer(r"[A-Za-z0-9_.+-]+", text))
    if words and chance.random() < 0.7:
        word = chance.choice(words)
        return text[: word.start()] + str(chance.choice(ODD)) + text[word.end() :]
    cut = re.split(r"(?<=[>\n])", text)
    i = chance.randrange(len(cut))
    cut[i : i + 1] = [cut[i]] * chance.choice((0, 2, 3))
    return "".join(cut)


def _in_bytes(chance: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 4)))
            case 1:
                del data[at : at + chance.randint(1, 20)]
            case 2 if at < len(data):
                data[at] = chance.randrange(256)
            case 3:
                data[at:at] = data[at : at + chance.randint(1, 200)] * chance.choice((1, 2, 50))
            case _:
                data[:0] = chance.choice(
                    (b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\x1f\x8b", b"%YAML 1.1\n---\n", b"\n" * 100)
                )
    return bytes(data)


def prepared(chance: random.Random, case: Case) -> list[str]:
    """Write the files of a case into the working directory, perhaps one of them mutated, and return its command line."""
    shutil.copytree(_pool(), Path.cwd(), dirs_exist_ok=True)
    if case.kind == "api":
        return list(case.path)
    spoil = chance.random() < 0.6
    arguments = fuzz_tables.drawn(chance, case.path, WORDS, 1 if spoil else 4)
    read = fuzz_tables.named(Path.cwd(), arguments)
    if read and spoil:
        text = [path for path in read if path.suffix not in (".parquet", ".gz")]
        _spoil(chance, chance.choice(text if text and chance.random() < 0.9 else read))
    return arguments


@cache
def _pool() -> Path:
    """Return a folder with what command lines from tables read, which is made once."""
    place = Path(tempfile.mkdtemp(prefix="fuzz-pool-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    fuzz_tables.pool(place, FILES)
    return place


def _spoil(chance: random.Random, path: Path) -> None:
    """Mutate a file where it lies, or take it away."""
    raw = path.read_bytes()
    if chance.random() < 0.1:
        path.unlink()
        return
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        path.write_bytes(_in_bytes(chance, raw))
        return
    lines = text.splitlines(keepends=True)
    place = chance.randrange(len(lines)) if path.suffix == ".jsonl" and lines else None
    one = text if place is None else lines[place]
    try:
        content: Any = json.loads(one)
    except ValueError:
        content = one
    found = mutated(chance, content if isinstance(content, dict | list | str) else one)
    raw = found if isinstance(found, bytes) else found.encode()
    if place is not None:
        raw = b"".join(
            [*(line.encode() for line in lines[:place]), raw, b"\n", *(line.encode() for line in lines[place + 1 :])]
        )
    path.write_bytes(raw)


def called(chance: random.Random) -> None:
    """Call the API as a program would that prints what it raises."""
    spoiled = (
        json.loads(json.dumps(chance.choice((CLUSTER, TORUS, EXPLICIT)))),
        json.loads(json.dumps(chance.choice((JOB, EXPERTS)))),
    )
    for tree in spoiled:
        if chance.random() < 0.5:
            _in_tree(chance, tree)
    try:
        fuzz_tables.call(
            chance,
            ODD,
            ("c.yaml", Path("torus.yaml"), "hgx_h100_8", spoiled[0]),
            ("j.yaml", Path("e.yaml"), spoiled[1]),
        )
    except ClustersimError as error:
        print(f"clustersim: {' '.join(str(error).splitlines())}", file=sys.stderr)
        sys.exit(error.exit_code)


class Finding(NamedTuple):
    """What is wrong with the end of one input."""

    what: str
    arguments: list[str]
    detail: str


class HangError(BaseException):
    """An input took too long."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    started = time.process_time(), time.monotonic()

    def over(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name == "gc_callback":  # Python ignores what a callback of gc raises
            return
        limit = seconds * slowness()
        if time.process_time() - started[0] >= limit or time.monotonic() - started[1] >= 6 * limit:
            raise HangError

    # seconds of the processor, as a busy machine is no hang, and six times as many by the clock for what only waits
    timers = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, 6 * seconds))
    before = [signal.signal(number, over) for _, number, _ in timers]
    for timer, _, limit in timers:
        signal.setitimer(timer, limit, 1)
    try:
        yield
    finally:
        for (timer, number, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def judged(arguments: list[str], main: Callable[[], object]) -> tuple[int, Finding | None]:  # noqa: PLR0911
    """Run one command line, and return its exit code and what is wrong with how it ended."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["clustersim", *arguments]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    code: object = 0
    try:
        with _limited(SECONDS), redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            main()
    except SystemExit as left:
        code = left.code or 0
    except HangError:
        if arguments and arguments[0] in fuzz_tables.LONG:
            return 130, None
        return -1, Finding("hang", arguments, traceback.format_exc()[-1500:])
    except BaseException:
        return -1, Finding("traceback", arguments, traceback.format_exc()[-1500:])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - peak
    notes = ("after ", "1 damaged lines of ")  # which say what was done before the error
    said = [line for line in err.getvalue().splitlines() if line and not line.startswith(notes)]
    name = arguments[0] if arguments else ""
    if len(said) > 1 and said[1].startswith("what fits by "):  # below a job that does not fit: changes, a line each
        said = said[:1] + [line for line in said[2:] if not line.startswith("  ")]
    if code == 1 and name == "rerun" and not said:
        return 1, None
    if code not in (0, 2):
        return -1, Finding(f"exit code {code}", arguments, err.getvalue()[-500:])
    if code == 2 and (len(said) != 1 or not said[0].startswith("clustersim: ")):
        return 2, Finding("not one sentence", arguments, err.getvalue()[-800:])
    if grown > MEMORY:
        return code, Finding(f"{grown / 2**20:.0f} MiB", arguments, err.getvalue()[-300:])  # type: ignore[return-value]
    return code, None  # type: ignore[return-value]


def fuzz(count: int, seed: int, keep: Path | None = None, first: int = 0) -> tuple[Counter[str], list[Finding]]:
    """Run `count` inputs from number `first` on, each of which depends on the seed and its number alone.

    Returns how many ended how, and the findings, whose files are kept in a folder each below `keep`.
    """
    from clustersim.cli.main import main

    every, ends, findings = cases(), Counter[str](), list[Finding]()
    home, argv = Path.cwd(), sys.argv
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        for number in range(first, first + count):
            chance = random.Random(f"{seed} {number}")
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                case = every[number % len(every)]
                arguments = prepared(chance, case)
                begun = time.monotonic()
                done = partial(called, chance) if case.kind == "api" else main
                code, finding = judged(arguments, done)
                ends[f"{' '.join(case.path)}: {code}"] += 1
                if finding:
                    findings.append(finding)
                    if keep:
                        shutil.copytree(folder, keep / str(number), dirs_exist_ok=True)
                        print(f"\n#{number} {time.monotonic() - begun:.1f} s", *finding, sep="\n", flush=True)
                os.chdir(home)
                if keep and (number + 1) % 1000 == 0:
                    print(f"{number + 1 - first} of {count}, {len(findings)} findings", flush=True)
    finally:
        os.chdir(home)
        sys.argv, sys.dont_write_bytecode = argv, before
    return ends, findings


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "fuzz")
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    ended, found = fuzz(given.count, given.seed, given.keep.resolve(), given.first)
    print(dict(sorted(ended.items())), f"{len(found)} findings", sep="\n")
    sys.exit(bool(found))
