"""The folder of a report: its name, and how a new one takes the place of an older one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analysis.data.run_directories import REPORT as FOLDER

SUMMARY = "summary.json"


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `folder` once it is whole."""
    new = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=folder.parent))
    try:
        new.chmod(0o755)
        yield new
        _swap(new, folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _swap(new: Path, final: Path) -> None:
    """Put `new` at `final`; at each instant `final` is a whole report, or for a moment none."""
    if not final.exists():
        new.rename(final)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-old-", dir=final.parent))
    final.replace(old)  # an empty folder may be replaced
    try:
        new.replace(final)
    except OSError:
        old.replace(final)
        raise
    shutil.rmtree(old, ignore_errors=True)
