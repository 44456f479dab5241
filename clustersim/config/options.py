"""A key of a file that commands have as an option of their own."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Option(NamedTuple):
    """Option of commands that sets a key: `--micro-batch` of `run`, an axis of `sweep`, a column of its table."""

    name: str
    """Name, such as `micro_batch`."""
    key: str
    """Dotted key that the option sets."""
    form: Literal["count", "number", "degree", "word"]
    """count (1 or more), number (0 or more), degree (a count or auto) or word."""
    values: str
    """Example of several values."""
    what: str
    """Description for `--help`."""
    swept: bool = True
    """Whether a sweep treats a single value as an axis too; several values always are."""

    @property
    def flag(self) -> str:
        """Option as on a command line."""
        return f"--{self.dashed}"

    @property
    def dashed(self) -> str:
        """Name without leading dashes, such as `micro-batch`."""
        return self.name.replace("_", "-")
