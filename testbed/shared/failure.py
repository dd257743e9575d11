"""Turns an exception that ends a process of a run into the one line that the run's status quotes.

Every process of a lab calls `record` as the last thing before it ends. `Processes.spawn` gives it
the file for that line in an environment variable. On SIGUSR1 a process prints where it is, so that
a run that waited in vain can say where the process was that it waited for.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path

from testbed.shared import own_code, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.unlinked import open_file

REASON_FILE = "LAB_REASON_FILE"  # environment variable
_ROOT = Path(__file__).resolve().parents[2]
_OURS = ("testbed", "controllers", "topologies")
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
_ANSWER_S = 0.5


def in_words(error: BaseException) -> str:
    """One line: where, the exception's type, and its words."""
    words = " ".join(str(error).split())
    kind = type(error)
    if isinstance(error, InputError):
        return words
    full = f"{kind.__name__}: {words}".removesuffix(": ")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{run_directory.DISK_FULL}: {error.filename or words}"
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
    """Whether its words say all: it needs no traceback."""
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


def answer_where() -> None:
    """From now on this process, and each that it forks, prints where it is on SIGUSR1."""
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)


def where(pid: int, log: Path) -> str:
    """Ask a process where it is; the line of own code, or nothing."""
    try:
        before = log.stat().st_size
        os.kill(pid, signal.SIGUSR1)
    except OSError:
        return ""
    deadline_s = time.monotonic() + _ANSWER_S
    frames: list[re.Match[str]] = []
    while not frames and time.monotonic() < deadline_s:
        time.sleep(0.02)
        with contextlib.suppress(OSError), log.open("rb") as stream:
            stream.seek(before)
            text = stream.read().decode(errors="replace")
            frames = [frame for frame in map(_FRAME.fullmatch, text.splitlines()) if frame]
    own = own_code.files()
    lines = (f"{f['file']}: line {f['line']} ({f['function']})" for f in frames if f["file"] in own)
    return next(lines, "")  # the innermost comes first
