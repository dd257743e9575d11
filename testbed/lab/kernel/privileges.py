"""Root's privileges: dropped where none is needed, and abandoned where users' code runs.

Under `sudo` the command and what it writes belong to the caller: `drop` makes this process that
user, and `regained` is for moments that need root. Workers and programs in hosts call `abandon`.
"""

# After `abandon`, sockets can still see and send raw packets and bind low ports. CAP_NET_ADMIN is
# gone: it counts in all network namespaces of its user namespace, which for root is the machine's,
# and netlink reaches another one by a process in it or by a number (capabilities(7)).

from __future__ import annotations

import ctypes
import errno
import os
import platform
import pwd
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_DAC_READ_SEARCH, _NET_BIND_SERVICE, _NET_RAW, _LAST = 2, 10, 13, 63
# ping and tcpdump need raw sockets.
_NETWORK = (_NET_BIND_SERVICE, _NET_RAW)
# Without it, root would be shut out from a project in the home of a user.
_AS_ROOT = (_DAC_READ_SEARCH, *_NETWORK)

_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS = 1, 8
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 38, 47
_AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 2, 4
_CAPABILITY_VERSION = 0x20080522
# setgroups, setresgid, setresuid of one thread: those of libc change all threads of a process.
_CALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147), "riscv64": (159, 149, 147)}
_LIBC = ctypes.CDLL(None, use_errno=True)
_original_groups: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The user who called `sudo`."""

    uid: int
    gid: int

    @property
    def groups(self) -> list[int]:
        """Return the user's groups; the one that sudo named, if the system knows no such user."""
        try:
            return os.getgrouplist(pwd.getpwuid(self.uid).pw_name, self.gid)
        except KeyError:
            return [self.gid]

    def environment(self) -> dict[str, str]:
        """Return the user's home and name: programs look there for settings and caches."""
        try:
            user = pwd.getpwuid(self.uid)
        except KeyError:
            return {"HOME": "/"}
        return {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}


def may_be_root() -> bool:
    """Tell whether this process is root, or has dropped its privileges."""
    return 0 in os.getresuid()


def caller() -> Caller | None:
    """Return the user who called `sudo`, for a process that may be root; None: nobody else."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if not may_be_root() or not uid.isdecimal() or not gid.isdecimal() or int(uid) == 0:
        return None
    return Caller(uid=int(uid), gid=int(gid))


def drop() -> None:
    """Act as the caller, without root's privileges, until `regain`."""
    # As root without a caller, files of others can be read but not changed.
    if (who := caller()) is None:
        _set_capabilities(effective=_AS_ROOT, keep_permitted=True)
        return
    _original_groups[:] = os.getgroups()
    os.setgroups(who.groups)
    os.setresgid(who.gid, who.gid, 0)
    os.setresuid(who.uid, who.uid, 0)


def regain() -> None:
    if os.geteuid() == 0:
        _set_capabilities(effective=None, keep_permitted=True)
        return
    os.setresuid(-1, 0, -1)  # the other calls need what this brings back
    os.setresgid(0, 0, 0)
    os.setgroups(_original_groups)
    os.setresuid(0, 0, 0)


@contextmanager
def regained() -> Iterator[None]:
    """Be root for the time of the body, where this process was and has become the caller."""
    if not may_be_root() or os.geteuid() == 0:
        yield
        return
    regain()
    try:
        yield
    finally:
        drop()


def become_caller(needed: Path) -> str:
    """Under `sudo`: become the caller; returns what to tell the user, empty for nothing."""
    # Where the caller cannot read what is needed, this stays root's command.
    if (who := caller()) is None:
        return ""
    if not reaches(who, needed.resolve(), "r"):
        _forget_caller()
        return f"user {who.uid}, who called sudo, cannot read {needed}: what is written is root's"
    os.environ.update(who.environment())
    drop()
    return ""


