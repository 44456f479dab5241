"""One key of a file that commands take as an option of their own."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Option(NamedTuple):
    """One option: `--micro-batch` of `run`, an axis of `sweep`, a column of its table."""

    name: str
    """Such as `micro_batch`."""
    key: str
    """The dotted key that it sets."""
    form: Literal["count", "number", "degree", "word"]
    """count (1 or more), number (0 or more), degree (a count or auto) or word."""
    values: str
    """An example of several."""
    what: str
    """What it is, for `--help`."""
    swept: bool = True
    """Whether a sweep has an axis of it where one value is given, too; several are one always."""

    @property
    def flag(self) -> str:
        """As it is written on a command line."""
        return f"--{self.dashed}"

    @property
    def dashed(self) -> str:
        """The name without the dashes before it, as in `micro-batch`."""
        return self.name.replace("_", "-")
