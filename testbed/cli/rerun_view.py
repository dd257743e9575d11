"""Repeats a run for `./lab rerun`, and prints how it ended and what differs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from testbed.cli import terminal
from testbed.machine import capabilities
from testbed.run import repeating, runner
from testbed.shared import run_directory


def rerun(directory: Path, console: Console) -> bool:
    """Repeat a run; returns whether the repetition is neither failed nor invalid.

    Args:
        directory: of the run; the repetition goes into `reruns/` of its folder of results.
        console: for what is said.

    Raises:
        InputError: the run cannot be repeated.
    """
    config = repeating.configuration(directory)
    target = directory.parent.parent / repeating.FOLDER
    capabilities.require()
    runner.require_space_for(target, str(config["experiment"]))
    place = repeating.place_beside(directory, config, target)
    say = partial(terminal.say, console)
    say(f"repeating {directory} into {place.path}")
    runner.carry_out(place, config, lambda record: None)
    before, after = (
        run_directory.read_json(each / "status.json") for each in (directory, place.path)
    )
    for name, status in (("then", before), ("now", after)):
        took = f", {status['wall_s']:.0f} s" if status.get("wall_s") else ""
        reason = f": {status['reason']}" if status["reason"] else ""
        say(f"{name}: {status['verdict']}{took}{reason}")
    found = repeating.differences(directory, place.path)
    for line in found:
        say(f"differs: {line}")
    if not found:
        say("machine, kernel, commit and packages are the same")
    say(f"report: ./lab report {place.path.parent}")
    return after["verdict"] not in ("failed", "invalid")
