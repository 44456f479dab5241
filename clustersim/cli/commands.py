"""Commands and groups of them: an option that takes one value is given once, as the first of two would be lost without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand


class StrictCommand(TyperCommand):
    """A command that refuses an option which is given twice, unless it collects values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments that are left. Raises typer's error of usage for what cannot be read."""
        given = Counter(self.make_parser(ctx).parse_args(args=list(args))[2])
        for one, times in given.items():
            if times > 1 and not (one.multiple or getattr(one, "is_flag", True)):
                several = "," in (one.metavar or "")
                remedy = (
                    f"write all values in one, such as {one.opts[0]} {one.metavar}" if several else "keep one of them"
                )
                ctx.fail(f"{one.opts[0]} is given {'twice' if times == 2 else f'{times} times'}; {remedy}")
        return super().parse_args(ctx, args)


class CommandGroup(typer.Typer):
    """A group whose commands are all such."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Return the decorator of a command."""
        return super().command(name, cls=StrictCommand, **options)
