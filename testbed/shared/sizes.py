"""Sums up the sizes of files, and writes sizes in words."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path


def bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it has gone meanwhile
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                total += status.st_size
    return total


def in_words(bytes_: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if bytes_ >= scale:
            return f"{bytes_ / scale:.{0 if bytes_ >= 10 * scale else 1}f} {unit}"
    return f"{bytes_ / 1e3:.0f} kB" if bytes_ >= 1e3 else f"{bytes_:.0f} B"


def quantity(value: float, unit: str) -> str:
    """Write up to four digits and a decimal prefix: 100 Mbit/s, 150 kB."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:g} {unit}"
