"""What a validation found, as plain data: figures in all, by group, refused runs, ablations, rankings, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clustersim.validate.evaluate import Outcome
from clustersim.validate.ranking import sweeps, verdicts
from clustersim.validate.statistics import errors, groups, left_out, moved, peers, refusals


def report(
    outcomes: Sequence[Outcome],
    changed: Mapping[str, Sequence[Outcome]] | None = None,
    memory: Mapping[str, Any] | None = None,
    unseen: Sequence[Outcome] = (),
) -> dict[str, Any]:
    """Return the figures of outcomes; `changed` are those of ablations by name, `memory` the comparison of peaks, `unseen`
    the outcomes of those runs that have a host which was read from their own source, with what other sources say of hosts.

    Every figure of an ablation is over the runs that it could simulate. Errors are fractions of the measured time.
    """
    return {
        "runs_read": len(outcomes),
        "errors": errors(outcomes),
        "groups": groups(outcomes),
        "peers": peers(outcomes),
        "refused": refusals(outcomes),
        "ablations": {name: errors(rows) | moved(outcomes, rows) for name, rows in (changed or {}).items()},
        "left_out": left_out(outcomes, unseen),
        "sweeps": sweeps(outcomes),
        "fit": verdicts(outcomes),
        "memory": memory,
    }
