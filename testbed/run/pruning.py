"""Removes samples of finished runs: what the timeline draws, and no table needs.

The manifest of the run records it, so that the report can say so. Events, verdicts and all that the
numbers come from stay.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from testbed.shared import run_directory

_RECORD = "pruned"  # key of manifest.json


@dataclass(frozen=True, kw_only=True)
class Prunable:
    """The samples of one run.

    Attributes:
        directory: of the run.
        files: what would be removed.
        ended_s: when the run ended, in seconds since the epoch.
    """

    directory: Path
    files: tuple[Path, ...]
    size_bytes: int
    ended_s: float


def prunable(folder: Path, *, older_than_s: float = 0.0) -> list[Prunable]:
    """The runs in and below a folder that have samples and have ended, the largest first.

    Args:
        folder: of a run, of an experiment, or of all results.
        older_than_s: only runs that ended so many seconds ago, or earlier.
    """
    found = []
    for status in sorted(folder.glob("**/status.json")):
        directory, ended_s = status.parent, status.stat().st_mtime
        going_on = directory.name.endswith(".partial")
        if going_on or not (directory / "config.json").exists():
            continue
        if time.time() - ended_s < older_than_s:
            continue
        samples = sorted((directory / "samples").glob("**/*"))
        files = tuple(each for each in samples if each.suffix in (".parquet", ".npy"))
        if files:
            size_bytes = sum(each.stat().st_size for each in files)
            found.append(
                Prunable(directory=directory, files=files, size_bytes=size_bytes, ended_s=ended_s)
            )
    return sorted(found, key=lambda each: -each.size_bytes)


def prune(run: Prunable) -> None:
    """Remove a run's samples; note it in its manifest first, so that no gap is unexplained."""
    path = run.directory / "manifest.json"
    if path.exists():
        record = {
            "at": run_directory.now(),
            "files": [str(each.relative_to(run.directory)) for each in run.files],
            "bytes": run.size_bytes,
        }
        document = run_directory.read_json(path)
        run_directory.write_json(path, document | {_RECORD: [*document.get(_RECORD, []), record]})
    for each in run.files:
        each.unlink(missing_ok=True)
