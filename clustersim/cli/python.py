"""Every command of `clustersim` as a function: arguments and options as on the command line, results as data."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clustersim.api.result import Result
from clustersim.errors import InputError

NATIVE = {"run": "simulate", "sweep": "sweep", "optimize": "optimize", "plan": "plan"}
"""Commands with a function of their own in `clustersim.api`, which returns objects."""


def names() -> list[str]:
    """Return the names of all commands as attributes of `clustersim`: `import` is `import_`."""
    from clustersim.cli.app import COMMANDS

    return ["import_" if name == "import" else name for name in COMMANDS]


@cache
def command(name: str) -> Callable[..., Any]:
    """Return the function of a command: that of `clustersim.api`, or one that runs the command in this process.

    Its arguments are those of the command line, files as paths, names or mappings, and keywords are options with underscores:
    True and False are `--name` and `--no-name`, a list repeats the option, and a dotted key is `--set`. It returns what `--json`
    prints as data, or the printed text where a command has no `--json`. Raises AttributeError for an unknown command; the
    function raises ClustersimError where the command line ends with exit code 2.

    >>> found = command("collective")("all_reduce", topology="hgx_h100_8", begin="1M", end="1M")
    >>> len(found["lines"])
    1
    """
    if name not in names():
        raise AttributeError(f"module 'clustersim' has no attribute {name!r}")
    if name in NATIVE:
        from clustersim import api

        return getattr(api, NATIVE[name])  # type: ignore[no-any-return]

    def run(*arguments: object, **options: object) -> Any:
        return _run(name.removesuffix("_"), arguments, options)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"Run `clustersim {name}` and return its data, else its text; options are those of its `--help`."
    return run


def _run(name: str, arguments: tuple[object, ...], options: Mapping[str, object]) -> Any:
    """Run a command, return its data, or its text if it prints no JSON. Raises InputError for wrong use, or as the command."""
    import typer

    from clustersim.cli.app import UsageError, app
    from clustersim.cli.commands import error_sentence

    program = app([name])
    with TemporaryDirectory() as folder:
        words = [name, *(_word(value, Path(folder), f"argument{i}") for i, value in enumerate(arguments, 1))]
        for key, value in options.items():
            words += _option(key, value, Path(folder))
        leaf: Any = typer.main.get_command(program)
        for word in words:
            leaf = getattr(leaf, "commands", {}).get(word, leaf)
        if any("--json" in getattr(option, "opts", ()) for option in leaf.params):
            words.append("--json")
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                program(words, standalone_mode=False, prog_name="clustersim")
        except UsageError as error:
            raise InputError(error_sentence(error, words)) from error
    text = printed.getvalue()
    return json.loads(text) if words[-1] == "--json" else text


def _word(value: object, folder: Path, name: str) -> str:
    """Return an argument as text: a mapping is written to `folder` as `name`.yaml, and a result of `simulate` is saved first."""
    if isinstance(value, Result):
        return str(save(value))
    return str(_written(value, folder / f"{name}.yaml") if isinstance(value, Mapping) else value)


def _written(data: Mapping[str, Any], path: Path) -> Path:
    """Write data as a YAML file and return its path."""
    import yaml

    path.write_text(yaml.safe_dump(dict(data), sort_keys=False), encoding="utf-8")
    return path


def save(result: Result) -> Path:
    """Return the folder of `run`'s result, after simulating it again. Raises InputError for a cluster that the caller built."""
    question = result._question
    parts = question.document.data, question.job.document.data
    digest = sha256(repr((parts, sorted(question.stored.items(), key=repr))).encode()).hexdigest()[:8]
    target = Path("results") / f"{result.summary['name']}-{digest}"
    with TemporaryDirectory() as folder:
        names = (Path(folder) / "cluster.yaml", Path(folder) / "job.yaml")
        files = [_written(data, name) for data, name in zip(parts, names, strict=True)]
        words = replace(question, topology=files[0], workload=files[1], overrides={}).words[2:]
        _run("run", tuple(words), {"out": target, "force": True})
    return target


def _option(key: str, value: object, folder: Path) -> Iterator[str]:
    """Yield an option and its value as on a command line; nothing for None."""
    flag = f"--{key.replace('_', '-')}"
    if value is None:
        return
    if "." in key:
        yield from ("--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}")
    elif isinstance(value, bool):
        yield flag if value else f"--no-{flag[2:]}"
    else:
        for item in value if isinstance(value, list | tuple) else [value]:
            yield from (flag, _word(item, folder, key))
