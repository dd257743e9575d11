"""It lists this process's open files, and tells one that a test has left open from all others.

Counts would not do. An object of another test may be collected meanwhile, and its file is closed
then: one fewer, whatever this test did.
"""

import contextlib
import gc
import time
from pathlib import Path

OpenFiles = frozenset[tuple[str, str]]


def now() -> OpenFiles:
    """Each descriptor's number with what it points to, of the objects that are still in use."""
    gc.collect()
    files = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that reads this folder
            files.add((path.name, str(path.readlink())))
    return frozenset(files)


def assert_none_since(before: OpenFiles, *, within_s: float = 0.0) -> None:
    """Fails if this process holds anything that it did not hold `before`.

    Threads that end beside the test get `within_s` for closing theirs.
    """
    deadline_s = time.monotonic() + within_s
    while (left := now() - before) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not left, sorted(left)
