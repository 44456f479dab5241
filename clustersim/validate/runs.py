"""A CSV of measured training steps → rows. `COLUMNS` lists the columns that are read; others are ignored.

A row that cannot be read has the reason in `unreadable` and counts as refused; the other rows of its file are compared.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from clustersim.errors import ConfigError, InputError, shown
from clustersim.files import TABLE, read_bytes, read_text

MOST_ROWS = 100_000
SHORTEST, LONGEST = 1e-6, 1e6
"""Smallest and largest seconds of a plausible step."""
KeyValues = tuple[tuple[str, str], ...]
"""Keys and values of a cell such as `training.cuda_graphs=full; parallelism.vpp=2`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured step, as its source describes it; None is a blank: the source does not specify it.

    Times are seconds per step; the network is Gb/s per GPU and direction.
    """

    id: str
    line: int
    """Line in the file."""
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
    overlap_tp: bool | str | None
    overlap_p2p: bool | None
    sec_per_iter: float | None
    year: int | None
    source: str
    status: str
    memory_gb: float | None
    original_interconnect: str
    original_precision: str
    original_overlap: str
    original_recompute: str
    comment: str
    """The source's own words."""
    launch: Path | None
    """A Megatron launch script, a config.json or a workload file that completes blank columns."""
    set: KeyValues
    """Overriding values by dotted key of the workload."""
    cluster_set: KeyValues
    """Overriding values by dotted key of the cluster."""
    peers: tuple[tuple[str, float], ...] = ()
    """(tool, forecast) of other tools, from columns such as `peer_simumax_s`."""
    unreadable: str = ""
    """Error in the row, with file and line; "" if it was read."""

    @property
    def publisher(self) -> str:
        """Publisher: the first word of the id, such as `VTRAINS` of `VTRAINS-017`."""
        word = re.split(r"[-_ ]", self.id, maxsplit=1)[0]
        if word == self.id:
            return self.id.rstrip("0123456789") or self.id
        return re.sub(r"^(MP[A-Z]+)\d$", r"\1", word)  # a submitter of another round of MLPerf

    @property
    def ran(self) -> bool:
        """Whether a step was measured; for crashed runs `status` is not ok."""
        return self.status in ("", "ok")


def _text(text: str) -> str:
    return text


def _whole(text: str) -> int:
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)  # 1,024
    if found := re.fullmatch(r"(\d+)\s?[kK]i?", plain):  # a sequence of 4K tokens
        return int(found[1]) * 1024
    return int(plain.removesuffix(".0"))  # a table program writes 8.0 where other rows of the column are blank


def _count(text: str) -> int:
    if (value := _whole(text)) < 1:
        raise ValueError("write a whole number of 1 or more")
    return value


def _depth(text: str) -> int:
    if (value := _count(text)) > DEEPEST:
        raise ValueError("no model is as deep")
    return value


def _degree(text: str) -> int:
    return 1 if text.lower() in NONE and text != "0" else _count(text)


def _index(text: str) -> int:
    if (value := 0 if text.lower() in NONE else _whole(text)) < 0:
        raise ValueError("write a whole number of 0 or more")
    return value


def _word_or_count(text: str) -> int | str:
    if text.upper() == "MQA":
        return 1
    return "MLA" if text.upper() == "MLA" else _count(text)


def _stage(text: str) -> int:
    """Return the stage of ZeRO written as a number, as its name or as an equivalent library."""
    plain = re.sub(r"[\s_-]+|^(?:zero|stage)+", "", text.lower()).removeprefix("stage")
    return STAGES[plain] if plain in STAGES else _index(plain)


def _number(text: str) -> float:
    value = float(re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text))
    if not math.isfinite(value) or value < 0:
        raise ValueError("write a finite number of 0 or more")
    return value


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(.*\d)\s?(ms|s|sec|seconds)", text)
    value = float(found[1] if found else text) * (1e-3 if found and found[2] == "ms" else 1.0)
    if not SHORTEST <= value <= LONGEST:
        raise ValueError("a measured time is above 0")
    return value


def _flag(text: str) -> bool:
    plain = text.lower().removesuffix(".0")
    if plain in ("1", "true", "yes", "on", "y", "t", "enabled"):
        return True
    if plain in NONE:
        return False
    raise ValueError("write 1 or 0")


def _flash(text: str) -> bool:
    """Return whether attention is fused, which the name of its kernel implies."""
    if re.search(r"unfused|eager|naive|math", text.lower()):
        return False
    return bool(
        re.match(r"fa-?[1-4]|flash|cudnn|te\b|fused|sdpa|xformers|triton|splash|aiter|ck\b", text.lower())
    ) or _flag(text)


