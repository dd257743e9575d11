"""Groups of processes that the kernel holds to a share of the processors (cgroups(7)).

The groups lie outside of any namespace, so whoever makes one has to remove it. With version 2 they
are *threaded*, because workers that share a process are threads of different hosts.

A group with quota Q and period T runs for Q and then waits for the next T. At the kernel's default
of 100 ms a host with half a processor would stand still for 50 ms, longer than a round trip. Here
it is 10 ms: at 5 ms, a busy loop with a share of 0.5 got 0.43 of a processor, with 10 ms 0.48
(two processors, half busy otherwise), because the kernel looks at its clock every 4 ms.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PERIOD_S = 0.010
_LEAST_QUOTA_S = 0.001  # the kernel's
_REMOVAL_S = 2.0  # a sandbox's processes end within milliseconds


class CgroupError(OSError):
    """There are no groups with a share for this user; the message says why, in one line."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, kw_only=True)
class Hierarchies:
    """Where groups can be made: folders for share and accounts, often the same one."""

    version: int
    folders: tuple[Path, ...]


def find() -> Hierarchies:
    """The hierarchies that have the processors' controller, at this process's place in them.

    Raises:
        CgroupError: there is none.
    """
    mounted = _mounted()
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)

    def place(name: str) -> Path:
        folder, root = mounted[name]
        with suppress(ValueError, KeyError):
            return folder / Path(own[name]).relative_to(root)
        return folder

    if "cpu" in mounted and "cpuacct" in mounted:
        return Hierarchies(version=1, folders=tuple(dict.fromkeys(map(place, ("cpu", "cpuacct")))))
    if "" not in mounted:
        raise CgroupError("no cgroups are mounted")
    top, here = mounted[""][0], place("")
    # Root has the whole machine, where the controller is in use; a user what systemd has delegated.
    for found, listed in ((top, "cgroup.subtree_control"), (here, "cgroup.controllers")):
        if "cpu" in _words(found / listed) and os.access(found / "cgroup.procs", os.W_OK):
            return Hierarchies(version=2, folders=(found,))
    raise CgroupError("no group of version 2 that this user may divide has the controller cpu")


def _mounted() -> dict[str, tuple[Path, str]]:
    """Where hierarchies are mounted: controller, "" of version 2 -> folder, its root."""
    mounted: dict[str, tuple[Path, str]] = {}
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        front, _, back = line.partition(" - ")
        kind, _, options = back.split(" ", 2)
        root, folder = front.split(" ")[3:5]
        names = options.split(",") if kind == "cgroup" else [""] if kind == "cgroup2" else []
        for name in names:
            mounted.setdefault(name, (Path(folder), root))
    return mounted


def make(name: str, shares: Mapping[str, float]) -> dict[str, tuple[str, ...]]:
    """Make a group with one below it for each share; with version 2 this sandbox moves into it.

    Args:
        name: of the group.
        shares: name of a group below -> processors.

    Returns:
        Each group's folders, for `join`, `place` and `used_s`.

    Raises:
        CgroupError: the kernel refuses it; nothing is left.
    """
    where = find()
    tops = [folder / name for folder in where.folders]
    try:
        for top in tops:
            top.mkdir()
        if where.version == 2:
            _thread(tops[0])
        found = {}
        for below, share in shares.items():
            folders = [top / below for top in tops]
            for folder in folders:
                folder.mkdir()
            if where.version == 2:
                _thread(folders[0])
            _limit(folders[0], share)
            found[below] = tuple(map(str, folders))
        if where.version == 2:
            _move_sandbox(tops[0])
    except OSError as error:
        with suppress(OSError):
            if where.version == 2:  # a group that holds processes cannot be removed
                _move_sandbox(where.folders[0])
            remove(tops)
        raise CgroupError(f"{error.filename or tops[0]}: {error.strerror}") from None
    return found


def join(folders: Sequence[str]) -> None:
    """Put the calling thread, and what it starts from now on, into a group."""
    for each in map(Path, folders):
        tasks = each / "tasks"
        _write(tasks if tasks.exists() else each / "cgroup.threads", "0")


def place(folders: Sequence[str], pid: int) -> None:
    """Put a process into a group."""
    for each in folders:
        _write(Path(each, "cgroup.procs"), str(pid))


def used_s(folders: Sequence[str]) -> float:
    """Processor time of all that ran in a group, in seconds."""
    for each in map(Path, folders):
        if (account := each / "cpuacct.usage").exists():
            return int(account.read_text()) * 1e-9
    told = dict(line.split() for line in Path(folders[0], "cpu.stat").read_text().splitlines())
    return int(told["usage_usec"]) * 1e-6


def remove(tops: Iterable[Path]) -> None:
    """Remove groups, whose processes have ended or are about to; OSError: they go on."""
    deadline_s = time.monotonic() + _REMOVAL_S
    for top in tops:
        while top.is_dir():
            try:
                for each in (*(below for below in top.iterdir() if below.is_dir()), top):
                    each.rmdir()
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.005)


def here(name: str) -> list[Path]:
    """The folders of a group at this process's place."""
    with suppress(OSError):
        return [top / name for top in find().folders if (top / name).is_dir()]
    return []


def everywhere(prefix: str) -> dict[str, list[Path]]:
    """The folders of this user's groups, by their names, which begin so."""
    found: dict[str, list[Path]] = {}
    mounted = _mounted()
    for top in {mounted[each][0] for each in ("cpu", "cpuacct", "") if each in mounted}:
        for folder, below, _ in os.walk(top):
            for name in below:
                path = Path(folder, name)
                with suppress(OSError):  # it has gone
                    if name.startswith(prefix) and path.stat().st_uid == os.geteuid():
                        found.setdefault(name, []).append(path)
    return found


def _limit(folder: Path, share: float) -> None:
    period_s = max(_PERIOD_S, _LEAST_QUOTA_S / share)
    period_us, quota_us = round(period_s * 1e6), max(1000, round(share * period_s * 1e6))
    if (folder / "cpu.max").exists():
        _write(folder / "cpu.max", f"{quota_us} {period_us}")
    else:
        _write(folder / "cpu.cfs_period_us", str(period_us))
        _write(folder / "cpu.cfs_quota_us", str(quota_us))


def _thread(folder: Path) -> None:
    """Make a group of version 2 threaded, and let it have the controller."""
    _write(folder / "cgroup.type", "threaded")
    if "cpu" not in _words(folder.parent / "cgroup.subtree_control"):
        _write(folder.parent / "cgroup.subtree_control", "+cpu")


def _move_sandbox(group: Path) -> None:
    """Move all processes of this sandbox, which sees no others, into a group of version 2."""
    if os.getpid() != 1:
        raise RuntimeError("outside a sandbox, these would be all processes of the machine")
    for each in Path("/proc").glob("[1-9]*"):
        with suppress(ProcessLookupError):
            _write(group / "cgroup.procs", each.name)


def _words(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(encoding="ascii").split()
    return []


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)
