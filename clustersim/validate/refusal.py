"""Why a run is not simulated."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - it is no fault of anyone's
    """A run that cannot be simulated. kind: category for counts; why: one sentence."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
