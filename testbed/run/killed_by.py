"""Which impairment killed a process, for the reason of a failed run."""

from __future__ import annotations

import time
from pathlib import Path

from testbed.shared import jsonl, own_code, run_directory

_LOG_PATIENCE_S = 1.0


def impairment(host: str, directory: Path) -> str:
    """Return ` by impairment NAME (kind crash)`, or nothing when no impairment did it.

    The controller logs it after the fact, so the process may be found dead a moment earlier.
    """
    planned = run_directory.read_json(directory / "config.json")["impairments"]
    could = (each for each in planned if each["kind"] == "crash" or own_code.is_own(each["kind"]))
    if not any(each["host"] == host for each in could):
        return ""
    log = directory / "events" / "impairments.jsonl"
    deadline_s = time.monotonic() + _LOG_PATIENCE_S
    while time.monotonic() < deadline_s:
        for record in jsonl.read(log):
            found = (record["counts_as"], record["action"], record["host"])
            if found == ("crash", "begin", host):
                return f" by impairment {record['name']} (kind {own_code.short(record['kind'])})"
        time.sleep(0.01)
    return ""
