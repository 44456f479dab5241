"""A CSV of measured training steps → checked rows. `COLUMNS` is the list of what is read; other columns are left alone."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from clustersim.errors import ConfigError, InputError, shown
from clustersim.files import TABLE, read_text

MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Run:
    """One measured step, as its source describes it; None is a blank: the source does not say.

    Times are seconds of one step, the network Gb/s a GPU and direction.
    """

    id: str
    line: int
    """Where it stands."""
    gpu: str
    num_gpus: int | None
    gpus_per_node: int | None
    nic_gbps_per_gpu: float | None
    nvlink_domain: int | None
    framework: str
    model: str
    layers: int | None
    hidden: int | None
    ffn_hidden: int | None
    heads: int | None
    kv_heads: int | str | None
    seq: int | None
    vocab: int | None
    experts: int | None
    topk: int | None
    shared_experts: int | None
    global_batch: int | None
    micro_batch: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    sequence_parallel: bool | None
    zero_stage: int | None
    recompute: str
    precision: str
    flash_attention: bool | None
    overlap_grad_reduce: bool | None
    overlap_param_gather: bool | None
    overlap_tp: bool | None
    overlap_p2p: bool | None
    sec_per_iter: float | None
    year: int | None
    source: str
    status: str
    memory_gb: float | None
    original_interconnect: str
    original_precision: str
    """The source's own words."""
    peers: tuple[tuple[str, float], ...] = ()
    """What other tools forecast, from columns such as `peer_simumax_s`."""

    @property
    def ran(self) -> bool:
        """Whether a step was measured; `status` of those that crashed says something else than ok."""
        return self.status in ("", "ok")


def _text(text: str) -> str:
    return text


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError("write a whole number of 1 or more")
    return value


def _index(text: str) -> int:
    if (value := int(text)) < 0:
        raise ValueError("write a whole number of 0 or more")
    return value


