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
"""{publisher: another publisher with the same authors and machines}"""
FRAMEWORK = "framework "
"""Prefix of the source names of framework files."""
MLPERF = "MLPERF"
"""Publisher group of NVIDIA's MLPerf reference code, which every submitter runs; their ids begin with MP."""


def publisher_group(publisher: str) -> str:
    """Return the group of publishers with the same people or code; the publisher itself if it belongs to none."""
    return MLPERF if publisher.startswith(("MP", MLPERF)) else KIN.get(publisher, publisher)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Knowledge that a forecast may use: everything by default."""

    without: str = ""
    """Publisher whose measured steps no constant may be based on; "" for none."""
    hidden: frozenset[str] = frozenset()
    """Names of sources that count as unknown."""


EVERYTHING = Knowledge()


def hidden_sources(used: Iterable[tuple[str, frozenset[str]]]) -> dict[str, frozenset[str]]:
    """Return {publisher group: names of sources that no other group uses}. used: (publisher, sources) of each run.

    An unused release of a hidden framework is hidden too, because it was written together with it.
    """
    users: defaultdict[str, set[str]] = defaultdict(set)
    for publisher, sources in used:
        for source in sources:
            users[source].add(publisher_group(publisher))
    hidden: defaultdict[str, set[str]] = defaultdict(set)
    for source, publishers in users.items():
        if len(publishers) == 1:
            hidden[next(iter(publishers))].add(source)
    for names in hidden.values():
        frameworks = [load(source.removeprefix(FRAMEWORK)) for source in names if source.startswith(FRAMEWORK)]
        siblings = {f"{FRAMEWORK}{release.name}" for framework in frameworks for release in releases(framework)}
        names.update(source for source in siblings if source not in users)
    return {name: frozenset(sources) for name, sources in hidden.items()}
