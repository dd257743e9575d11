"""`python -m testbed.sampling RUN_DIRECTORY`: a helper process whose first request is its order."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from testbed.lab.helpers.process import Requests, say
from testbed.sampling.sampling_loop import Sampler

# It sleeps nearly always; when it wakes up, a sample is due.
_NICE = -10


def main() -> None:
    """Sample until the input ends; each further request is to write what there is."""
    requests = Requests()
    order = requests.wait()
    if order is None:
        sys.exit(1)
    with suppress(OSError):  # an ordinary user may not
        os.nice(_NICE)
    gc.disable()  # nothing here makes cycles, and a collection would be a gap
    stop = threading.Event()
    asked: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_listen, args=[requests, stop, asked], daemon=True).start()
    sampler = Sampler(Path(sys.argv[1]), order)
    say({"ready": True})  # the training may begin
    sampler.run(stop, asked, _tell_written)


def _tell_written(number: int, problems: list[str]) -> None:
    say({"number": number, "problems": problems})


def _listen(requests: Requests, stop: threading.Event, asked: SimpleQueue[int]) -> None:
    while (request := requests.wait()) is not None:
        importlib.import_module("polars")  # takes a while, in which sampling goes on
        asked.put(request["number"])
    stop.set()


if __name__ == "__main__":
    main()
