"""Continues an interrupted run from its checkpoint, in a new directory.

The logs of the rounds before the checkpoint are copied. Later rounds are trained again, so their
logs are left behind.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from testbed.shared import run_directory
from testbed.training import checkpoint

RECORD = "continued.json"


def take_over(earlier: Path, directory: Path) -> int:
    """Copy an earlier attempt's last checkpoint and logs; return how many rounds that saves.

    0 means that the run begins anew: the attempt ended otherwise than by an interruption, or has no
    whole checkpoint, or anchors impairments to the time since the first round, which would come
    again.
    """
    try:
        config = run_directory.read_json(earlier / "config.json")
        status = run_directory.read_json(earlier / "status.json")
    except (OSError, ValueError):
        return 0
    rounds_done = checkpoint.latest(earlier)
    if status.get("verdict") != "interrupted" or not rounds_done or _anchored_to_time(config):
        return 0
    saved = checkpoint.folder(earlier, rounds_done)
    shutil.copytree(saved, checkpoint.folder(directory, rounds_done))
    for log in (earlier / "events").glob("*.jsonl"):
        _copy_until(log, directory / "events" / log.name, rounds_done)
    run_directory.write_json(
        directory / RECORD,
        {
            "schema": run_directory.SCHEMA,
            "rounds_done": rounds_done,
            "attempt": earlier.name,
            "note": "samples, packet conservation and gates are of the later rounds alone",
        },
    )
    return rounds_done


def _anchored_to_time(config: dict[str, Any]) -> bool:
    return any(each.get("at_s") for each in config.get("impairments", []))


def _copy_until(source: Path, target: Path, rounds_done: int) -> None:
    """Copy the records of the rounds before `rounds_done`; a cut-off last line is left out."""
    with source.open("rb") as lines, target.open("wb") as kept:
        for line in lines:
            try:
                number = json.loads(line).get("round")
            except ValueError:
                continue
            if isinstance(number, int) and number < rounds_done:
                kept.write(line)
