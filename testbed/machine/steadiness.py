"""What this machine holds at the moment: a probe of at most ten seconds.

Machines of one kind differ, and one machine differs from hour to hour. Timers tell how late a
program wakes up, /proc/stat how much of the processors others take, and a lab of four hosts which
link rate arrives. `./lab check` prints it, tests take their rates from it, and `./lab run` chooses
an experiment's profile for slow machines by it.
"""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.machine import highest_rate

RATES_BPS = (100_000_000, 50_000_000, 20_000_000)
# Of a rate in both directions at once, for 1.2 s. A pause of the senders alone takes some per cent:
# the probe chooses what is tried, and the gates of each run judge it.
SHARE_ARRIVED = 0.9
_WATCHED_S = 1.0
_SLEEP_S = 0.002
_SLEEPERS = 2
# Beyond these a measurement in real time may fail through no fault of what is measured. Quiet
# machines of two cores: others below 0.02, timers 0.06 ms late in the median, p99 below 0.5 ms.
DISTURBED_OTHERS = 0.10
DISTURBED_LATE_S = 0.002
_BUSY_FIELDS = (1, 2, 3, 6, 7, 8)  # of /proc/stat: user, nice, system, irq, softirq, steal
_IDLE_FIELDS = (4, 5)  # idle, iowait


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One second of a machine.

    Attributes:
        late_p50_s: how late a thread wakes up that sleeps for 2 ms: the median.
        late_p99_s: the 99th percentile.
        others: share of all processors' time that other programs, or other machines, took.
    """

    late_p50_s: float
    late_p99_s: float
    others: float

    @property
    def disturbed(self) -> str:
        """Why nothing that is measured now in real time can be relied on; empty: it can."""
        if self.others > DISTURBED_OTHERS:
            return f"others take {self.others:.0%} of the processors"
        if self.late_p99_s > DISTURBED_LATE_S:
            return f"timers are {self.late_p99_s * 1e3:.1f} ms late (p99)"
        return ""

    def sentence(self) -> str:
        """It in words."""
        return (
            f"timers {self.late_p50_s * 1e3:.2f} ms late, p99 {self.late_p99_s * 1e3:.2f} ms; "
            f"others take {self.others:.0%} of {os.cpu_count()} processors"
        )


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the probe found.

    Attributes:
        moment: before a lab was built.
        trials: the rates that were tried in a lab, falling.
        took_s: how long it took.
    """

    moment: Moment
    trials: Sequence[highest_rate.Trial]
    took_s: float

    @property
    def rate_bps(self) -> int | None:
        """The highest of the tried rates that arrives at four hosts; None: none of them does."""
        return next((each.rate_bps for each in self.trials if _arrives(each)), None)

    @property
    def rtt_s(self) -> float:
        """The median round trip of an idle lab through one switch."""
        return statistics.median(each.rtt_s for each in self.trials)

    def sentence(self) -> str:
        """What it found, for people."""
        first = self.trials[0]
        rates = f"4 hosts hold {self.rate_bps / 1e6:g} Mbit/s" if self.rate_bps else "no rate held"
        if not _arrives(first):
            shares = (f"{each.reached:.0%} of {each.rate_bps / 1e6:g}" for each in self.trials)
            rates += f" (there arrived {', '.join(shares)} Mbit/s)"
        return (
            f"{rates}; round trip through a switch {self.rtt_s * 1e3:.2f} ms; "
            f"{self.moment.sentence()}; kernel {platform.release()}"
        )

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "rate_bps": self.rate_bps,
            "rtt_s": self.rtt_s,
            **asdict(self.moment),
            "disturbed": self.moment.disturbed,
            "tried": [asdict(each) | {"arrives": _arrives(each)} for each in self.trials],
            "took_s": self.took_s,
        }


def watch(duration_s: float = _WATCHED_S) -> Moment:
    """Sleep in short naps, and see how late they end and what others do meanwhile.

    Args:
        duration_s: for how long, seconds.
    """
    late_s: list[float] = []

    def nap() -> None:
        end_s = time.monotonic() + duration_s
        while (began_s := time.monotonic()) < end_s:
            time.sleep(_SLEEP_S)
            late_s.append(time.monotonic() - began_s - _SLEEP_S)

    threads = [threading.Thread(target=nap) for _ in range(_SLEEPERS)]
    before, own_s = _processors_s(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after, own_s = _processors_s(), time.process_time() - own_s
    busy_s, all_s = (late - early for late, early in zip(after, before, strict=True))
    late_s.sort()
    return Moment(
        late_p50_s=statistics.median(late_s),
        late_p99_s=late_s[int(0.99 * (len(late_s) - 1))],
        others=max(0.0, busy_s - own_s) / all_s if all_s > 0 else 0.0,
    )


def probe(rates_bps: Sequence[int] = RATES_BPS) -> Findings:
    """Look at timers and processors, then find the first of these rates that a lab holds.

    Args:
        rates_bps: falling.

    Raises:
        InputError: no lab can be built here.
    """
    began_s = time.monotonic()
    moment = watch()
    trials = []
    for rate_bps in rates_bps:
        trials.append(highest_rate.attempt(rate_bps))
        if _arrives(trials[-1]):
            break
    return Findings(moment=moment, trials=trials, took_s=time.monotonic() - began_s)


def _arrives(trial: highest_rate.Trial) -> bool:
    return trial.reached >= SHARE_ARRIVED


def _processors_s() -> tuple[float, float]:
    """Busy time and all time of all processors together (proc_stat(5))."""
    fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    busy, idle = (
        sum(fields[number - 1] for number in chosen) for chosen in (_BUSY_FIELDS, _IDLE_FIELDS)
    )
    return busy * tick_s, (busy + idle) * tick_s
