"""Starts one of the lab's own modules as a process, and speeds up its imports."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def command(module: str, *arguments: str) -> list[str]:
    """Return the command of a module; it imports nothing from the current folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


@contextmanager
def large_imports() -> Iterator[None]:
    """Import in the body without the garbage collector, which takes a seventh of torch's import."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