def _overlap_tp(text: str) -> bool | str:
    """Return a value of `parallelism.overlap.tp`, or whether the option of the framework (`--tp-comm-overlap`) is set."""
    plain = "none" if text.lower() in NONE - {"0", "false", "f"} else text.lower()
    return plain if plain in ("none", "bulk", "ring", "async") else _flag(text)


def _path(text: str) -> Path:
    return Path(text)


def _pairs(text: str) -> KeyValues:
    parts = [part.partition("=") for part in text.split(";") if part.strip()]
    if not all(key.strip() and equals and value.strip() for key, equals, value in parts):
        raise ValueError("write key=value, several of them with ; between")
    return tuple((key.strip(), value.strip()) for key, _, value in parts)


STAGES = {
    "ddp": 0,
    **dict.fromkeys(("1", "os", "distributedoptimizer", "distopt"), 1),
    **dict.fromkeys(("2", "osg", "shardgradop", "sdp"), 2),
    **dict.fromkeys(("3", "fsdp", "fsdp1", "fsdp2", "fullshard", "hsdp", "hybrid", "hybridshard", "megatronfsdp"), 3),
}
"""{other name in lower case, without spaces and hyphens: stage of ZeRO}"""
BLANK = frozenset(
    (
        *("n/a", "na", "n.a.", "-", "–", "—", "?", "null", "nan", "tbd"),
        *("unknown", "unspecified", "not stated", "not published"),
    )
)
"""Words for a blank cell, in lower case."""
NONE = frozenset(("none", "no", "n", "off", "0", "false", "f", "disabled", "without", "w/o"))
"""Words for a setting that a run does without, in lower case; a blank cell means the framework's default."""
Reader = Callable[[str], Any]
DEEPEST = 1_000
"""Layers of the deepest Transformer that was trained (DeepNet, arXiv 2203.00555); more take minutes to cut into stages."""
COUNT: tuple[Reader, str] = (_count, "a whole number of 1 or more")
COLUMNS: Mapping[str, tuple[Reader, str]] = {
    **dict.fromkeys(
        (
            *("id", "gpu", "framework", "model", "recompute", "precision", "source", "status", "comment"),
            *("original_interconnect", "original_precision", "original_overlap", "original_recompute"),
        ),
        (_text, "text"),
    ),
    **dict.fromkeys(("nic_gbps_per_gpu", "memory_gb"), (_number, "a number")),
    **dict.fromkeys(("num_gpus", "gpus_per_node", "nvlink_domain", "year"), COUNT),
    "layers": (_depth, f"a whole number of 1 to {DEEPEST:,}"),
    **dict.fromkeys(("hidden", "ffn_hidden", "heads"), COUNT),
    "kv_heads": (_word_or_count, "a whole number of 1 or more, or MLA"),
    **dict.fromkeys(("seq", "vocab", "global_batch", "micro_batch"), COUNT),
    **dict.fromkeys(("experts", "topk", "shared_experts"), (_index, "a whole number of 0 or more")),
    **dict.fromkeys(("tp", "pp", "vpp", "dp", "cp", "ep"), (_degree, COUNT[1])),
    "sequence_parallel": (_flag, "1 or 0"),
    "zero_stage": (_stage, "a whole number of 0 or more"),
    "flash_attention": (_flash, "1 or 0"),
    **dict.fromkeys(("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p"), (_flag, "1 or 0")),
    "overlap_tp": (_overlap_tp, "1 or 0, none, bulk, ring or async"),
    "sec_per_iter": (_seconds, "seconds of a step, 1e-6 to 1e6"),
    "launch": (_path, "the path of a file"),
    **dict.fromkeys(("set", "cluster_set"), (_pairs, "key=value, several of them with ; between")),
}
"""{column: (reader, description of its values)}"""
REQUIRED = ("id", "gpu", "framework", "sec_per_iter")
"""Columns that a file must have; other columns and single cells may be blank if another source has the value."""
MISSING = "\0"
"""Placeholder for a missing column or cell; no text file contains it."""
PEER = re.compile(r"peer_(\w+)_s")
assert set(COLUMNS) | {"line", "peers", "unreadable"} == {field.name for field in fields(Run)}


def read(path: Path) -> list[Run]:
    """Return the rows of one file, unreadable ones with their reason. Raises InputError if it is not a table of runs."""
    seen: dict[str, int] = {}
    result: list[Run] = []
    for line, cells in table(path, REQUIRED):
        if len(result) == MOST_ROWS:
            raise ConfigError(str(path), line, 1, f"more than {MOST_ROWS:,} runs; split the file")
        run = _run(path, line, cells)
        if run.id in seen:
            where = f"line {seen[run.id]}"
            run = repeated(path, run, where)
        seen[run.id] = line
        result.append(run)
    if not result:
        raise InputError(f"{path}: has no runs under its header; add a line for each")
    return result


