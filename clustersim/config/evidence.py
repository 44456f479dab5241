"""Source of a figure, and its value without the measured steps from which it was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from clustersim.config.fields import Name, Spec


class Evidence(Spec):
    """Source of a value. `clustersim validate` leaves out its publishers to judge the value."""

    source: str
    """Code, documentation, log or measurement."""
    read_from: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """Publishers of the steps: first word of their run ids."""


class StepEvidence(Evidence):
    """Source of a value that was read from measured steps, and the value without them."""

    otherwise: Any = None
    """Value without these publishers, one value for all or one per publisher; None: as if unset."""

    def without(self, publisher: str) -> Any:
        """Return the value without the steps of `publisher`, one of `read_from`; None means as if unset."""
        by_publisher = isinstance(self.otherwise, dict) and publisher in self.otherwise
        return self.otherwise[publisher] if by_publisher else self.otherwise


ConstantScope = Literal["law", "part", "framework", "machine"]
"""Scope of a constant: all machines, one kind of GPU (and data type), one framework, or one machine."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Metadata of a constant, in the annotation of its name, or of the key of a file that has its value.

    The docstring below the name says where the value is from. `docs/constants.md` is generated from these.
    """

    unit: str = ""
    """Unit of the value; empty for shares, exponents and counts."""
    chosen_on: str = ""
    """Measurements on which the value or its spread was chosen; empty for a published value."""
    scope: ConstantScope = "law"
    family: str = ""
    """Name of the constant in the calibration of steps; empty if it is not calibrated."""
    spread: float = 0.0
    """Standard deviation of its logarithm between machines without measurements."""
