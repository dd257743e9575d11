"""A process that keeps a processor busy, and dies with the tests, however they end."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

DIES_TOO = ("setpriv", "--pdeathsig", "KILL")  # of the thread that starts it


@contextlib.contextmanager
def busy_process(
    before: str = "", *arguments: str, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start it; kill it at the end.

    Args:
        before: statements that it executes first.
        arguments: of its command line.
        options: of `Popen`.
    """
    code = f"{before}\nwhile True: pass"
    argv = [*DIES_TOO, sys.executable, "-c", code, *arguments]
    with subprocess.Popen(argv, **options) as process:
        try:
            yield process
        finally:
            process.kill()
