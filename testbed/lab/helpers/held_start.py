"""A program that waits, ready to become another one: `... held_start PROGRAM ARGUMENTS`.

Starting a process takes milliseconds that whoever must be punctual does not have. This one is
started beforehand, in the right network namespace; with the first line on its standard input it
answers `{"began_s": ...}` and is PROGRAM from then on, without the precedence of whoever began it.
"""

from __future__ import annotations

import os
import sys
import time

from testbed.lab.helpers.command_lines import Commands, run_as_others, run_at_once, say


def main() -> None:
    """Waits for a line; without one it just ends."""
    run_at_once()
    if Commands(sys.stdin.fileno()).wait() is None:
        return
    say({"began_s": time.monotonic()})
    run_as_others(max(0, os.getpriority(os.PRIO_PROCESS, 0)))
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 (an argument list, no shell)


if __name__ == "__main__":
    main()
