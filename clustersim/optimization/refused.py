"""Points that were out before or when they would have been simulated, counted by kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Refused:
    """Points that are out, by kind: illegal, does not fit, failed."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """Why the first of a kind is, where that was asked."""

    def add(self, kind: str, why: str = "", count: int = 1) -> None:
        """Count points of a kind, and keep why the first is out."""
        self.counts[kind] += count
        if why:
            self.examples.setdefault(kind, why)
