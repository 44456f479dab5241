"""Where a figure is from, and its value without the measured steps that it was read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from clustersim.config.fields import Name, Spec


class Evidence(Spec):
    """Where a value is from. `clustersim validate` leaves out its publishers to judge it."""

    source: str
    """Code, documentation, log or measurement."""
    read_from: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """Publishers of the steps: first word of their run ids."""


class StepEvidence(Evidence):
    """Source of a value that was read from measured steps, and the value without them."""

    otherwise: Any = None
    """Value without these publishers, one for all or one each; none: as if unset."""

    def without(self, publisher: str) -> Any:
        """Return the value without the rows of that publisher, which is one of `read_from`."""
        by_publisher = isinstance(self.otherwise, dict) and publisher in self.otherwise
        return self.otherwise[publisher] if by_publisher else self.otherwise


ConstantScope = Literal["law", "part", "framework", "machine"]
"""What a constant belongs to: all machines, one kind of GPU (and data type), one framework, or one machine."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What is known of a constant beside its value, in the annotation of the name or of the key of a file that has the value.

    The docstring below says where the value is from. `docs/constants.md` is printed from these.
    """

    unit: str = ""
    """Of the value; empty for shares, exponents and counts."""
    chosen_on: str = ""
    """The measurements that it, or its spread, was chosen on; empty for what is as published."""
    scope: ConstantScope = "law"
    family: str = ""
    """What it is called where steps are calibrated; empty for what is not."""
    spread: float = 0.0
    """Standard deviation of its logarithm among unmeasured machines."""
