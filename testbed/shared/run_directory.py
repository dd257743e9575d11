"""The run directory's format: names, states and atomic writing.

`DIR/<experiment>/<key>.partial` while a run is going on, `<key>` when it has a verdict,
`<key>.attempt<N>` for earlier attempts that were not ok. Nothing is ever overwritten.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from testbed.shared.input_error import InputError, shown

SCHEMA = 1
PLAN = "plan.json"  # in an experiment's folder: what was planned under its name
RESULTS = Path("runs")  # the folder of all results, unless the user names another one
LOADED = "training.loaded"  # in logs/: the training has imported and read what it needs
LOST_WORKERS = "lost-workers.reason"  # in logs/: a line for each worker that training outlived
Verdict = Literal["ok", "failed", "invalid", "unsupported", "interrupted"]
VERDICTS: tuple[Verdict, ...] = ("ok", "failed", "invalid", "unsupported", "interrupted")
DISK_FULL = "the disk is full"
_NO_VERDICT = "the command ended without a verdict"
BALLAST = ".ballast"  # room for the verdict, held while the run goes on, for a disk that fills up
BALLAST_BYTES = 1 << 20
_LONGEST_NAME_BYTES = 255  # of a file, on every file system of Linux


class InUseError(Exception):
    """Another process is executing this run at the moment."""


def is_name(text: object) -> bool:
    """Tell whether a text is the name of one entry of a folder, and no path elsewhere."""
    return (
        isinstance(text, str)
        and text not in ("", ".", "..")
        and "/" not in text
        and text.isprintable()
        and len(os.fsencode(text)) <= _LONGEST_NAME_BYTES
    )


def require_name(name: object, where: str) -> str:
    if not is_name(name):
        raise InputError(f"{where}: {shown(name)}; valid: a name alone, which is no path")
    return str(name)


def open_file(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open a file whose name is no symbolic link, which would lead root to any file."""
    return open(
        path,
        mode,
        opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666),
        **options,
    )


def now() -> str:
    """Return the time of day as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file so that it is either complete or not there."""
    write_text(path, json.dumps(document, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is either complete or as it was."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open_file(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path}: nested too deep") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: not a JSON object")
    return document


def read_or_empty(path: Path) -> dict[str, Any]:
    """Read a JSON file's object; empty where there is none that can be read."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a directory's own lock, which the kernel drops with the process that holds it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUseError(f"{directory}: another process is executing this run") from None
        yield
    finally:
        os.close(descriptor)


def in_use(directory: Path) -> bool:
    """Tell whether a process holds the lock of this run."""
    try:
        with _locked(directory):
            return False
    except InUseError:
        return True
    except FileNotFoundError:
        return False  # renamed or removed meanwhile


def is_abandoned(directory: Path) -> bool:
    """Tell whether a run's command has ended without a verdict, as one does that is killed."""
    return (
        directory.name.endswith(".partial")
        and (directory / "config.json").is_file()
        and not (directory / "status.json").exists()
        and not in_use(directory)
    )


def status(directory: Path) -> dict[str, Any]:
    """Read a run's `status.json`; of an abandoned run what will be written there."""
    if is_abandoned(directory):
        return {"verdict": "interrupted", "reason": _NO_VERDICT, "gates": []}
    return read_json(directory / "status.json")


def key_of(name: str) -> str:
    """Return the key of a run, from the name of one of its directories."""
    return re.sub(r"\.(partial|attempt\d+)$", "", name)


@dataclass(frozen=True)
class RunDirectory:
    """The place of one run; `path` is where a finished run lies."""

    path: Path

    @property
    def partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")

    def verdict(self) -> Verdict | None:
        """Read the verdict of the finished run; None when there is none."""
        verdict = read_or_empty(self.path / "status.json").get("verdict")
        return verdict if verdict in VERDICTS else None

    @contextmanager
    def open(self, config: dict[str, Any]) -> Iterator[Path]:
        """Make the in-progress directory, hold its lock, and finish it afterwards."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._keep_abandoned()
        try:
            self.partial.mkdir()
        except FileExistsError:
            raise InUseError(f"{self.partial}: another process is executing this run") from None
        with _locked(self.partial):
            for name in ("events", "logs"):
                (self.partial / name).mkdir()
            with open_file(self.partial / BALLAST, "xb") as ballast:
                os.posix_fallocate(ballast.fileno(), 0, BALLAST_BYTES)
            write_json(self.partial / "config.json", config)
            try:
                yield self.partial
            finally:
                if (self.partial / "status.json").exists():
                    self.accept(self.partial)

    def accept(self, directory: Path) -> None:
        """Take a finished directory, from the same disk, as this run; an earlier one is kept."""
        self.set_aside()
        directory.rename(self.path)

    def finish_left_over(self) -> bool:
        """Finish a run whose command was killed after the verdict; tell whether there was one."""
        try:
            with _locked(self.partial):
                finished = RunDirectory(self.partial).verdict() not in (None, "interrupted")
                if finished:
                    self.accept(self.partial)
                return finished
        except FileNotFoundError:
            return False  # there is none

    def set_aside(self, existing: Path | None = None) -> None:
        """Keep a directory, by default the finished run's, if there is one, as an attempt."""
        names = (f"{self.path.name}.attempt{number}" for number in itertools.count(1))
        free = next(name for name in names if not self.path.with_name(name).exists())
        with suppress(FileNotFoundError):
            (existing or self.path).rename(self.path.with_name(free))

    def _keep_abandoned(self) -> None:
        if self.finish_left_over() or not self.partial.exists():
            return
        with _locked(self.partial):
            if not (self.partial / "status.json").exists():
                write_status(self.partial, "interrupted", _NO_VERDICT)
            self.set_aside(self.partial)


def bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it has gone meanwhile
            entry = path.lstat()
            if not stat.S_ISDIR(entry.st_mode):
                total += entry.st_size
    return total


def disk_is_full(directory: Path) -> bool:
    """Tell whether less room is left than a run holds for its verdict."""
    return shutil.disk_usage(directory).free < BALLAST_BYTES


def is_of_script(config: Mapping[str, Any]) -> bool:
    """Tell whether a lab in Python made the run: no command can repeat it."""
    return "adjustable" in config


def write_status(
    directory: Path,
    verdict: Verdict,
    reason: str = "",
    *,
    began_at: str | None = None,
    wall_s: float | None = None,
    gates: list[dict[str, Any]] | None = None,
) -> None:
    """Write a run's `status.json`, in the room that was held for it."""
    if verdict not in ("interrupted", "unsupported") and disk_is_full(directory):
        verdict, reason = "interrupted", "; ".join(filter(None, (DISK_FULL, reason)))
    (directory / BALLAST).unlink(missing_ok=True)
    write_json(
        directory / "status.json",
        {
            "schema": SCHEMA,
            "verdict": verdict,
            "reason": reason,
            "began_at": began_at,
            "ended_at": now(),
            "wall_s": wall_s,
            "gates": gates or [],
        },
    )
