"""Settings that a source states in words instead of columns: graphs, eager mode, schedules, dispatchers, formats."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

from clustersim.config.yaml import read_packaged
from clustersim.validate.runs import Run


class Phrase(NamedTuple):
    """A phrase in the words of a run's row, and its meaning for a workload."""

    pattern: str
    """Regular expression of the phrase, in lower case."""
    key: str
    """Dotted key of a workload that the phrase sets."""
    value: object
    without: object = None
    """Value if the source denies the phrase, as in `no CUDA graphs`; None: a denial sets nothing."""

    @property
    def source(self) -> str:
        """Name of the phrase among the sources that a run's files depend on: `words ` and the pattern."""
        return f"words {self.pattern}"


TABLE = read_packaged(Path(__file__).with_name("words.yaml")).data
PHRASES = tuple(Phrase(**row) for row in TABLE["phrases"])
"""All phrases; the first match determines a key."""
_NOT = re.compile(
    r"(?:\bno|\bnot|\bwithout|\bw/o|\boff:?|non|\bdisabled?:?)[ -]*(?:full[ -](?:(?:iteration|step|model)[ -])?)?$"
)
_THEN_NOT = re.compile(
    r"^s?\)?[ :=-]*(?:are |is |was |were )?(?:off\b|not\b|none\b|no\b|false\b|0\b|disabled|rejected|unused|tried)"
)
_SILENT = re.compile(r"^s?\)?[ :=-]*(?:are |is |was |were )?(?:not|un)[ -]?(?:stated|given|known|published|specified)")
_ONLY = re.compile(r"^s? on (blackwell|hopper|ampere)")


def words(run: Run) -> str:
    """Return a run's framework, original overlap, recompute and precision, precision, and comment: lower case, joined by `; `."""
    parts = (
        *(run.framework, run.original_overlap, run.original_recompute),
        *(run.original_precision, run.precision, run.comment),
    )
    return "; ".join(parts).lower()


def phrases(run: Run, architecture: str, hidden: Container[str] = ()) -> Iterator[tuple[Phrase, str]]:
    """Yield (phrase with the value that applies, matched words) for the first phrase of each key in the words of a run.

    hidden: names of phrases that are not read. The value of a denied phrase (`no CUDA graphs`) is its `without`. A phrase about
    another GPU `architecture` (`CUDA graphs on Blackwell`), or one that is `not stated`, does not count.
    """
    text, known = words(run), set[str]()
    hits = [(phrase, hit) for phrase in PHRASES for hit in re.finditer(phrase.pattern, text)]
    for denials in (False, True):  # a statement about a part of the model counts more than a denial about another part
        for phrase, hit in hits:
            before, after = text[: hit.start()], text[hit.end() :]
            denied = any(denial := (_NOT.search(before), _THEN_NOT.search(after)))
            value, only = phrase.without if denied else phrase.value, _ONLY.match(after)
            other = (only and not architecture.startswith(only[1])) or _SILENT.match(after)
            if denied == denials and value and not other and phrase.source not in hidden and phrase.key not in known:
                known.add(phrase.key)
                yield phrase._replace(value=value), "".join(match[0] for match in (denial[0], hit, denial[1]) if match)


def precision(run: Run) -> str:
    """Return the precision of a run; "" if it is only `mixed`, and the row's text in lower case if it is unknown.

    `fp8` is `mxfp8` if the source names that recipe; `fp4` is the format of the GPU's maker.
    """
    micro = re.search(r"(?<!not )(?:\bmx[- ]?fp8\b|\bfp8[- ]mx\b)", run.original_precision.lower())
    text = run.precision.lower()
    text = "" if text in ("amp", "mixed", "mixed precision") else text
    patterns = ((name, rf"(?<![a-z0-9])(?:{words})(?![0-9])") for name, words in TABLE["formats"].items())
    name = next((name for name, pattern in patterns if re.search(pattern, text)), text)
    if name == "fp4":
        return "mxfp4" if run.gpu.lower().startswith(("mi", "amd")) else "nvfp4"
    return "mxfp8" if micro and name == "fp8" else name
