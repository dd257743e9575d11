"""Begins the labs of scripts and of `./lab shell` in their sandboxes.

The controller starts before all else is imported.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from testbed.lab import sandbox
from testbed.lab.kernel import privileges
from testbed.lab.sandbox import EndedError, SandboxError
from testbed.run.session import LabSession
from testbed.shared.input_error import InputError
from testbed.shared.messages import Messages


def open_prompt(config: dict[str, Any]) -> int:
    """Open Mininet's prompt in the lab of a run's configuration; returns the exit status."""
    with sandbox.start(__name__, terminal=True) as box:
        # Ctrl-C at the terminal is for what runs at the prompt.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            box.ask({"config": config | {"adjustable": True}, "prompt": True})
        except EndedError:
            return box.process.wait()
        except SandboxError as error:
            raise InputError(f"no lab can be built: {error}") from None
        finally:
            signal.signal(signal.SIGINT, before)
    return 0


def in_sandbox(order: dict[str, Any], messages: Messages) -> dict[str, Any] | None:
    """Begin a lab; serve the script or the user until it has gone."""
    prompt = order.get("prompt", False)
    if prompt:
        # A closed terminal is the end. The first process of a namespace gets no signal by default.
        signal.signal(signal.SIGHUP, lambda *_: os._exit(1))
    kept = None if order.get("directory") is None else Path(order["directory"])
    if kept is not None:
        privileges.become_nobody_without(kept)
    lab = LabSession(order["config"], kept)
    lab.begin()
    # Imported here, beside the controller's own imports.
    if prompt:
        from testbed.scripting.prompt import Prompt

        Prompt(lab).open()
        return {}
    from testbed.scripting.server import LabServer

    server = LabServer(lab, messages, calibrated=order["calibrated"])
    messages.answer(order, server.description())
    server.serve()
    return None
