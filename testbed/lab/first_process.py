"""The first process of every sandbox: `python -m testbed.lab.first_process MODULE DESCRIPTOR`.

It answers the first message of the connection with what the module's `in_sandbox` makes of it. It
ends, and the sandbox with it, when the other end of the connection closes, or when the process ends
whose pidfd comes with the message: what that forked may hold copies of the end.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import sys
import threading
import traceback

from testbed.shared import failure, python_module
from testbed.shared.input_error import InputError
from testbed.shared.messages import MessageError, Messages


def main() -> None:
    """Serve the connection that the arguments name."""
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
