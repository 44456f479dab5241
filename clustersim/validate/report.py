"""Results of a validation as plain data: total figures, by group, refused runs, ablations, rankings, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clustersim.validate.evaluate import Outcome
from clustersim.validate.ranking import sound, sweeps, verdicts
from clustersim.validate.statistics import GROUPS, by_publisher, errors, grouped, judged, moved, peers, refusals


def report(
    outcomes: Sequence[Outcome],
    changed: Mapping[str, Sequence[Outcome]] | None = None,
    memory: Mapping[str, Any] | None = None,
    unseen: Sequence[Outcome] = (),
    strangers: Sequence[Outcome] = (),
) -> dict[str, Any]:
    """Return the figures of outcomes: as strangers' first, then with each run's publisher left out, then in sample.

    changed: outcomes of ablations by name, each with figures over the runs that it can simulate. memory: comparison of peaks.
    unseen, strangers: outcomes of runs that change without values read from their publisher, or also without its own sources.
    Groups are of strangers; rankings and verdicts have the publisher left out; `sound` is None if all mappings are sound. Errors
    are fractions of measured times.
    """
    left_out = judged(outcomes, unseen)
    found, kept = judged(left_out, strangers), sound(left_out)
    return {
        "runs_read": len(outcomes),
        "stranger": by_publisher(found),
        "left_out": by_publisher(left_out),
        "in_sample": by_publisher(outcomes),
        "publishers_left_out": grouped(left_out, GROUPS["publisher"]),
        "publishers_in_sample": grouped(outcomes, GROUPS["publisher"]),
        "groups": {name: grouped(found, group) for name, group in GROUPS.items()},
        "sound": None if len(kept) == len(left_out) else {**errors(kept), "sweeps": sweeps(kept)},
        "peers": peers(outcomes),
        "refused": refusals(outcomes),
        "ablations": {name: errors(rows) | moved(outcomes, rows) for name, rows in (changed or {}).items()},
        "sweeps": sweeps(left_out),
        "fit": verdicts(left_out),
        "memory": memory,
    }
