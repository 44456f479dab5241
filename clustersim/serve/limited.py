"""`python -m clustersim.serve.limited BYTES SECONDS ARGUMENT …`: runs a clustersim command with limits.

The limits hold for this process; systems without them rely on the server's clock. Standard input is a pipe that the server keeps
open. When the server ends, for any reason, the pipe closes and the command ends.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from contextlib import suppress


def limit(memory: int, seconds: int) -> None:
    """Limit this process to `memory` bytes of address space and `seconds` of CPU time, without core dumps, on POSIX systems."""
    with suppress(ImportError):  # no POSIX
        import resource

        for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
            _, hard = resource.getrlimit(what)
            resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _end_with_the_server() -> None:
    """Interrupt this process when the server ends."""
    os.read(0, 1)  # returns nothing until the server has ended
    os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Run a clustersim command with limits."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may have Ctrl-C ignored
    memory, seconds, *arguments = sys.argv[1:]
    limit(int(memory), int(seconds))
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    sys.argv = ["clustersim", *arguments]
    try:
        runpy.run_module("clustersim", run_name="__main__", alter_sys=True)
    except MemoryError:
        sys.exit(
            f"clustersim: needs more than the {int(memory) / 2**30:.3g} GiB that the server allows; raise --memory"
        )


if __name__ == "__main__":
    main()
