"""A host of a running lab, in which a script starts programs."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from testbed.scripting.program import Program

Ask = Callable[..., tuple[dict[str, Any], list[int]]]
Stream = int | IO[Any] | None
_AFTER_KILL_S = 2.0
# Of programs, chosen here: a start whose answer is not awaited can be taken back by its number.
_numbers = itertools.count()


class Host:
    """One emulated host.

    Attributes:
        name: its name, which every program of the lab resolves to its address.
        address: its IPv4 address.
    """

    def __init__(self, name: str, address: str, ask: Ask) -> None:
        """Labs make their hosts; `ask` asks the steward."""
        self.name = name
        self.address = address
        self._ask = ask

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address}>"

    def popen(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        text: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> Program:
        """Start a program in this host, and return while it runs.

        Args:
            args: the program and its arguments; no shell reads them.
            stdin: as of `subprocess.Popen`; None: the script's own.
            stdout: the same.
            stderr: the same.
            text: whether pipes carry texts (UTF-8); otherwise bytes.
            env: all of its environment; None: the script's.
            cwd: its current folder; None: the script's.

        Raises:
            LabError: there is no such program, or the lab has ended; one line.
        """
        if isinstance(args, str):
            raise TypeError("a program is a list of texts, such as ['ping', 'server']")
        if subprocess.STDOUT in (stdin, stdout):
            raise ValueError("STDOUT can only be used for stderr")
        ours: list[int | None] = []
        with ExitStack() as to_close:
            theirs: list[int] = []
            for descriptor, wanted in enumerate((stdin, stdout, stderr)):
                if wanted == subprocess.STDOUT:
                    theirs.append(theirs[1])
                    ours.append(None)
                    continue
                file, own = _ends(descriptor, wanted, to_close)
                theirs.append(file)
                ours.append(own)
            status, tell = os.pipe()
            to_close.callback(os.close, tell)
            argv, number = [os.fspath(arg) for arg in args], next(_numbers)
            request = {
                "do": "start",
                "number": number,
                "host": self.name,
                "argv": argv,
                "env": dict(os.environ if env is None else env),
                "cwd": str(Path.cwd() if cwd is None else Path(cwd).absolute()),
            }
            try:
                _, files = self._ask(request, [*theirs, tell])
                pid = _outer_pid(files[0])
                self._ask({"do": "watch", "number": number})
            except BaseException:
                with suppress(RuntimeError):  # the lab has ended, and with it all programs
                    self._ask({"do": "take_back", "number": number})
                for own in (*ours, status):
                    if own is not None:
                        os.close(own)
                raise
        return Program(
            argv,
            pid,
            pipes=ours,
            status=status,
            send_signal=lambda sig: self._signal(number, sig),
            listens=lambda: self._listens(number),
            text=text,
        )

    def run(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        input: str | bytes | None = None,
        timeout: float | None = None,
        check: bool = False,
        text: bool = True,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program in this host to its end; returns and raises as `subprocess.run` does.

        What it leaves running goes on, until the lab ends, and is not waited for.

        Args:
            input: what it reads; None: nothing.
            timeout: in seconds; then it is killed, with all that it has started (its session).
            check: whether a status other than 0 is an error.
            args: as of `popen`, as are `text`, `stdout`, `stderr`, `env` and `cwd`.

        Raises:
            LabError: there is no such program, or the lab has ended; one line.
        """
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        program = self.popen(
            args, stdin=stdin, stdout=stdout, stderr=stderr, text=text, env=env, cwd=cwd
        )
        try:
            output, errors = program.communicate(input, timeout)
        except BaseException:
            with suppress(RuntimeError, subprocess.TimeoutExpired):  # or the lab has ended
                program.kill()
                program.communicate(timeout=_AFTER_KILL_S)
            raise
        status = program.wait()
        if check and status != 0:
            raise subprocess.CalledProcessError(status, program.args, output, errors)
        return subprocess.CompletedProcess(program.args, status, output, errors)

    def _listens(self, number: int) -> bool:
        answer, _ = self._ask({"do": "listens", "number": number})
        return bool(answer["listens"])

    def _signal(self, number: int, sig: int) -> None:
        self._ask({"do": "signal", "number": number, "signal": int(signal.Signals(sig))})


def _ends(number: int, wanted: Stream, to_close: ExitStack) -> tuple[int, int | None]:
    """The program's end of one of its files, closed with `to_close`, and ours of a pipe."""
    if wanted == subprocess.PIPE:
        reading, writing = os.pipe()
        theirs, ours = (reading, writing) if number == 0 else (writing, reading)
        to_close.callback(os.close, theirs)
        return theirs, ours
    if wanted == subprocess.DEVNULL:
        nothing = os.open(os.devnull, os.O_RDWR)
        to_close.callback(os.close, nothing)
        return nothing, None
    if wanted is None:
        return number, None
    return wanted if isinstance(wanted, int) else wanted.fileno(), None


def _outer_pid(pidfd: int) -> int:
    """The process id of a process outside its PID namespace; -1 once it has ended."""
    try:
        for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == "Pid":
                return int(value)
    finally:
        os.close(pidfd)
    return -1
