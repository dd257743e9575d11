"""Inside a sandbox: Mininet's prompt in an experiment's network, without training."""

from __future__ import annotations

import json
import os
import sys

from testbed.assembly import Lab
from testbed.lab import calibration, sandbox
from testbed.processes import Processes


def main() -> None:
    """Build the network of the configuration that is the first argument; open the prompt."""
    from mininet.cli import CLI

    class Prompt(CLI):
        """Takes host names with a hyphen for commands, as in `worker-1 ping server`."""

        identchars = CLI.identchars + "-"

    private = sandbox.prepare()
    lab = Lab(
        json.loads(sys.argv[1]) | {"impairments": []},
        private=private,
        logs=private,
        impairment_log=private / "impairments.jsonl",
        processes=Processes(private),
    )
    calibration.warm_up(lab.network.info.hosts)
    lab.switch.deepen_buffers()
    Prompt(lab.network.mininet)
    os._exit(0)


if __name__ == "__main__":
    main()
