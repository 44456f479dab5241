"""Builds the event loop in C (clustersim/engine/_loop.c) into the package, where a compiler is; without one the loop in plain
Python serves. `python hatch_build.py` builds it in a checkout."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "clustersim" / "engine"
ABI = "cp311-abi3"
"""Python 3.11 and every later one."""


def build() -> Path | None:
    """Return the extension, built beside its source; None, with the reason on standard error, where that fails."""
    try:
        from setuptools._distutils.ccompiler import new_compiler
        from setuptools._distutils.sysconfig import customize_compiler

        compiler, made = new_compiler(), FOLDER / f"_loop{'.pyd' if os.name == 'nt' else '.abi3.so'}"
        customize_compiler(compiler)
        with tempfile.TemporaryDirectory() as folder:
            flags = [] if os.name == "nt" else ["-O2", "-fPIC"]
            include = [sysconfig.get_paths()["include"]]
            source = FOLDER / "_loop.c"
            macros: Any = [("SOURCE", str(zlib.crc32(source.read_bytes()) & 0x7FFFFFFF))]
            objects = compiler.compile([str(source)], folder, macros, include, extra_preargs=flags)
            linked = str(Path(folder) / made.name)
            compiler.link_shared_object(objects, linked)
            temporary = made.with_name(f".{made.name}.{os.getpid()}")
            temporary.write_bytes(Path(linked).read_bytes())
            temporary.replace(made)  # a process that has the old one loaded keeps it
        return made
    except (Exception, SystemExit) as error:
        print(f"clustersim: the event loop in C is not built ({error}); the one in Python serves", file=sys.stderr)
        return None


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by itself
    pass
else:

    class LoopBuildHook(BuildHookInterface):  # type: ignore[type-arg,misc]
        """Adds the extension to wheels, and to the checkout of editable installs."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Build the extension before a wheel is made."""
            made = build()
            if made is not None:
                platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                build_data["pure_python"], build_data["tag"] = False, f"{ABI}-{platform}"
                build_data["force_include"][str(made)] = f"clustersim/engine/{made.name}"


if __name__ == "__main__":
    sys.exit(0 if build() else 1)
