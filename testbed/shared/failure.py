"""Turns an exception that ends a process of a run into one line, which the run's status quotes."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from pathlib import Path

from testbed.shared import own_code
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import DISK_FULL, open_file

REASON_FILE = "LAB_REASON_FILE"  # environment variable, which `Processes.spawn` sets
_ROOT = Path(__file__).resolve().parents[2]
_OURS = ("testbed", "controllers", "topologies")


def in_words(error: BaseException) -> str:
    """Describe an error in one line: where, the exception's type, and its words."""
    words = " ".join(str(error).split())
    kind = type(error)
    if isinstance(error, InputError):
        return words
    full = f"{kind.__name__}: {words}".removesuffix(": ")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{DISK_FULL}: {error.filename or words}"
    if (where := own_code.raised_in(error)) is not None:
        return f"{where}: {full}"
    if kind.__module__.partition(".")[0] in _OURS:
        return words or kind.__name__
    frames = traceback.extract_tb(error.__traceback__)
    here = [frame for frame in frames if Path(frame.filename).is_relative_to(_ROOT)] or frames
    file = here[-1].filename.removeprefix(f"{_ROOT}/") if here else ""
    place = f" ({file}: line {here[-1].lineno})" if here else ""
    used = ", ".join(sorted(own_code.files()))
    return f"{full}{place}" + (f"; the run uses {used}" if used else "")


def is_expected(error: BaseException) -> bool:
    """Tell whether its words say all: it needs no traceback."""
    ours = type(error).__module__.partition(".")[0] in _OURS
    return ours or isinstance(error, InputError | ConnectionError)


def record(error: BaseException, name: str) -> None:
    """Print the traceback to the log, and leave the line for the run's status."""
    # A full disk refuses these too: then the status quotes the end of the log.
    with contextlib.suppress(OSError, ValueError):
        traceback.print_exception(error)
        sys.stderr.flush()
    if path := os.environ.get(REASON_FILE):
        with contextlib.suppress(OSError), open_file(Path(path), "w", encoding="utf-8") as file:
            file.write(f"{name}: {in_words(error)}\n")