def repeated(path: Path, run: Run, where: str) -> Run:
    """Return a run whose id is already used, as an unreadable one with a unique id."""
    what = f"id: {shown(run.id)} stands in {where} already; give every run its own"
    error = ConfigError(str(path), run.line, 1, what)
    return replace(run, id=f"{run.id} ({path.name}:{run.line})", unreadable=run.unreadable or str(error))


def table(path: Path, required: tuple[str, ...]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Yield (line, [(column, cell)]) of a CSV file that has the `required` columns.

    A row may have more or fewer cells than there are columns: `by_column` checks that. Raises InputError.
    """
    csv.field_size_limit(TABLE)  # a cell may be as long as its file
    rows = csv.reader(io.StringIO(_content(path, required), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        _check_header(path, header, required)
        for cells in rows:
            if any(cells):
                yield rows.line_num, list(zip_longest(header, (cell.strip() for cell in cells), fillvalue=MISSING))
    except csv.Error as error:
        raise ConfigError(
            str(path), rows.line_num, 1, f"not valid CSV: {error}; quote text that holds commas or quotes"
        ) from error


def by_column(path: Path, line: int, cells: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return {column: cell} of a row. Raises ConfigError for a row with more or fewer cells."""
    names, texts = (sum(one is not MISSING for one in column) for column in zip(*cells, strict=True))
    if names != texts:
        what = f"{texts} cells under {names} columns; put text that holds commas in quotes"
        raise ConfigError(str(path), line, 1, what)
    return dict(cells)


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


def _content(path: Path, required: tuple[str, ...]) -> str:
    """Return the text of a file. Invalid bytes become � if the first line has column names: only their row is affected."""
    what = "a CSV file of measured runs"
    try:
        text = read_text(path, what, TABLE)
    except ConfigError:
        text = read_bytes(path, what, TABLE).decode("utf-8-sig", errors="replace")
        if not all(name in text.partition("\n")[0] for name in required):
            raise
    if "\0" in text and not all(name in text.partition("\n")[0] for name in required):
        raise ConfigError(str(path), text.count("\n", 0, text.index("\0")) + 1, 1, "not a text file; give a CSV file")
    return text.replace("\0", "\ufffd")


def _cell(path: Path, line: int, name: str, text: str, reader: Reader, what: str) -> Any:
    """Return the value of a cell; None if it is blank, except for text. Raises ConfigError."""
    if reader is _text:
        return "" if text.lower() in BLANK else text
    if text.lower() in BLANK and name != "sec_per_iter":
        return None
    try:
        if reader not in (_path, _pairs) and ("_" in text or not text.isascii()):
            raise ValueError(text)  # Python reads 1_0 and digits of other scripts as numbers
        return reader(text) if text else None
    except (ValueError, OverflowError):
        raise ConfigError(str(path), line, 1, f"{name}: {shown(text)} is not {what}") from None


def _run(path: Path, line: int, cells: Sequence[tuple[str, str]]) -> Run:
    """Return the run of a row; errors are in `unreadable`, and blank words count as blank."""
    wrong: list[ConfigError] = []

    def cell(name: str, text: str, reader: Reader, what: str) -> Any:
        try:
            return _cell(path, line, name, text, reader, what)
        except ConfigError as error:
            wrong.append(error)
            return None

    try:
        texts = by_column(path, line, cells)
    except ConfigError as error:
        wrong.append(error)
        texts = {name: text for name, text in cells if MISSING not in (name, text)}
    values = {name: cell(name, texts.get(name, ""), *how) for name, how in COLUMNS.items()}
    peers = {
        found[1]: cell(name, texts[name], *COLUMNS["sec_per_iter"]) for name in texts if (found := PEER.fullmatch(name))
    }
    values["peers"] = tuple((name, value) for name, value in peers.items() if value is not None)
    blank = (name for name in ("id", "gpu", "framework") if not values[name])
    wrong += [ConfigError(str(path), line, 1, f"{name}: is blank; every run needs one") for name in blank]
    values["id"] = values["id"] or f"{path.name}:{line}"
    values["launch"] = values["launch"] and path.parent / values["launch"]
    for name in ("set", "cluster_set"):
        values[name] = values[name] or ()
    run = Run(line=line, **values, unreadable=str(wrong[0]) if wrong else "")
    if run.ran and run.sec_per_iter is None and not wrong:
        what = "sec_per_iter: is blank; write the measured seconds of a step, or in a column status why there are none"
        return replace(run, unreadable=str(ConfigError(str(path), line, 1, what)))
    return run
