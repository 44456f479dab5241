"""Results of a validation as plain data: total figures, by group, refused runs, ablations, rankings, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clustersim.validate.evaluate import Outcome
from clustersim.validate.ranking import sound, sweeps, verdicts
from clustersim.validate.statistics import GROUPS, by_publisher, errors, grouped, moved, peers, refusals


def report(
    outcomes: Sequence[Outcome],
    changed: Mapping[str, Sequence[Outcome]] | None = None,
    memory: Mapping[str, Any] | None = None,
    unseen: Sequence[Outcome] | None = None,
    strangers: Sequence[Outcome] | None = None,
) -> dict[str, Any]:
    """Return figures of outcomes as plain data. Errors are fractions.

    Keys: `runs_read`; `by_publisher` as a `stranger`, `left_out` and `in_sample`; `publishers_left_out`,
    `publishers_in_sample`, `groups` (strangers' errors), `sound` (None if no mapping is late), `peers`, `refused`, `ablations`,
    `sweeps`, `fit`, `memory`.

    changed: {name of an ablation: outcomes}. memory: result of `peaks.compare`. unseen: outcomes of the same runs without
    values read from their publisher (default: `outcomes`); rankings and verdicts are theirs. strangers: also without sources
    that only their publisher uses (default: `unseen`).
    """
    left_out = outcomes if unseen is None else unseen
    as_strangers, sound_rows = left_out if strangers is None else strangers, sound(left_out)
    return {
        "runs_read": len(outcomes),
        "stranger": by_publisher(as_strangers),
        "left_out": by_publisher(left_out),
        "in_sample": by_publisher(outcomes),
        "publishers_left_out": grouped(left_out, GROUPS["publisher"]),
        "publishers_in_sample": grouped(outcomes, GROUPS["publisher"]),
        "groups": {name: grouped(as_strangers, group) for name, group in GROUPS.items()},
        "sound": None if len(sound_rows) == len(left_out) else {**errors(sound_rows), "sweeps": sweeps(sound_rows)},
        "peers": peers(outcomes),
        "refused": refusals(outcomes),
        "ablations": {name: errors(rows) | moved(outcomes, rows) for name, rows in (changed or {}).items()},
        "sweeps": sweeps(left_out),
        "fit": verdicts(left_out),
        "memory": memory,
    }
