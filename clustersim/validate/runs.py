"""A CSV of measured training steps → rows. The annotated fields of `Run` are the columns that are read; others are ignored.

A row that cannot be read has the reason in `unreadable` and counts as refused; the other rows of its file are compared.
"""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

from clustersim.errors import ConfigError, InputError, shown
from clustersim.files import TABLE, read_bytes, read_text

PUBLISHED = Path(__file__).parent / "published_runs.csv"
"""The shipped table of published runs: each with its public source and this release's forecast."""
MOST_ROWS = 100_000
DEEPEST = 1_000
"""Layers of the deepest Transformer that was trained (DeepNet, arXiv 2203.00555); more take minutes to cut into stages."""
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
"""Words that switch a setting off, in lower case; a blank cell means the framework's default."""
KeyValues = tuple[tuple[str, str], ...]
"""((key, value), …) of a cell such as `training.cuda_graphs=full; parallelism.vpp=2`."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def _whole_number(text: str, least: int = 1, most: float = math.inf, none: int | None = None) -> int:
    """Return a whole number such as 8, 8.0, 1,024 or 4K (4096); `none`, if not None, for a word of NONE except `0`.

    Raises ValueError for other text or a number below `least` or above `most`, and OverflowError above sys.maxsize.
    """
    if none is not None and text.lower() in NONE - {"0"}:
        return none
    plain = _THOUSANDS.sub("", text)
    kilo = re.fullmatch(r"(\d+)\s?[kK]i?", plain)  # a sequence of 4K tokens
    # a table program writes 8.0 where other rows of the column are blank
    value = int(kilo[1]) * 1024 if kilo else int(plain.removesuffix(".0"))
    if not least <= value <= most:
        raise ValueError(text)
    if value > sys.maxsize:
        raise OverflowError(text)
    return value


def _heads(text: str) -> int | str:
    """Return the number of key-value heads, 1 for `MQA`, or the text `MLA`. Raises ValueError for other words."""
    return 1 if text.upper() == "MQA" else "MLA" if text.upper() == "MLA" else _whole_number(text)


def _zero_stage(text: str) -> int:
    """Return the stage of ZeRO from a number of 0 or more, its name or an equivalent library. Raises ValueError for others."""
    plain = re.sub(r"[\s_-]+|^(?:zero|stage)+", "", text.lower()).removeprefix("stage")
    return STAGES[plain] if plain in STAGES else _whole_number(plain, 0, none=0)


def _number(text: str) -> float:
    """Return a finite number of 0 or more, such as 1,600 or 0.5. Raises ValueError for others."""
    value = float(_THOUSANDS.sub("", text))
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(text)
    return value


def _seconds(text: str) -> float:
    """Return seconds from text with or without a unit (s or ms). Raises ValueError if it is not 1e-6 to 1e6 seconds."""
    match = re.fullmatch(r"(.*\d)\s?(ms|s|sec|seconds)", text)
    value = float(match[1] if match else text) * (1e-3 if match and match[2] == "ms" else 1.0)
    if not 1e-6 <= value <= 1e6:
        raise ValueError(text)
    return value


def _flag(text: str) -> bool:
    """Return whether a cell says yes. Raises ValueError for a word that means neither yes nor no."""
    plain = text.lower().removesuffix(".0")
    if plain not in NONE and plain not in ("1", "true", "yes", "on", "y", "t", "enabled"):
        raise ValueError(text)
    return plain not in NONE


def _fused_attention(text: str) -> bool:
    """Return whether attention is fused, which the name of its kernel implies. Raises ValueError for an unknown name."""
    if re.search(r"unfused|eager|naive|math", text.lower()):
        return False
    fused = r"fa-?[1-4]|flash|cudnn|te\b|fused|sdpa|xformers|triton|splash|aiter|ck\b"
    return bool(re.match(fused, text.lower())) or _flag(text)


def _overlap_tp(text: str) -> bool | str:
    """Return a value of `parallelism.overlap.tp`, or whether `--tp-comm-overlap` is set. Raises ValueError for other words."""
    plain = "none" if text.lower() in NONE - {"0", "false", "f"} else text.lower()
    return plain if plain in ("none", "bulk", "ring", "async") else _flag(text)


def _pairs(text: str) -> KeyValues:
    """Return the keys and values of `key=value; key=value`. Raises ValueError if a part has another form."""
    parts = [part.partition("=") for part in text.split(";") if part.strip()]
    if not all(key.strip() and equals and value.strip() for key, equals, value in parts):
        raise ValueError(text)
    return tuple((key.strip(), value.strip()) for key, _, value in parts)


class ColumnReader(NamedTuple):
    """Reading of the cells of one column."""

    read: Callable[[str], Any]
    values: str
    """Valid values, in words."""


TextColumn = Annotated[str, ColumnReader(str, "text")]
CountColumn = Annotated[int | None, ColumnReader(_whole_number, "a whole number of 1 or more")]
IndexColumn = Annotated[
    int | None, ColumnReader(partial(_whole_number, least=0, none=0), "a whole number of 0 or more")
]
DegreeColumn = Annotated[int | None, ColumnReader(partial(_whole_number, none=1), "a whole number of 1 or more")]
NumberColumn = Annotated[float | None, ColumnReader(_number, "a number")]
FlagColumn = Annotated[bool | None, ColumnReader(_flag, "1 or 0")]
PairsColumn = Annotated[KeyValues, ColumnReader(_pairs, "key=value, several of them with ; between")]


class Refusal(Exception):  # noqa: N818 - a run that cannot be simulated is not an error
    """A run that cannot be simulated. kind: category for counts; why: one sentence."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind, self.why = kind, why


