"""Commands, groups of commands, and messages for command lines that typer cannot parse."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand

EMPTY = inspect.Parameter.empty


class StrictCommand(TyperCommand):
    """A command that refuses an option given twice, unless it collects values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the remaining arguments. Raises typer's usage error if the arguments cannot be parsed."""
        counts = Counter(self.make_parser(ctx).parse_args(args=list(args))[2])
        for option, times in counts.items():
            if times > 1 and not (option.multiple or getattr(option, "is_flag", True)):
                all_in_one = f"write all values in one, such as {option.opts[0]} {option.metavar}"
                remedy = all_in_one if "," in (option.metavar or "") else "keep one of them"
                ctx.fail(f"{option.opts[0]} is given {'twice' if times == 2 else f'{times} times'}; {remedy}")
        return super().parse_args(ctx, args)


class OptionGroup(NamedTuple):
    """Options that reach a command as one value: metadata in the annotation of its parameter."""

    options: Sequence[inspect.Parameter]
    """The options, in the order of `--help`."""
    value: Callable[..., Any]
    """Function from the options, as keywords, to the value."""


def option_group(kind: type, *names: str) -> OptionGroup:
    """Return the group of options that are fields of a dataclass; the fields without an option keep their defaults.

    names: fields in the order of `--help`; default: all fields. A field without a default is an argument.
    """
    hints = get_type_hints(kind, include_extras=True)
    defaults = {field.name: EMPTY if field.default is MISSING else field.default for field in fields(kind)}
    return OptionGroup([parameter(n, hints[n], defaults[n], defaults[n] is EMPTY) for n in names or defaults], kind)


def parameter(name: str, annotation: Any, default: Any = None, positional: bool = False) -> inspect.Parameter:
    """Return the parameter of an option, or of an argument if `positional`, for typer.

    Its annotation has the type, the help text, the name of the value in the usage, other spellings such as `-o`, and a mapping
    of further arguments of typer.Option. An option of type bool has no form `--no-…`.
    """
    if parts := getattr(annotation, "__metadata__", ()):
        words = [part for part in parts if isinstance(part, str)]
        flags = " ".join(word for word in words if word.startswith("-")).split()
        texts = [word for word in words if not word.startswith("-")]
        more: dict[str, Any] = dict(zip(("help", "metavar"), texts, strict=False))
        for part in parts:
            more |= part if isinstance(part, Mapping) else {}
        if not any(flag.startswith("--") for flag in flags):
            flags.insert(0, f"--{name.replace('_', '-')}")
        shown = typer.Argument(**more) if positional else typer.Option(*flags, **more)
        annotation = Annotated[annotation.__origin__, shown]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class CommandGroup(typer.Typer):
    """A group of commands that refuse an option given twice, and whose parameters may be groups of options."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Return the decorator that adds a function as the command `name`. options: of typer."""
        register = super().command(name, cls=StrictCommand, **options)

        def decorate(command: Callable[..., None]) -> Callable[..., None]:
            """Register a command, and return it unchanged."""
            register(_with_single_options(command))
            return command

        return decorate


def _with_single_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer in which the options of each group replace the parameter that receives the group.

    A group is an OptionGroup in the annotation of a parameter, or a tuple of names of fields if its type is a dataclass.
    """
    groups: dict[str, OptionGroup] = {}
    parameters: list[inspect.Parameter] = []
    for name, option in inspect.signature(command, eval_str=True).parameters.items():
        for part in getattr(option.annotation, "__metadata__", ()):
            if isinstance(part, OptionGroup):
                groups[name] = part
            elif isinstance(part, tuple):
                groups[name] = option_group(option.annotation.__origin__, *part)
        single = [parameter(name, option.annotation, option.default, option.kind is not option.KEYWORD_ONLY)]
        parameters += groups[name].options if name in groups else single

    @wraps(command)
    def run(**values: Any) -> None:
        """Collect the values of grouped options, and call the command."""
        for name, group in groups.items():
            values[name] = group.value(**{each.name: values.pop(each.name) for each in group.options})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in parameters}
    return run


RULES: Mapping[str, str] = {
    r"valid integer": "write a whole number",
    r"valid number|valid float": "write a number",
    r"(?:greater than or equal to|>=) ?(\S+?)\.?$": r"write \1 or more",
    r"(?:less than or equal to|<=) ?(\S+?)\.?$": r"write \1 or less",
}
ELSEWHERE: Mapping[str, str] = {
    "--set": "--set changes keys of a topology or a workload where a command takes it; change the file instead",
    "--topology": "the topology is not an option; write it first, before the workload",
    "--workload": "the workload is not an option; write it after the topology",
}
"""{option that users look for: where to find it}"""


def error_sentence(error: Any, arguments: Sequence[str]) -> str:
    """Return typer's error as one sentence that names the value, and how to get help."""
    command = error.ctx.command_path if error.ctx else "clustersim"
    name = getattr(error, "option_name", "")
    what = _wrong_value(error, arguments) or (f"no such option: {name}; {ELSEWHERE[name]}" if name in ELSEWHERE else "")
    if not what:
        text = " ".join(error.format_message().replace("Value error, ", "").split())
        what = text.rstrip(".").replace("extra argument(s)", "extra argument")
    return f"{what}{' ' if what.endswith('?') else '; '}`{command} --help` lists what it takes"


def _wrong_value(error: Any, arguments: Sequence[str]) -> str | None:
    """Return the message for a value that is not a number or out of range; None for other errors."""
    names = getattr(getattr(error, "param", None), "opts", ())
    last = _last_value(names, arguments)
    for pattern, remedy in RULES.items():
        match = re.search(pattern, getattr(error, "message", ""))
        if match and last:
            return f"{last[0]} {last[1]!r}: {match.expand(remedy)}"
    return None


def _last_value(names: Sequence[str], arguments: Sequence[str]) -> tuple[str, str] | None:
    """Return (spelling, value) of the last occurrence of an option, which typer uses; None if it does not occur."""
    last = None
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        head, equals, tail = argument.partition("=")
        if argument in names:
            last = argument, after
        elif equals and head in names:
            last = head, tail
        elif argument[:2] in names and not argument.startswith("--"):
            last = argument[:2], argument[2:]
    return last
