"""A function of the user that returns a PyTorch module → its graph."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clustersim.errors import InputError, shown
from clustersim.extras import need
from clustersim.single_gpu.model import Graph
from clustersim.single_gpu.request import EAGER, Request


def load(model: str, request: Request) -> Graph:
    """Return the graph of the module that a function returns. Raises InputError for whatever goes wrong on the way."""
    from clustersim.single_gpu import exported

    need("torch", f"{model}: tracing a module")
    import torch

    make = _found(model)
    try:
        with torch.device("meta"):
            made = make(**_asked(make, request))
    except (Exception, SystemExit) as error:
        raise InputError(f"{model}: raised {exported.reason(error)}; it must return (module, inputs)") from error
    module, inputs = _checked(model, made)
    if request.dtype not in (None, *EAGER):
        raise InputError(f"{model}: --dtype {request.dtype} does not run eagerly; write one of {', '.join(EAGER)}")
    return exported.build(model, module, inputs, request.dtype, request.training)


def _found(model: str) -> Callable[..., Any]:
    place, _, name = model.rpartition(":")
    try:
        module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        found = getattr(module, name)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InputError(
            f"{shown(model)} cannot be loaded ({why}); write file.py:function or package.module:function"
        ) from error
    if not callable(found):
        raise InputError(f"{shown(model)} is no function but {shown(found)}; name one that returns (module, inputs)")
    return found  # type: ignore[no-any-return]


def _file(path: Path) -> Any:
    """Return the module of a file; what lies beside it can be imported, as when Python runs it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _asked(make: Callable[..., Any], request: Request) -> dict[str, int]:
    """Return batch and seq where they were given. Raises InputError through the caller when the function takes none."""
    given = {name: value for name in ("batch", "seq") if (value := getattr(request, name)) is not None}
    taken = inspect.signature(make).parameters
    if missing := [name for name in given if name not in taken]:
        raise TypeError(f"the function takes no {missing[0]}, which --{missing[0]} sets")
    return given


def _checked(model: str, made: Any) -> tuple[Any, Any]:
    import torch

    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"{model}: returned {type(made).__name__}; return (module, inputs), a torch.nn.Module and its inputs"
        )
    if inputs is None:
        raise InputError(
            f"{model}: returned a module without inputs; return (module, inputs), inputs being a tuple or dict of tensors"
        )
    return module, inputs if isinstance(inputs, (tuple, dict)) else (inputs,)
