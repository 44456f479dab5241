"""Knowledge that a forecast of a measured run may use, as if its publisher's rows had never been read.

Framework files, recipes, nodes of clouds and phrases were written after looking at measured runs. A *source* is the name of one
of them, such as `framework internevo` or `words ulysses`. A stranger's forecast uses no source that only its own publisher uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clustersim.frameworks.table import load, releases

KIN: Mapping[str, str] = {"VTRAINM": "VTRAINS", "BSV100": "BSPREQ", "BLOOM": "BSPREQ"}
"""{publisher: another one with the same authors and machines}"""
FRAMEWORK = "framework "
"""Prefix of the source names of framework files."""
MLPERF = "MLPERF"
"""Publisher group of NVIDIA's MLPerf reference code, which every submitter runs; their ids begin with MP."""


def publisher_group(publisher: str) -> str:
    """Return the name of the group of publishers with the same people or code."""
    return MLPERF if publisher.startswith(("MP", MLPERF)) else KIN.get(publisher, publisher)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Knowledge of a forecast: everything by default."""

    without: str = ""
    """Publisher whose measured steps no constant is based on."""
    hidden: frozenset[str] = frozenset()
    """Sources that count as unknown."""


EVERYTHING = Knowledge()


def hidden_sources(used: Iterable[tuple[str, frozenset[str]]]) -> dict[str, frozenset[str]]:
    """Return {kin: sources that no other publisher uses}. used: (publisher, sources) of each run.

    A release of a hidden framework that nobody uses is hidden too, because it was written together with it.
    """
    users: defaultdict[str, set[str]] = defaultdict(set)
    for publisher, sources in used:
        for source in sources:
            users[source].add(publisher_group(publisher))
    found: defaultdict[str, set[str]] = defaultdict(set)
    for source, publishers in users.items():
        if len(publishers) == 1:
            found[next(iter(publishers))].add(source)
    for own in found.values():
        frameworks = [load(source.removeprefix(FRAMEWORK)) for source in own if source.startswith(FRAMEWORK)]
        siblings = {f"{FRAMEWORK}{one.name}" for framework in frameworks for one in releases(framework)}
        own.update(source for source in siblings if source not in users)
    return {name: frozenset(sources) for name, sources in found.items()}