def become_nobody_without(directory: Path) -> None:
    """As root: where the caller cannot write to a run's directory, nobody becomes the caller."""
    if (who := caller()) is not None and not reaches(who, directory, "w"):
        _forget_caller()


def hand_over(path: Path) -> None:
    """As root under `sudo`: give one file, folder or socket of root's to the caller."""
    # A symbolic link is not followed. What is not root's is left alone, and a file with several
    # names, too: another one may lie anywhere.
    if (who := caller()) is not None:
        _give(who, str(path), None)


def hand_over_below(directory: Path) -> None:
    """`hand_over` for a folder that this command made, and all below; not for somebody else's."""
    if (who := caller()) is None:
        return
    # By open folders: the caller may exchange any for a link meanwhile, which leads nowhere.
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(opened).st_uid in (who.uid, os.geteuid()):
            with regained():
                for _, _, files, descriptor in os.fwalk(dir_fd=opened):
                    for name in (".", *files):
                        _give(who, name, descriptor)
    finally:
        os.close(opened)


def _give(who: Caller, name: str, folder: int | None) -> None:
    state = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if state.st_uid == 0 and (stat.S_ISDIR(state.st_mode) or state.st_nlink == 1):
        os.chown(name, who.uid, who.gid, dir_fd=folder, follow_symlinks=False)


def reaches(who: Caller, path: Path, mode: str) -> bool:
    """As root: tell whether a user may read (`r`), write (`w`) or enter (`x`) a path."""
    test = subprocess.run(
        ["test", f"-{mode}", str(path)],
        user=who.uid,
        group=who.gid,
        extra_groups=who.groups,
        cwd="/",
        check=False,
    )
    return test.returncode == 0


def abandon() -> None:
    """Drop root's privileges for good: for this thread, and for all that it starts."""
    # The kernel forgets with them who was to be told of the parent's end, so `die_with_parent`
    # comes later. A process with such a thread must not use `drop`: libc changes all threads alike.
    who = caller()
    kept = _AS_ROOT if who is None else _NETWORK
    for number in range(_LAST + 1):
        if number in kept:
            continue
        try:
            _prctl(_PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            break  # the kernel knows no capability of this number
    if who is not None:
        _become(who)
    _set_capabilities(effective=kept, keep_permitted=False)
    _prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    for number in kept:
        _prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, number)  # so that programs keep them
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that made it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _forget_caller() -> None:
    """Treat this process, and what it starts, as root's own."""
    for name in ("SUDO_UID", "SUDO_GID"):
        os.environ.pop(name, None)


def _become(who: Caller) -> None:
    """Change the user and groups of this thread alone, and keep its capabilities."""
    setgroups, setresgid, setresuid = _CALLS[platform.machine()]
    groups = who.groups
    _prctl(_PR_SET_KEEPCAPS, 1)
    _call(setgroups, len(groups), (ctypes.c_uint32 * len(groups))(*groups))
    _call(setresgid, *[ctypes.c_uint32(who.gid)] * 3)
    _call(setresuid, *[ctypes.c_uint32(who.uid)] * 3)


def _call(number: int, *arguments: object) -> None:
    _require(_LIBC.syscall(ctypes.c_long(number), *arguments))


def _prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    _require(_LIBC.prctl(option, *words))


def _set_capabilities(*, effective: tuple[int, ...] | None, keep_permitted: bool) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: low halves, high halves
    _require(_LIBC.capget(header, data))
    permitted = data[1] | data[4] << 32
    active = permitted
    if effective is not None:
        active &= sum(1 << number for number in effective)
    inheritable = data[2] | data[5] << 32 if keep_permitted else active
    for place, value in enumerate((active, permitted if keep_permitted else active, inheritable)):
        data[place], data[place + 3] = value & 0xFFFFFFFF, value >> 32
    _require(_LIBC.capset(header, data))


def _require(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot drop root's privileges: {os.strerror(number)}")