@dataclass(frozen=True, slots=True)
class Run:
    """One measured step, as its source describes it; None is a blank: the source does not specify it.

    Times are seconds per step; the network is Gb/s per GPU and direction.
    """

    id: TextColumn
    line: int
    """Line in the file."""
    gpu: TextColumn
    num_gpus: CountColumn
    gpus_per_node: CountColumn
    nic_gbps_per_gpu: NumberColumn
    nvlink_domain: CountColumn
    framework: TextColumn
    model: TextColumn
    layers: Annotated[
        int | None, ColumnReader(partial(_whole_number, most=DEEPEST), f"a whole number of 1 to {DEEPEST:,}")
    ]
    hidden: CountColumn
    ffn_hidden: CountColumn
    heads: CountColumn
    kv_heads: Annotated[int | str | None, ColumnReader(_heads, "a whole number of 1 or more, or MLA")]
    seq: CountColumn
    vocab: CountColumn
    experts: IndexColumn
    topk: IndexColumn
    shared_experts: IndexColumn
    global_batch: CountColumn
    micro_batch: CountColumn
    tp: DegreeColumn
    pp: DegreeColumn
    vpp: DegreeColumn
    dp: DegreeColumn
    cp: DegreeColumn
    ep: DegreeColumn
    sequence_parallel: FlagColumn
    zero_stage: Annotated[int | None, ColumnReader(_zero_stage, "a whole number of 0 or more")]
    recompute: TextColumn
    precision: TextColumn
    flash_attention: Annotated[bool | None, ColumnReader(_fused_attention, "1 or 0")]
    overlap_grad_reduce: FlagColumn
    overlap_param_gather: FlagColumn
    overlap_tp: Annotated[bool | str | None, ColumnReader(_overlap_tp, "1 or 0, none, bulk, ring or async")]
    overlap_p2p: FlagColumn
    sec_per_iter: Annotated[float | None, ColumnReader(_seconds, "seconds of a step, 1e-6 to 1e6")]
    year: CountColumn
    source: TextColumn
    status: TextColumn
    memory_gb: NumberColumn
    original_interconnect: TextColumn
    original_precision: TextColumn
    original_overlap: TextColumn
    original_recompute: TextColumn
    comment: TextColumn
    """The source's own words."""
    launch: Annotated[Path | None, ColumnReader(Path, "the path of a file")]
    """A Megatron launch script, a config.json or a workload file that completes blank columns."""
    set: PairsColumn
    """Overriding values by dotted key of the workload."""
    cluster_set: PairsColumn
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
        """Whether the run completed a step: `status` is ok or blank. Only then is a time expected."""
        return self.status in ("", "ok")


COLUMNS: Mapping[str, ColumnReader] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Run, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
"""{column: how its cells are read}"""
REQUIRED = ("id", "gpu", "framework", "sec_per_iter")
"""Columns that a file must have; other columns and single cells may be blank if another source has the value."""
MISSING = "\0"
"""Placeholder for a missing column or cell; no text file contains it."""
PEER = re.compile(r"peer_(\w+)_s")


def read(path: Path) -> list[Run]:
    """Return the rows of a CSV file; unreadable rows and repeated ids have a reason in `unreadable`.

    Raises InputError if the file is not a table of runs, has no rows, or has more than MOST_ROWS.
    """
    line_by_id: dict[str, int] = {}
    result: list[Run] = []
    for line, cells in table(path, REQUIRED):
        if len(result) == MOST_ROWS:
            raise ConfigError(str(path), line, 1, f"more than {MOST_ROWS:,} runs; split the file")
        run = _run(path, line, cells)
        if run.id in line_by_id:
            run = repeated(path, run, f"line {line_by_id[run.id]}")
        line_by_id[run.id] = line
        result.append(run)
    if not result:
        raise InputError(f"{path}: has no runs under its header; add a line for each")
    return result


