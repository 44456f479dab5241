"""A name in YAML is a file in a folder: `algorithm: ring` is `clustersim/collectives/ring.py`.

A room whose names are no Python identifiers (`1f1b`) maps them to its files in `ALIASES`; files that are no plugins are
listed in its `SHARED` or start with an underscore. `package.module:attribute` loads one from outside.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from clustersim.errors import UnknownNameError, shown, suggest


def names(room: str) -> dict[str, str]:
    """Return {name in YAML: module} of the plugins of a room such as `clustersim.schedules`."""
    package = importlib.import_module(room)
    shared = set(getattr(package, "SHARED", ()))
    spelling = {module: name for name, module in getattr(package, "ALIASES", {}).items()}
    files = (info.name for info in pkgutil.iter_modules(package.__path__))
    return {spelling.get(f, f): f"{room}.{f}" for f in files if not f.startswith("_") and f not in shared}


def load(room: str, name: str, attribute: str) -> Any:
    """Return `attribute` of the plugin `name`, or the outside object that `package.module:attribute` names.

    Raises UnknownNameError, which lists what exists and the nearest match.
    """
    if ":" in name:
        return _outside(name)
    known = names(room)
    if name not in known:
        what = room.rsplit(".", 1)[-1]
        raise UnknownNameError(
            f"{shown(name)} is none of the {what}; {suggest(name, known)}, or package.module:attribute"
        )
    return getattr(importlib.import_module(known[name]), attribute)


def _outside(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever the outside module raises while it is imported
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UnknownNameError(
            f"{shown(name)} cannot be loaded ({why}); write package.module:attribute of a package that Python finds"
        ) from error
    if not callable(found):
        raise UnknownNameError(f"{shown(name)} is no function or class but {shown(found)}; name one that is")
    return found
