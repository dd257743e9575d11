"""The sandbox: new network, mount and PID namespaces, and a user namespace when not root.

When its first process ends, for whatever reason, the kernel ends all others and removes every
interface, mount and namespace. No clean-up code is needed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from testbed.lab import leftovers
from testbed.lab.kernel import privileges
from testbed.lab.kernel.commands import run
from testbed.shared import python_module
from testbed.shared.input_error import InputError

# This folder exists wherever Open vSwitch is installed; inside the sandbox a private tmpfs covers
# it. Its short path keeps UNIX socket names below their limit of 107 bytes.
PRIVATE_DIRECTORY = Path("/etc/openvswitch")
CONTROLLER_ADDRESS = ("127.0.0.1", 6653)  # loopback of the sandbox's own network namespace
PINNED = PRIVATE_DIRECTORY / "run"
# Limits that a lab's programs would die of: the command, what it counts, and how many are needed.
# Stock systems allow a process 1,024 open files, enough for 128 hosts, and files of any size.
_NEEDED = (
    (resource.RLIMIT_NOFILE, "ulimit -n, open files of a process", 1024),
    (resource.RLIMIT_FSIZE, "ulimit -f, bytes of a file", 1 << 30),
)
_HOSTS = Path("/etc/hosts")
_HOSTS_FILE = "hosts"
_ROOT = Path(__file__).resolve().parents[2]


def is_root() -> bool:
    """Whether this is root, whose sandbox needs no user namespace."""
    return privileges.may_be_root()


def start(
    module: str,
    *arguments: str,
    pass_fds: tuple[int, ...] = (),
    stdout: int | None = None,
    stderr: int | None = None,
    terminal: bool = False,
    outlives_thread: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `python -m module arguments` as the first process of a new sandbox."""
    # Its `stdin` is the sandbox's lifeline: closing it (or dying) ends the sandbox, because the
    # module calls `end_with_lifeline`. With `terminal` the module keeps the caller's own standard
    # input, and the parent-death signal alone ends it. That comes with the end of the thread that
    # calls this; with `outlives_thread` there is none.
    raise_limits()
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not is_root():
        namespaces = ["--user", "--map-root-user", *namespaces]
    # The signal ends the sandbox at once when the command is killed. The lifeline does so where the
    # kernel forgets the signal: on entering a user namespace.
    signal = [] if outlives_thread else ["setpriv", "--pdeathsig", "KILL"]
    with privileges.taken_up():
        return subprocess.Popen(
            [
                *signal,
                *("unshare", *namespaces),
                *python_module.command(module, *arguments),
            ],
            # `./lab clean` recognises a sandbox by this, and whether its command still lives.
            env=_environment() | {leftovers.OWNER_VARIABLE: leftovers.owner_of_now()},
            stdin=None if terminal else subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            # Ctrl-C at the terminal goes to the command only, which ends the sandbox in order.
            start_new_session=not terminal,
        )


def raise_limits() -> None:
    """Raise limits that are too low for a lab; higher ones stay, for users' programs."""
    for limit, name, needed in _NEEDED:
        soft, hard = resource.getrlimit(limit)
        if soft == resource.RLIM_INFINITY or soft >= needed:
            continue
        enough = hard == resource.RLIM_INFINITY or hard >= needed
        try:
            with privileges.taken_up():
                resource.setrlimit(limit, (needed, hard if enough else needed))
        except (OSError, ValueError):
            raise InputError(
                f"{name}: {hard} at most, and a lab needs {needed}: raise the hard limit "
                "(limits.conf has it; a new login has the stock one)"
            ) from None


def _environment() -> dict[str, str]:
    found = dict(os.environ)
    if (who := privileges.caller()) is not None:
        found |= who.environment()
    elif not is_root():  # an ordinary user's sandbox has nobody else's powers to hand on
        found.pop("SUDO_UID", None)
    if not sys.flags.safe_path:  # this project may have been found in the current folder
        places = [*filter(None, found.get("PYTHONPATH", "").split(os.pathsep)), str(_ROOT)]
        found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(places))
    return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End `unshare`, whose `--kill-child` takes the sandbox's first process with it."""
    with privileges.taken_up():
        process.kill()


def stop(process: subprocess.Popen[bytes], *, patience_s: float = 3.0) -> int:
    """End a sandbox through its lifeline, by force if need be; return its exit status."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        return process.wait()


def output_of(module: str, *arguments: str, timeout_s: float = 300.0) -> tuple[bytes, str]:
    """Run a module in a new sandbox until its output ends; returns it, and what went to stderr."""
    process = start(module, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # The sandbox ends when its standard input closes, so `communicate` must not see that.
    lifeline, process.stdin = process.stdin, None
    assert lifeline is not None
    late = ""
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        late = f"\n{module}: not done within {timeout_s:g} s"
        _kill(process)
        output, errors = process.communicate()
    finally:
        lifeline.close()
        stop(process)
    return output, (errors.decode(errors="replace").strip() + late).strip()


def end_with_lifeline(descriptor: int = 0) -> None:
    """Inside: end this process, and with it the sandbox, when `descriptor` closes."""

    def watch() -> None:
        while os.read(descriptor, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def pinned(directory: Path) -> Path:
    """Inside, as root under `sudo`: a way to a run's directory on which no link leads elsewhere."""
    # The caller may exchange any folder above for a link to one of root's. In this mount the kernel
    # follows no symbolic link (`nosymfollow`, Linux 5.10).
    if (who := privileges.caller()) is None:
        return directory
    PINNED.mkdir()
    run(["mount", "--bind", "-o", "nosymfollow", str(directory), str(PINNED)])
    if not privileges.reaches(who, PINNED, "w"):
        raise PermissionError(f"{directory}: user {who.uid}, who called sudo, cannot write there")
    return PINNED


def prepare() -> Path:
    """Inside: make the private folder and /etc/hosts, bring up loopback; return the folder."""
    if os.getpid() != 1:
        raise RuntimeError("this prepares the inside of a sandbox; use testbed.lab.sandbox.start")
    run(["mount", "-t", "tmpfs", "-o", "mode=0711", "tmpfs", str(PRIVATE_DIRECTORY)])
    run(["ip", "link", "set", "lo", "up"])
    _cover_hosts(PRIVATE_DIRECTORY)
    return PRIVATE_DIRECTORY


def _cover_hosts(private: Path) -> None:
    """Mount a file of its own over /etc/hosts; hosts, which are made later, copy the mounts."""
    if not _HOSTS.exists():
        return
    own = private / _HOSTS_FILE
    own.write_text("127.0.0.1 localhost\n", encoding="ascii")
    # The folder is its owner's alone; every program has to read this file through the mount.
    own.chmod(0o644)
    run(["mount", "--bind", str(own), str(_HOSTS)])


def tell_hosts(private: Path, addresses: Iterable[tuple[str, str]]) -> None:
    """Add hosts, each with its name and address, to the file."""
    own = private / _HOSTS_FILE
    if own.exists():
        with own.open("a", encoding="ascii") as file:
            file.writelines(f"{address} {name}\n" for name, address in addresses)