def repeated(path: Path, run: Run, first_place: str) -> Run:
    """Return an unreadable run with a new id. run: its id is used already, in the row or file named by `first_place`."""
    what = f"id: {shown(run.id)} stands in {first_place} already; give every run its own"
    error = ConfigError(str(path), run.line, 1, what)
    return replace(run, id=f"{run.id} ({path.name}:{run.line})", unreadable=run.unreadable or str(error))


def table(path: Path, required: tuple[str, ...]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Yield (line, [(column, cell)]) of a CSV file that has the `required` columns.

    A row may have more or fewer cells than there are columns: `by_column` checks that. Raises InputError if a required column
    is missing, a column is there twice, or the text is not valid CSV.
    """
    csv.field_size_limit(TABLE)  # a cell may be as long as its file
    rows = csv.reader(io.StringIO(_content(path, required), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        if missing := [name for name in required if name not in header]:
            names = "the first line names the columns, docs/validation.md lists them"
            raise ConfigError(str(path), 1, 1, f"no column {', '.join(missing)}; {names}")
        if twice := [name for name in header if name and header.count(name) > 1]:
            raise ConfigError(str(path), 1, 1, f"two columns {shown(twice[0])}; keep one")
        for cells in rows:
            if any(cells):
                yield rows.line_num, list(zip_longest(header, (cell.strip() for cell in cells), fillvalue=MISSING))
    except csv.Error as error:
        what = f"not valid CSV: {error}; quote text that holds commas or quotes"
        raise ConfigError(str(path), rows.line_num, 1, what) from error


def by_column(path: Path, line: int, cells: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return {column: cell} of a row. cells: pairs as from `table`, with MISSING for a column or cell too few.

    Raises ConfigError if there are more or fewer cells than columns.
    """
    names, texts = (sum(part is not MISSING for part in column) for column in zip(*cells, strict=True))
    if names != texts:
        what = f"{texts} cells under {names} columns; put text that holds commas in quotes"
        raise ConfigError(str(path), line, 1, what)
    return dict(cells)


def _content(path: Path, required: tuple[str, ...]) -> str:
    """Return the text of a CSV file. Invalid bytes become � if the first line has the columns; else they raise ConfigError."""
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


def _cell(name: str, text: str, reader: ColumnReader) -> Any:
    """Return the value of a cell; None (text: "") if it is blank. Raises ValueError with a message that names the column."""
    if reader.read is str:
        return "" if text.lower() in BLANK else text
    if not text or (text.lower() in BLANK and name != "sec_per_iter"):
        return None
    try:
        if reader.read not in (Path, _pairs) and ("_" in text or not text.isascii()):
            raise ValueError(text)  # Python reads 1_0 and digits of other scripts as numbers
        return reader.read(text)
    except OverflowError:
        raise ValueError(f"{name}: {shown(text)} is above the largest value, {sys.maxsize:,}") from None
    except ValueError:
        raise ValueError(f"{name}: {shown(text)} is not {reader.values}") from None


def _run(path: Path, line: int, cells: Sequence[tuple[str, str]]) -> Run:
    """Return the run of a row; `unreadable` has the first error. cells: (column, text) as from `table`."""
    errors: list[str] = []

    def fault(what: str) -> None:
        """Record an error of the row."""
        errors.append(str(ConfigError(str(path), line, 1, what)))

    def cell(name: str, reader: ColumnReader) -> Any:
        """Return the value of a cell; None after recording an error."""
        try:
            return _cell(name, texts.get(name, ""), reader)
        except ValueError as error:
            fault(str(error))
            return None

    try:
        texts = by_column(path, line, cells)
    except ConfigError as error:
        errors.append(str(error))
        texts = {name: text for name, text in cells if MISSING not in (name, text)}
    values = {name: cell(name, reader) for name, reader in COLUMNS.items()}
    peers = {tool[1]: cell(name, COLUMNS["sec_per_iter"]) for name in texts if (tool := PEER.fullmatch(name))}
    values["peers"] = tuple((name, value) for name, value in peers.items() if value is not None)
    for name in ("id", "gpu", "framework"):
        if not values[name]:
            fault(f"{name}: is blank; every run needs one")
    values["id"] = values["id"] or f"{path.name}:{line}"
    values["launch"] = values["launch"] and path.parent / values["launch"]
    values |= {name: values[name] or () for name in ("set", "cluster_set")}
    run = Run(line=line, **values)
    if run.ran and run.sec_per_iter is None and not errors:
        fault("sec_per_iter: is blank; write the measured seconds of a step, or in a column status why there are none")
    return replace(run, unreadable=errors[0]) if errors else run
