"""The first process of a script's sandbox: it gets ready, and becomes the script's steward.

It ends, and the lab with it, when the script closes its connection or the script's process ends,
whatever threads started the lab and whatever the script has forked.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

from testbed.lab import sandbox
from testbed.lab.kernel import privileges
from testbed.run import inside
from testbed.scripting.channel import Channel, ChannelError
from testbed.shared import failure


def main() -> None:
    """Serve the script whose channel and pidfd are the arguments."""
    sandbox.end_with_lifeline()
    connected, script = map(int, sys.argv[1:])
    for file in (connected, script):
        os.set_inheritable(file, False)
    _end_with(script)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=connected))
    try:
        order, _ = channel.receive()
        try:
            kept = None if order["directory"] is None else Path(order["directory"])
            if kept is not None:
                privileges.become_nobody_without(kept)
            place = inside.prepare(order["config"], kept)
            from testbed.scripting.steward import Steward  # beside the controller's imports

            steward = Steward(order, place, channel)
        except Exception as error:
            if not isinstance(error, inside.EXPECTED):
                traceback.print_exc()
            channel.send({"error": failure.in_words(error)})
        else:
            channel.send(steward.description())
            steward.serve()
    except ChannelError:
        pass
    sys.stderr.flush()
    # The first process does not unwind: its end is the end of the lab.
    os._exit(0)


def _end_with(script: int) -> None:
    """End this process, and with it the sandbox, when the process of a pidfd ends."""

    def watch() -> None:
        ended = select.poll()  # `select` refuses descriptors above 1023
        ended.register(script, select.POLLIN)
        ended.poll()
        os._exit(1)

    threading.Thread(target=watch, name="script", daemon=True).start()


if __name__ == "__main__":
    main()
