"""The sandbox: new network, mount and PID namespaces, and a user namespace when not root.

When its first process ends, for whatever reason, the kernel ends all others and removes every
interface, mount and namespace. No clean-up code is needed.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from testbed.lab import leftovers
from testbed.lab.kernel import privileges
from testbed.lab.kernel.commands import run
from testbed.shared import failure, python_module
from testbed.shared.input_error import InputError
from testbed.shared.messages import LateError, Message, MessageError, Messages, pair

# This folder exists wherever Open vSwitch is installed; inside the sandbox a private tmpfs covers
# it. Its short path keeps UNIX socket names below their limit of 107 bytes.
PRIVATE_DIRECTORY = Path("/etc/openvswitch")
CONTROLLER_ADDRESS = ("127.0.0.1", 6653)  # loopback of the sandbox's own network namespace
PINNED = PRIVATE_DIRECTORY / "run"
_HOSTS = Path("/etc/hosts")
_HOSTS_FILE = "hosts"
_LAST_WORDS_BYTES = 2000
_STOP_TIMEOUT_S = 3.0
_ROOT = Path(__file__).resolve().parents[2]


class SandboxError(RuntimeError):
    """A sandbox cannot carry out a request; the message is one line."""


class EndedError(SandboxError):
    """The sandbox has ended; the message is what it printed last, empty for nothing."""


@dataclass(eq=False)
class Sandbox:
    """A running sandbox, seen from outside. It ends with its connection, however that ends."""

    module: str
    process: subprocess.Popen[bytes]
    messages: Messages
    printed: IO[bytes] | None

    def ask(
        self, request: Mapping[str, Any], files: Sequence[int] = (), *, timeout_s: float = 1e6
    ) -> Message:
        """Ask its first process; InputError for a wrong request, else SandboxError."""
        try:
            answer, received = self.messages.ask(request, files, timeout_s=timeout_s)
        except LateError:
            raise SandboxError(f"{self.module}: not done within {timeout_s:g} s") from None
        except MessageError:
            raise EndedError(self.last_words()) from None
        if "error" in answer:
            raise (InputError if answer["bad"] else SandboxError)(answer["error"])
        return answer, received

    def last_words(self) -> str:
        """Return what it printed last, such as why it could not begin; empty for nothing."""
        if self.printed is None or self.printed.closed:
            return ""
        self.printed.seek(max(0, self.printed.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
        lines = self.printed.read().decode(errors="replace").split("\n")
        return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")

    def stop(self) -> int:
        """End it through its connection, by force if need be; return its exit status."""
        self.messages.close()
        if self.printed is not None:
            self.printed.close()
        try:
            return self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with privileges.regained():
                self.process.kill()  # `--kill-child` takes the sandbox's first process with it
            return self.process.wait()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    module: str,
    *,
    output: IO[bytes] | None = None,
    terminal: bool = False,
    outlives_thread: bool = False,
) -> Sandbox:
    """Start a sandbox; its first process hands its first message to the module's `in_sandbox`."""
    # What it prints goes to `output`; with `terminal` it keeps the caller's own input and output.
    # The signal of the parent's death comes with the end of the thread that calls this; with
    # `outlives_thread` there is none.
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not privileges.may_be_root():
        namespaces = ["--user", "--map-root-user", *namespaces]
    # The signal ends the sandbox at once when the command is killed. The connection's end does so
    # where the kernel forgets the signal: on entering a user namespace.
    signal = [] if outlives_thread else ["setpriv", "--pdeathsig", "KILL"]
    with ExitStack() as opened:
        printed = None
        if output is None and not terminal:
            printed = output = opened.enter_context(tempfile.TemporaryFile())
        messages, theirs = pair()
        opened.callback(messages.close)
        with theirs, privileges.regained():
            process = subprocess.Popen(
                [
                    *signal,
                    *("unshare", *namespaces),
                    *python_module.command("testbed.lab.sandbox", module, str(theirs.fileno())),
                ],
                # `./lab clean` recognises a sandbox by this, and whether its command still lives.
                env=_environment() | {leftovers.OWNER_VARIABLE: leftovers.owner_of_now()},
                stdin=None if terminal else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C at the terminal goes to the command only, which ends the sandbox in order.
                start_new_session=not terminal,
            )
        opened.pop_all()
    return Sandbox(module, process, messages, printed)


def result_of(
    module: str, request: Mapping[str, Any], *, timeout_s: float = 300.0
) -> dict[str, Any]:
    """Return what a module's `in_sandbox` returns for a request, in a sandbox of its own."""
    with start(module) as box:
        return box.ask(request, timeout_s=timeout_s)[0]


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    if (who := privileges.caller()) is not None:
        environment |= who.environment()
    elif not privileges.may_be_root():  # it has nobody else's privileges to hand on
        environment.pop("SUDO_UID", None)
    if not sys.flags.safe_path:  # this project may have been found in the current folder
        places = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), str(_ROOT)]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(places))
    return environment


def pinned(directory: Path) -> Path:
    """Inside, as root under `sudo`: bind a run's directory where no link leads elsewhere."""
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
    if _HOSTS.exists():
        own = PRIVATE_DIRECTORY / _HOSTS_FILE
        own.write_text("127.0.0.1 localhost\n", encoding="ascii")
        # The folder is its owner's alone; every program has to read this file through the mount.
        own.chmod(0o644)
        # Hosts, which are made later, copy the mounts.
        run(["mount", "--bind", str(own), str(_HOSTS)])
    return PRIVATE_DIRECTORY


def tell_hosts(private: Path, addresses: Iterable[tuple[str, str]]) -> None:
    own = private / _HOSTS_FILE
    if own.exists():
        with own.open("a", encoding="ascii") as file:
            file.writelines(f"{address} {name}\n" for name, address in addresses)


def main() -> None:
    """Be a sandbox's first process: `python -m testbed.lab.sandbox MODULE DESCRIPTOR`."""
    # It answers the first message of the connection with what the module's `in_sandbox` returns. It
    # ends, and the sandbox with it, when the other end of the connection closes, or when the
    # process ends whose pidfd comes with the message: what that forked may hold copies of the end.
    module, descriptor = sys.argv[1], int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    _end_with(descriptor, select.POLLRDHUP)
    messages = Messages(socket.socket(fileno=descriptor))
    status = 0
    try:
        request, owners = messages.receive()
        for owner in owners:
            _end_with(owner, select.POLLIN)
        try:
            with python_module.large_imports():  # to collect them later would be a gap of 20 ms
                imported = importlib.import_module(module)
            answer = imported.in_sandbox(request, messages)
        except Exception as error:
            if not failure.is_expected(error):
                traceback.print_exc()
            answer = {"error": failure.in_words(error), "bad": isinstance(error, InputError)}
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        if answer is not None:
            messages.answer(request, answer)
    except MessageError:
        pass
    # The first process does not unwind: its end is the end of the sandbox.
    os._exit(status)


def _end_with(descriptor: int, event: int) -> None:
    """End this process, and with it the sandbox, at an event of a descriptor."""

    def watch() -> None:
        ended = select.poll()  # `select` refuses descriptors above 1023
        ended.register(descriptor, event)
        ended.poll()
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    main()
