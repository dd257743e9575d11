"""`python -m testbed.sampling RUN_DIRECTORY`, with the order as the first line of its input."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from testbed.sampling.sampler import Sampler

# It sleeps nearly always, but when it wakes a sample is due.
_NICE = -10


def main() -> None:
    """Sample until the input ends."""
    line = bytearray()
    while not line.endswith(b"\n"):
        character = os.read(0, 1)
        if not character:
            sys.exit(1)
        line += character
    with suppress(OSError):  # an ordinary user may not
        os.nice(_NICE)
    gc.disable()  # nothing here makes cycles, and a collection would be a gap
    stop = threading.Event()
    threading.Thread(target=_await_end, args=[stop], daemon=True).start()
    sampler = Sampler(Path(sys.argv[1]), json.loads(line))
    os.write(1, b".")  # the training may begin
    sampler.run(stop)


def _await_end(stop: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    stop.set()


if __name__ == "__main__":
    main()
