"""`./lab clean`: shows what runs and labs left behind, and removes it once that is confirmed."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from testbed.lab import leftovers
from testbed.lab.kernel import privileges
from testbed.shared import run_directory, units
from testbed.shared.yaml_input import InputError

_UNFINISHED = re.compile(r"(?P<key>.+)\.(?P<kind>partial|attempt\d+)")
_KEY = re.compile(r"[a-z0-9][A-Za-z0-9.@=_+-]*-s\d+-[0-9a-f]{10}")
# Half-written reports, and results half fetched from a worker; both are complete within seconds.
_TEMPORARY = re.compile(r"\.(report|report-old|fetched)-[a-z0-9_]{8}")
_IN_USE_S = 60.0


def clean_experiment(
    out: Path, name: str, say: Callable[[str], None], confirm: Callable[[str], bool]
) -> bool:
    """Delete all results of one experiment once it is confirmed; return whether it was."""
    folder = out / name
    if not run_directory.is_name(name) or not _is_own_folder(folder) or not _is_planned(folder):
        experiments = [path.name for path in sorted(out.glob("*")) if _is_planned(path)]
        valid = f"; valid: {', '.join(experiments)}" if experiments else ""
        raise InputError(f"{folder}: holds no experiment's results{valid}")
    for path in folder.glob("*.partial"):
        if run_directory.in_use(path):
            raise InputError(f"{path}: this run is going on; end it first")
    size = units.size_in_words(run_directory.bytes_below(folder))
    if not confirm(f"Delete {folder} ({size})?"):
        return False
    _remove(folder)
    say(f"removed {folder} ({size})")
    return True


def _is_planned(folder: Path) -> bool:
    return (folder / run_directory.PLAN).is_file()


def clean_leftovers(out: Path, say: Callable[[str], None], confirm: Callable[[str], bool]) -> bool:
    """Show what runs and labs have left behind and remove it once it is confirmed."""
    processes, folders = leftovers.find(), stale_folders(out)
    sizes_bytes = {folder: run_directory.bytes_below(folder) for folder in folders}
    if not processes and not folders:
        say(f"nothing to clean: no lab is left standing, and no stale folder is in {out}")
        return True
    if processes:
        say("processes of labs whose command is gone, to be ended:")
        for process in processes:
            with suppress(psutil.Error):  # it has just ended
                say(f"{process.pid:>9}  {' '.join(process.cmdline())[:100]}")
    if folders:
        say("folders, to be removed:")
        for folder, why in folders.items():
            say(f"{units.size_in_words(sizes_bytes[folder]):>9}  {folder}  ({why})")
    if not confirm(f"End {len(processes)} processes and remove {len(folders)} folders?"):
        return False
    if remaining := leftovers.end(processes):
        numbers = ", ".join(str(process.pid) for process in remaining)
        raise InputError(f"these processes do not end: {numbers} (stuck in the kernel?)")
    for folder in folders:
        if run_directory.in_use(folder):
            raise InputError(f"{folder}: a process uses it since it was shown; not removed")
        _remove(folder)
    size = units.size_in_words(sum(sizes_bytes.values()))
    say(f"ended {len(processes)} processes, removed {len(folders)} folders ({size})")
    return True


def stale_folders(out: Path) -> dict[Path, str]:
    """Find abandoned runs, earlier attempts and half-written folders, and say why each is stale."""
    places = sorted([out, *out.glob("*"), *out.glob("*/*")])
    return {place: why for place in places if (why := why_stale(place))}


def why_stale(path: Path) -> str:
    """Say why a folder is of no use to anybody; "" if it may be."""
    if not _is_own_folder(path):
        return ""
    if _TEMPORARY.fullmatch(path.name):
        if path.name.startswith(".report-old-") and not path.with_name("report").is_dir():
            return ""  # the last whole report
        newest_s = max(part.lstat().st_mtime for part in (path, *path.iterdir()))
        return "half written" if time.time() - newest_s > _IN_USE_S else ""
    match = _UNFINISHED.fullmatch(path.name)
    if match is None or run_directory.in_use(path):
        return ""
    config = run_directory.read_or_empty(path / "config.json")
    if not _KEY.fullmatch(match["key"]) and not run_directory.is_of_script(config):
        return ""  # a script names its folder as it likes
    if run_directory.RunDirectory(path).verdict() == "ok":
        return ""  # of a run in progress, too: the next `run` gives it its name
    return "a run whose command is gone" if match["kind"] == "partial" else "an earlier attempt"


def _remove(folder: Path) -> None:
    try:
        privileges.hand_over_below(folder)  # a killed command has left it root's
        shutil.rmtree(folder)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror}") from None


def _is_own_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