def _word_or_count(text: str) -> int | str:
    return text if text.isalpha() and text.isascii() else _count(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError("write a finite number of 0 or more")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise ValueError("a measured time is above 0")
    return value


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise ValueError("write 1 or 0")


Reader = Callable[[str], Any]
COUNT: tuple[Reader, str] = (_count, "a whole number of 1 or more")
COLUMNS: Mapping[str, tuple[Reader, str]] = {
    "id": (_text, "text"),
    "gpu": (_text, "text"),
    **dict.fromkeys(("num_gpus", "gpus_per_node"), COUNT),
    "nic_gbps_per_gpu": (_number, "a number"),
    "nvlink_domain": COUNT,
    **dict.fromkeys(("framework", "model"), (_text, "text")),
    **dict.fromkeys(("layers", "hidden", "ffn_hidden", "heads"), COUNT),
    "kv_heads": (_word_or_count, "a whole number of 1 or more, or MLA"),
    **dict.fromkeys(("seq", "vocab", "experts", "topk"), COUNT),
    "shared_experts": (_index, "a whole number of 0 or more"),
    **dict.fromkeys(("global_batch", "micro_batch", "tp", "pp", "vpp", "dp", "cp", "ep"), COUNT),
    "sequence_parallel": (_flag, "1 or 0"),
    "zero_stage": (_index, "a whole number of 0 or more"),
    **dict.fromkeys(("recompute", "precision"), (_text, "text")),
    **dict.fromkeys(
        ("flash_attention", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p"),
        (_flag, "1 or 0"),
    ),
    "sec_per_iter": (_seconds, "seconds above 0"),
    "year": COUNT,
    "source": (_text, "text"),
    "status": (_text, "text"),
    "memory_gb": (_number, "a number"),
    "original_interconnect": (_text, "text"),
    "original_precision": (_text, "text"),
}
"""Every column that is read, what reads it and what it holds."""
REQUIRED = (
    *("id", "gpu", "num_gpus", "framework", "model", "layers", "hidden", "heads", "seq", "vocab"),
    *("global_batch", "tp", "pp", "dp", "precision", "sec_per_iter"),
)
"""Columns that a file must have; single cells may be blank, and such a row is refused, not the file."""
PEER = re.compile(r"peer_(\w+)_s")
assert set(COLUMNS) | {"line", "peers"} == {field.name for field in fields(Run)}


def read(path: Path) -> list[Run]:
    """Return the rows of one file. Raises InputError with file and line for the first thing wrong."""
    seen: dict[str, int] = {}
    result: list[Run] = []
    for line, cells in table(path, REQUIRED):
        if len(result) == MOST_ROWS:
            raise ConfigError(str(path), line, 1, f"more than {MOST_ROWS:,} runs; split the file")
        run = _run(path, line, cells)
        if run.id in seen:
            what = f"id: {shown(run.id)} stands in line {seen[run.id]} already; give every run its own"
            raise ConfigError(str(path), line, 1, what)
        seen[run.id] = line
        result.append(run)
    if not result:
        raise InputError(f"{path}: has no runs under its header; add a line for each")
    return result


def table(path: Path, required: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, cells by column) of a CSV file that has the `required` columns. Raises InputError."""
    rows = csv.reader(io.StringIO(_content(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        _check_header(path, header, required)
        for cells in rows:
            if not any(cells):
                continue
            if len(cells) != len(header):
                what = f"{len(cells)} cells under {len(header)} columns; put text that holds commas in quotes"
                raise ConfigError(str(path), rows.line_num, 1, what)
            yield rows.line_num, dict(zip(header, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        raise ConfigError(
            str(path), rows.line_num, 1, f"not valid CSV: {error}; quote text that holds commas or quotes"
        ) from error


def _check_header(path: Path, header: list[str], required: tuple[str, ...]) -> None:
    if missing := [name for name in required if name not in header]:
        raise ConfigError(
            str(path),
            1,
            1,
            f"no column {', '.join(missing)}; the first line names the columns, docs/validation.md lists them",
        )
    for name in header:
        if header.count(name) > 1 and name:
            raise ConfigError(str(path), 1, 1, f"two columns {shown(name)}; keep one")


def _content(path: Path) -> str:
    text = read_text(path, "a CSV file of measured runs", TABLE)
    if "\0" in text:
        raise ConfigError(str(path), text.count("\n", 0, text.index("\0")) + 1, 1, "not a text file; give a CSV file")
    return text


def _cell(path: Path, line: int, name: str, text: str, reader: Reader, what: str) -> Any:
    """Return what a cell holds; None when it is blank, but text stays text. Raises ConfigError."""
    if reader is _text:
        return text
    try:
        if "_" in text or not text.isascii():  # Python reads 1_0 and digits of other scripts
            raise ValueError(text)
        return reader(text) if text else None
    except (ValueError, OverflowError):
        raise ConfigError(str(path), line, 1, f"{name}: {shown(text)} is not {what}") from None


def _run(path: Path, line: int, cells: Mapping[str, str]) -> Run:
    values: dict[str, Any] = {"line": line}
    for name, (reader, what) in COLUMNS.items():
        values[name] = _cell(path, line, name, cells.get(name, ""), reader, what)
    peers = {
        found[1]: _cell(path, line, name, cells[name], *COLUMNS["sec_per_iter"])
        for name in cells
        if (found := PEER.fullmatch(name))
    }
    values["peers"] = tuple((name, value) for name, value in peers.items() if value is not None)
    for name in ("id", "gpu", "framework", "model"):
        if not values[name]:
            raise ConfigError(str(path), line, 1, f"{name}: is blank; every run needs one")
    run = Run(**values)
    if run.ran and run.sec_per_iter is None:
        what = "sec_per_iter: is blank; write the measured seconds of a step, or in a column status why there are none"
        raise ConfigError(str(path), line, 1, what)
    return run
