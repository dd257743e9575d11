"""What has gone through a host's link, seen through a process in the host."""

from __future__ import annotations

from pathlib import Path


def read(pid: int) -> tuple[int, int]:
    """Bytes of frames that have come in and gone out; zeros where there is no link `eth0`."""
    try:
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()
    except OSError:  # the process has ended
        return 0, 0
    for line in lines:
        name, _, counters = line.partition(":")
        if name.strip() == "eth0":
            values = counters.split()
            return int(values[0]), int(values[8])
    return 0, 0
