"""The first process of a test's sandbox: builds a lab with a controller, and no training."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from testbed.run.session import LabSession
from testbed.shared.messages import Messages
from testbed.transport.wire import DATA_PORTS


def in_sandbox(request: dict[str, Any], messages: Messages) -> None:
    """Build, describe, and wait for the end of the sandbox."""
    lab = LabSession(request["config"], Path(request["logs"]))
    lab.begin()
    lab.build(data_ports=DATA_PORTS)
    lab.warm_up()
    messages.answer(request, lab.info.as_json())
    signal.pause()
