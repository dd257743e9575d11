"""The first process of a test's sandbox: builds a lab with a controller, and no training."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from testbed.lab import sandbox
from testbed.run import inside
from testbed.run.assembly import Lab
from testbed.transport.core.wire import DATA_PORTS
from testbed.verdict import calibration


def main() -> None:
    """Build, report, and wait for the end of the sandbox."""
    sandbox.end_with_lifeline()
    logs = Path(sys.argv[2])
    config = json.loads(sys.argv[1])
    lab = Lab(config, inside.prepare(config, logs), data_ports=DATA_PORTS)
    calibration.warm_up(lab.network.info)
    lab.switch.deepen_buffers()
    unfinished = logs / "network.unfinished"
    unfinished.write_text(json.dumps(lab.network.info.as_json()))
    unfinished.rename(logs / "network.json")
    signal.pause()


if __name__ == "__main__":
    main()
