"""Megatron's text for the layers of pipeline stages, such as `Ettt|(tt|)*29,m|L`, with repetitions expanded.

Source: megatron/core/transformer/pipeline_parallel_layer_layout.py, `parse_str_to_list`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from clustersim.errors import InputError

LONGEST = 100_000
"""Largest number of letters of an expanded layout."""
REPEATED = (re.compile(r"\(([^()]+)\)\*0*([0-9]{1,9})(?![0-9])"), re.compile(r"([^()*])\*0*([0-9]{1,9})(?![0-9])"))
"""Patterns of repeated parts: in parentheses, and single letters."""


def written_out(layout: str) -> str:
    """Return a layout without repetitions: `E(t|)*2,L` gives `Et|t|L`. Raises InputError if it is invalid."""
    text = "".join(layout.replace(",", "").replace("\\", "").split())  # shells keep | and ( by a backslash
    for pattern in REPEATED:
        if sum(len(part) * int(times) for part, times in pattern.findall(text)) > LONGEST:
            raise InputError(f"{layout!r} is too long; name at most {LONGEST} layers")
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    if wrong := sorted(set(text) - set("EtmL|")):
        letters = "E (embedding), t (block), m (MTP), L (loss), | between stages, (…)*3 to repeat"
        raise InputError(f"{layout!r} has {wrong[0]!r}; write {letters}")
    return text


def layout_of(stages: Iterable[tuple[bool, int, int, bool]]) -> str:
    """Return the layout of stages, each given as (has embedding, number of blocks, number of MTP layers, has loss)."""
    return "|".join(
        "E" * first + f"t*{blocks}" * (blocks > 0) + "m" * mtp + "L" * last for first, blocks, mtp, last in stages
    )


def stages_of(layout: str) -> int:
    """Return the number of stages of a layout. Raises InputError if it is invalid."""
    return written_out(layout).count("|") + 1
