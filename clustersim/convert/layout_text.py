"""Megatron's text for which pipeline stage has which layers, such as `Ettt|(tt|)*29,m|L`, with its repetitions written out.

Source: megatron/core/transformer/pipeline_parallel_layer_layout.py, `parse_str_to_list`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from clustersim.errors import InputError

LONGEST = 100_000
"""Letters of a layout with its repetitions written out."""
REPEATED = (re.compile(r"\(([^()]+)\)\*0*([0-9]{1,9})(?![0-9])"), re.compile(r"([^()*])\*0*([0-9]{1,9})(?![0-9])"))
"""A part in parentheses, then a single letter, as often as the number after the star says."""


def written_out(layout: str) -> str:
    """Return a layout without repetitions: `E(t|)*2,L` is `Et|t|L`. Raises InputError for what is not understood."""
    text = "".join(layout.replace(",", "").replace("\\", "").split())  # shells keep | and ( by a backslash
    for pattern in REPEATED:
        if sum(len(part) * int(times) for part, times in pattern.findall(text)) > LONGEST:
            raise InputError(f"{layout!r} is too long; name at most {LONGEST} layers")
        text = pattern.sub(lambda found: found[1] * int(found[2]), text)
    if wrong := sorted(set(text) - set("EtmL|")):
        letters = "E (embedding), t (block), m (MTP), L (loss), | between stages, (…)*3 to repeat"
        raise InputError(f"{layout!r} has {wrong[0]!r}; write {letters}")
    return text


def joined(stages: Iterable[tuple[bool, int, int, bool]]) -> str:
    """Return the layout of stages, each of which has (embedding, number of blocks, number of MTP layers, loss)."""
    return "|".join(
        "E" * first + f"t*{blocks}" * (blocks > 0) + "m" * mtp + "L" * last for first, blocks, mtp, last in stages
    )


def stages_of(layout: str) -> int:
    """Return how many stages a layout has. Raises InputError for what is no layout."""
    return written_out(layout).count("|") + 1
