"""What the kernel says of all processors together in /proc/stat (proc_stat(5)), in clock ticks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class MachineTicks(NamedTuple):
    """Processor time: since the machine began, or of a span of time."""

    programs: int
    idle: int
    stolen: int
    all: int

    def since(self, earlier: MachineTicks) -> MachineTicks:
        """What went by between two readings."""
        return MachineTicks(*(late - early for late, early in zip(self, earlier, strict=True)))

    def others(self, own: float) -> float:
        """The share of all time that programs took which did not spend these ticks, `own`."""
        return max(0.0, self.programs - own) / self.all


def read() -> MachineTicks:
    """The ticks since the machine began."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, idle, disk, irq, softirq, stolen = map(int, first.split()[1:9])
    return MachineTicks(
        programs=user + nice + system,
        idle=idle + disk,
        stolen=stolen,
        all=user + nice + system + idle + disk + irq + softirq + stolen,
    )
