"""Opens Mininet's prompt in an experiment's network, with the controller running.

Nothing trains, and impairments begin and end by command. Run as a module it is the inside of the
sandbox.
"""

import json
import os
import signal
import sys
from typing import Any

from testbed.lab import sandbox
from testbed.run import inside


def open_prompt(config: dict[str, Any]) -> int:
    """Build the lab of a run's configuration, open its prompt, and return the exit status."""
    # The sandbox ends when this process does, however that happens: the kernel closes the pipe.
    lifeline, held_open = os.pipe()
    process = sandbox.start(
        "testbed.prompt.session",
        json.dumps(config),
        str(lifeline),
        pass_fds=(lifeline,),
        terminal=True,
    )
    os.close(lifeline)
    # Ctrl-C at the terminal is for what runs at the prompt.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(held_open)
        sandbox.stop(process)


# The inside


def main() -> None:
    """Build the network of the configuration that is the first argument; open the prompt."""
    lifeline = int(sys.argv[2])
    os.set_inheritable(lifeline, False)
    sandbox.end_with_lifeline(lifeline)
    # A closed terminal is the end. The first process of a namespace gets no signal by default.
    signal.signal(signal.SIGHUP, lambda *_: os._exit(1))
    _keep_script_from_children()
    config = json.loads(sys.argv[1])
    place = inside.prepare(config)
    # Imported here, beside the controller's own imports.
    from testbed.prompt.commands import Prompt
    from testbed.run import by_hand
    from testbed.run.assembly import Lab
    from testbed.verdict import calibration

    impairments = by_hand.impairments(config["impairments"])
    named = {"impairments": [each.document for each in impairments.values()]}
    lab = Lab(config | named | {"adjustable": True}, place)
    calibration.warm_up(lab.network.info)
    lab.switch.deepen_buffers()

    Prompt(lab, impairments, config)
    # The first process does not unwind: its end is the end of the lab.
    sys.stdout.flush()
    os._exit(0)


def _keep_script_from_children() -> None:
    """Give programs that commands start an empty input, where the input is a file or a pipe."""
    if sys.stdin.isatty():
        return
    script = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = os.fdopen(script, encoding="utf-8")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
