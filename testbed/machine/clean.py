"""`./lab clean`: shows what runs and labs left behind, and removes it once that is confirmed."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.lab import leftovers
from testbed.lab.kernel import privileges
from testbed.lab.leftovers import Leftover
from testbed.shared import run_directory, sizes
from testbed.shared.yaml_input import InputError

_UNFINISHED = re.compile(r"(?P<key>.+)\.(?P<kind>partial|attempt\d+)")
_KEY = re.compile(r"[a-z0-9][A-Za-z0-9.@=_+-]*-s\d+-[0-9a-f]{10}")
_FETCHED = re.compile(r"\.fetched-[a-z0-9_]{8}")
_REPORT = re.compile(r"\.report-(?P<old>old-)?[a-z0-9_]{8}")
# A report is written within seconds.
_REPORT_IN_USE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class StaleFolder:
    """A folder below the results that no process uses and no report needs."""

    path: Path
    why: str
    size_bytes: int

    def line(self) -> str:
        return f"{sizes.in_words(self.size_bytes):>9}  {self.path}  ({self.why})"


def clean_experiment(
    out: Path, name: str, say: Callable[[str], None], confirm: Callable[[str], bool]
) -> bool:
    """Delete all results of one experiment, say so; returns whether that was confirmed."""
    folder = out / name
    if not run_directory.is_name(name) or not _is_own_folder(folder) or not _is_of_the_lab(folder):
        known = [path.name for path in sorted(out.glob("*")) if _is_of_the_lab(path)]
        valid = f"; valid: {', '.join(known)}" if known else ""
        raise InputError(f"{folder}: holds no experiment's results{valid}")
    for path in folder.glob("*.partial"):
        if run_directory.in_use(path):
            raise InputError(f"{path}: this run is going on; end it first")
    size = sizes.in_words(sizes.bytes_below(folder))
    if not confirm(f"Delete {folder} ({size})?"):
        return False
    _remove(folder)
    say(f"removed {folder} ({size})")
    return True


def _is_of_the_lab(folder: Path) -> bool:
    """Whether an experiment was planned in a folder."""
    return (folder / run_directory.PLAN).is_file()


def clean_leftovers(out: Path, say: Callable[[str], None], confirm: Callable[[str], bool]) -> bool:
    """Show what runs and labs have left behind and remove it once it is confirmed."""
    processes, folders = leftovers.find(), stale_folders(out)
    if not processes and not folders:
        say(f"nothing to clean: no lab is left standing, and no stale folder is in {out}")
        return True
    if processes:
        say("processes of labs whose command is gone, to be ended:")
        for process in processes:
            say(f"{process.pid:>9}  {process.command[:100]}")
    if folders:
        say("folders, to be removed:")
        for folder in folders:
            say(folder.line())
    if not confirm(f"End {len(processes)} processes and remove {len(folders)} folders?"):
        return False
    _end(processes)
    for folder in folders:
        if run_directory.in_use(folder.path):
            raise InputError(f"{folder.path}: a process uses it since it was shown; not removed")
        _remove(folder.path)
    size = sizes.in_words(sum(each.size_bytes for each in folders))
    say(f"ended {len(processes)} processes, removed {len(folders)} folders ({size})")
    return True


def stale_folders(out: Path) -> list[StaleFolder]:
    """Abandoned runs, earlier attempts, and what is half written, below `out`, or `out` itself."""
    paths = sorted([out, *out.glob("*"), *out.glob("*/*")])
    return [
        StaleFolder(path=path, why=why, size_bytes=sizes.bytes_below(path))
        for path in paths
        if (why := why_stale(path) or _half_written(path))
    ]


def _half_written(path: Path) -> str:
    """What a folder was to become that nobody writes any more; "" if it may be of use."""
    report, fetched = _REPORT.fullmatch(path.name), _FETCHED.fullmatch(path.name)
    if not (report or fetched) or not _is_own_folder(path) or _touched_lately(path):
        return ""
    if report and report["old"] and not path.with_name("report").is_dir():
        return ""  # the last whole report
    return "a half-written report" if report else "results half fetched from a worker"


def why_stale(path: Path) -> str:
    """Why a run's folder is of no use to anybody; "" if it may be."""
    match = _UNFINISHED.fullmatch(path.name)
    if match is None or not _is_own_folder(path) or run_directory.in_use(path):
        return ""
    config = run_directory.read_or_empty(path / "config.json")
    if not _KEY.fullmatch(match["key"]) and not run_directory.is_of_script(config):
        return ""  # a script names its folder as it likes
    if run_directory.RunDirectory(path).verdict() == "ok":
        return ""  # of a run in progress, too: the next `run` gives it its name
    return "a run whose command is gone" if match["kind"] == "partial" else "an earlier attempt"


def _end(processes: list[Leftover]) -> None:
    remaining = leftovers.end(processes)
    if remaining:
        numbers = ", ".join(str(each.pid) for each in remaining)
        raise InputError(f"these processes do not end: {numbers} (stuck in the kernel?)")


def _remove(folder: Path) -> None:
    try:
        privileges.hand_over_below(folder)  # a killed command has left it root's
        shutil.rmtree(folder)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror}") from None


def _is_own_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _touched_lately(folder: Path) -> bool:
    newest_s = max(each.lstat().st_mtime for each in (folder, *folder.iterdir()))
    return time.time() - newest_s < _REPORT_IN_USE_S
