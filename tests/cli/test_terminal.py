"""What `run` prints: three numbers first, then where the step goes, then what to doubt; all else with --verbose."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import output_cases
import pytest

from clustersim.cli import answer
from clustersim.cli.sweep import best_lines
from clustersim.config.yaml import parse
from clustersim.parallel.load import build as build_workload
from clustersim.report import terminal
from clustersim.report.table import fitted, table
from clustersim.report.terminal import PLAIN, WIDTH, Look, lines
from clustersim.simulation import run
from clustersim.simulation import simulate as forecast
from clustersim.topology.build import build as build_topology
from clustersim.units import duration

ROOT = Path(__file__).parents[2]


def shown(verbose=False, engine="simpy", **overrides):
    changes = {"predictor": "neusight"} | {key.replace("__", "."): value for key, value in overrides.items()}
    result = run(
        build_topology(parse(output_cases.NODES)), build_workload(parse(output_cases.JOB), changes), engine=engine
    )
    return result.summary, lines(result.summary, 0.25, verbose)


def test_the_three_numbers_come_first():
    summary, text = shown(parallelism__tp=2)
    assert text[0] == "tiny on nodes: 32 × h100-sxm, tp 2 × pp 1 × dp 16, 1f1b"
    assert [line.split("  ")[1] for line in text[1:4]] == ["step time", "throughput", "memory"]
    assert text[1].startswith(f"  step time   {duration(summary['expected_step_time_s'])}")
    per_gpu = f"{summary['tokens_per_s_per_gpu']:,.1f} a GPU"
    assert text[2].endswith(f"{summary['tokens_per_s']:,.0f} tokens/s, {per_gpu}, MFU {100 * summary['mfu']:.1f} %")
    assert text[3].startswith("  memory      likely fits, ")
    assert text[4].endswith(" published mappings this full ran")
    assert text[5].endswith("64 sequences of 512 tokens, in 2 microbatches of 2 a replica")


def test_the_caveats_are_the_last_two_lines():
    summary, text = shown()
    assert text[-3] == ""
    assert text[-2].startswith("kernels: neusight; interval: ")
    assert text[-2].partition("interval: ")[2] in summary["step_time_interval"]
    assert text[-1].startswith("not modelled: packet loss")
    assert "--verbose" in text[-1]
    _, bound = shown(predictor="roofline")
    assert bound[-2] == "kernels: roofline; interval: kernel times are lower bounds"


def test_verbose_has_what_is_left_out_otherwise():
    summary, text = shown()
    _, more = shown(verbose=True)
    joined = " ".join(line.strip() for line in more)
    rest = (
        "memory of pipeline rank 0, the fullest",
        "busiest link of each tier",
        "error on held-out kernels:",
        "clocks: ",
    )
    for part in (*rest, *summary["not_modelled"], summary["step_time_interval"], *summary["predictor"]["error"]):
        assert part in joined
    assert not any(part in "\n".join(text) for part in rest)
    assert "--verbose" not in joined
    _, quiet = shown(verbose=True, parallelism__dp=1, training__global_batch=8)
    assert "no link carried anything" in "\n".join(quiet)


@pytest.mark.parametrize("verbose", [False, True])
def test_lines_fit_into_a_hundred_columns_and_have_no_trailing_blanks(verbose):
    split = {"parallelism__pp": 4, "parallelism__vpp": 2, "parallelism__schedule": "interleaved"}
    for overrides in ({}, split, {"training__global_batch": 34, "training__micro_batch": 1}):
        _, text = shown(verbose, **overrides)
        assert [line for line in text if len(line) > WIDTH or line != line.rstrip()] == []


def test_one_is_singular():
    _, text = shown(training__global_batch=32, training__micro_batch=1)
    assert "32 sequences of 512 tokens, in 1 microbatch of 1 a replica" in "\n".join(text)


def test_brief_is_the_three_numbers_and_warnings():
    summary, text = shown()
    brief = lines(summary, 0.0, brief=True)
    assert brief[:4] == text[:4]
    assert all(line.startswith(("warning: ", "  ")) for line in brief[4:])
    with_warning = {**summary, "warnings": ["memory is close"]}
    assert lines(with_warning, 0.0, brief=True)[4:] == ["warning: memory is close"]


@pytest.mark.parametrize("name", ["\u202elive", "<script>", 'quo"te'])
def test_a_hostile_name_is_text(name):
    summary, _ = shown()
    [head, *_] = lines({**summary, "name": name}, 0.0)
    assert head.isprintable()
    assert head.startswith(name if name.isprintable() else "\N{REPLACEMENT CHARACTER}live")


def test_a_verdict_has_its_colour():
    summary, _ = shown()
    look = Look(good=lambda t: f"<good>{t}", doubtful=lambda t: f"<doubtful>{t}", bad=lambda t: f"<bad>{t}")
    for full, said in ((0.5, "<good>likely fits"), (0.9, "<doubtful>unlikely to fit"), (1.1, "<bad>DOES NOT FIT")):
        memory = {**summary["memory"], "peak_bytes": full * summary["memory"]["capacity_bytes"]}
        assert said in "\n".join(lines({**summary, "memory": memory}, 0.0, look=look))


def test_the_text_timeline_has_every_pass_where_it_runs():
    """Four equal stages: the last one idles at both ends, the first one in the middle."""
    result = forecast("topologies/nvlink_h100_4.yaml", "docs/examples/pipeline.yaml", {"predictor": "roofline"})
    head, *rows, legend = terminal.timeline(result.record, [0, 1, 2, 3])
    assert head == "timeline, a column is 5.502 ms"
    assert [row[:7] for row in rows] == [f"  pp {stage}  "[:7] for stage in range(4)]
    drawn = [row[8:] for row in rows]
    assert {len(row) for row in drawn} == {terminal.COLUMNS}
    for row, parts in zip(drawn, result.parts, strict=True):
        share = parts["compute"] / result.record.end
        assert sum(row.count(letter) for letter in "FB") / len(row) == pytest.approx(share, abs=0.06)
    assert drawn[3].startswith("......")
    assert drawn[0].startswith("FF")
    assert all(row.endswith("oo") for row in drawn)
    assert set("".join(drawn)) <= set(terminal.LETTERS)
    assert "F forward" in legend


def test_the_text_timeline_shows_the_steady_state_once():
    """Of 128 microbatches on four stages both ends are drawn, and between them one period with how many are like it."""
    files = "topologies/nvlink_h100_4.yaml", "docs/examples/pipeline.yaml"
    result = forecast(*files, {"predictor": "roofline", "training.global_batch": 128})
    head, *rows, _ = terminal.timeline(result.record, [0, 1, 2, 3])
    count = re.fullmatch(r"timeline, a column is .* ms; at \| (\d+) microbatches like those before are left out", head)
    assert count
    assert 100 < int(count[1]) < 128
    assert {(len(row) - 8, row.index("|")) for row in rows} == {(terminal.COLUMNS + 1, rows[0].index("|"))}
    assert rows[0][8:].startswith("FFFF")
    assert rows[3][8:].startswith("..")
    bubble = [row[8:].count(".") for row in rows]
    assert max(bubble) - min(bubble) <= 4  # every stage waits as long for the first and the last microbatch


def test_colours_end_where_the_user_wants_none(monkeypatch):
    monkeypatch.setattr(answer, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert answer.emphasis().strong("x") == "\x1b[1mx\x1b[0m"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as other:
            other.setenv(name, value)
            assert answer.emphasis() is PLAIN


def on_a_terminal(command, folder, **environment):
    """Return what a command writes to a terminal."""
    master, slave = pty.openpty()
    known = {**os.environ, **environment}
    with subprocess.Popen(command, cwd=folder, env=known, stdout=slave, stderr=subprocess.DEVNULL) as process:
        os.close(slave)
        seen = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
        assert process.wait() == 0
    os.close(master)
    return seen


def test_the_three_numbers_are_bold_on_a_terminal_and_plain_in_a_pipe(tmp_path):
    command = [sys.executable, "-m", "clustersim", "run", "nvlink_h100_4", str(ROOT / "docs/examples/pipeline.yaml")]
    command += ["--predictor", "roofline", "--no-save"]
    assert on_a_terminal(command, tmp_path).count(b"\x1b[1m") == 3
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    assert b"\x1b" not in plain


CELLS = [["", "tokens/s", "step", "memory"], ["1.", "932,709", "4.497 s", "73.29 GiB"], ["12.", "1", "5 s", "! 9 GiB"]]


def test_a_table_stays_whole_where_it_has_room_and_in_a_pipe(monkeypatch):
    whole = [
        "     tokens/s     step     memory",
        " 1.   932,709  4.497 s  73.29 GiB",
        "12.         1      5 s    ! 9 GiB",
    ]
    assert table(CELLS) == whole
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(len(whole[1])))
    assert table(CELLS) == whole


@pytest.mark.parametrize("room", [*range(16, 33), 4])
def test_columns_without_room_stand_below_and_none_is_lost(monkeypatch, room):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(room))
    folded = table(CELLS)
    each = len(folded) // len(CELLS)
    assert each > 1
    for row, cells in enumerate(CELLS):
        own = folded[row * each :][:each]
        assert " ".join(own).split() == " ".join(cells).split()
        assert all(line.startswith("     ") for line in own[1:])
    assert room < 16 or max(map(len, folded)) <= room


def test_cells_that_are_empty_take_no_line_below(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "16")
    assert table([["what", "number", "of"], ["in all", "12", ""]], "<") == [
        "what    number",
        "        of",
        "in all  12",
    ]


def test_sentences_fit_the_terminal_and_what_is_copied_stays_whole(monkeypatch):
    sentence, flags, listed = "  " + "word " * 20 + "end", "all on: " + "--set a=b " * 9, "0F0," * 30
    assert fitted([sentence, flags]) == [sentence, flags]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    first, *others = fitted([f"short\n{sentence}", flags, listed])[1:-2]
    assert max(map(len, [first, *others])) <= 50 and first.startswith("  word") and others[0].startswith("    word")
    assert " ".join([first, *others]).split() == sentence.split()
    bare = "clustersim run topologies/of_a_long_name.yaml workloads/another.yaml"
    commands = [bare, *best_lines(shlex.split(f"{bare} --tp 4 --pp 2"))]
    assert fitted(commands) == commands and commands[2] == f"  {bare} \\"
    row = "      1048576        262144     float     sum      -1    24.31"
    assert fitted([row]) == [row]
    assert fitted([flags, listed, f"\x1b[1m{'x ' * 25}\x1b[0m"])[:3] == [flags, listed, f"\x1b[1m{'x ' * 25}\x1b[0m"]


def test_lines_are_folded_at_the_width_of_a_narrow_terminal(tmp_path):
    words = shlex.split("run hgx_h100_8 gpt3_xl --tp 2 --no-save --verbose")
    command = [sys.executable, "-m", "clustersim", *words]
    seen = on_a_terminal(command, tmp_path, COLUMNS="72", LINES="40")
    lines = re.sub(rb"\x1b\[[0-9;]*m", b"", seen).decode().splitlines()
    drawn = next(i for i, line in enumerate(lines) if line.startswith("timeline"))
    timeline = next(i for i, line in enumerate(lines) if line.startswith("  F forward"))
    assert [line for line in [*lines[:drawn], *lines[timeline:]] if len(line) > 72] == []
    clocks = next(i for i, line in enumerate(lines) if line.startswith("  clocks"))
    assert lines[clocks + 1].startswith(" " * 14)
