"""Tables of rich without the blanks that it puts at the ends of lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def show_table(console: Console, table: Table) -> None:
    """Print a table as the console lays it out, each line without blanks at its end."""
    with console.capture() as text:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in text.get().splitlines()))
