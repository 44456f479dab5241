"""Results of a validation as plain data: total figures, by group, refused runs, ablations, rankings, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clustersim.validate.evaluate import Outcome
from clustersim.validate.ranking import sound, sweeps, verdicts
from clustersim.validate.statistics import (
    GROUPS,
    by_publisher,
    errors,
    grouped,
    groups,
    judged,
    moved,
    peers,
    refusals,
)


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
    Groups are of strangers; rankings and verdicts have the publisher left out. Errors are fractions of measured times.
    """
    left_out = judged(outcomes, unseen)
    found = judged(left_out, strangers)
    return {
        "runs_read": len(outcomes),
        "stranger": by_publisher(found),
        "left_out": by_publisher(left_out),
        "in_sample": by_publisher(outcomes),
        "publishers_left_out": grouped(left_out, GROUPS["publisher"]),
        "publishers_in_sample": grouped(outcomes, GROUPS["publisher"]),
        "groups": groups(found),
        "sound": sound_figures(left_out),
        "peers": peers(outcomes),
        "refused": refusals(outcomes),
        "ablations": {name: errors(rows) | moved(outcomes, rows) for name, rows in (changed or {}).items()},
        "sweeps": sweeps(left_out),
        "fit": verdicts(left_out),
        "memory": memory,
    }


def sound_figures(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return the errors and rankings of the sound outcomes among mappings; None if all outcomes are sound."""
    kept = sound(outcomes)
    return None if len(kept) == len(outcomes) else {**errors(kept), "sweeps": sweeps(kept)}
