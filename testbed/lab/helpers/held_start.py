"""A helper that waits, then becomes another program: `... held_start PROGRAM ARGUMENTS`.

With its first request it answers `{"began_s": ...}` and becomes PROGRAM, which knows nothing of a
helper's input: the kernel ends it with the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

from testbed.lab.helpers.process import Requests, run_as_others, run_at_once

_PR_SET_PDEATHSIG = 1


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # exec keeps it
    run_at_once()
    requests = Requests()
    if requests.wait() is None:
        return
    requests.say({"began_s": time.monotonic()})
    run_as_others(max(0, os.getpriority(os.PRIO_PROCESS, 0)))
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 (an argument list, no shell)


if __name__ == "__main__":
    main()
