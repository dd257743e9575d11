"""Runs external programs, from argument lists only; a failure is an exception."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


class CommandError(RuntimeError):
    """A program or the kernel refused; the message is one line with what it said."""


def run(argv: Sequence[str], *, input_text: str | None = None, timeout_s: float = 20.0) -> str:
    """Run `argv`, return its standard output; CommandError: missing, failed, or too slow."""
    try:
        done = subprocess.run(
            list(argv),
            input=input_text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except FileNotFoundError as error:
        raise CommandError(f"{argv[0]}: not installed") from error
    except OSError as error:
        raise CommandError(f"{argv[0]}: cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{argv[0]}: no answer within {timeout_s:g} s") from error
    if done.returncode != 0:
        printed = " ".join((done.stderr or done.stdout).split())
        raise CommandError(f"{' '.join(argv)}: exit status {done.returncode}: {printed}")
    return done.stdout
