"""What this machine holds at the moment: a probe of five seconds, and four for each rate more.

Tests take their rates from it, and `./lab run` chooses an experiment's profile by it.
"""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.lab.kernel import process_status
from testbed.machine import highest_rate
from testbed.verdict.gates import DEFAULTS

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
_TOLD = 0.005  # a share that is not 0 % when it is printed
_MOST = DEFAULTS["cpu_others"]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One second of a machine: how late a thread wakes up after 2 ms, and what others took."""

    late_p50_s: float
    late_p99_s: float
    others: float
    stolen: float

    @property
    def disturbed(self) -> str:
        """Why nothing that is measured now in real time can be relied on; empty: it can."""
        if self.others + self.stolen > DISTURBED_OTHERS:
            return f"{self._taken()} of the processors"
        if self.late_p99_s > DISTURBED_LATE_S:
            return f"timers are {self.late_p99_s * 1e3:.1f} ms late (p99)"
        return ""

    def sentence(self) -> str:
        """It in words."""
        told = "; runs may be invalid; close other programs" if self.others > _MOST else ""
        return (
            f"timers {self.late_p50_s * 1e3:.2f} ms late, p99 {self.late_p99_s * 1e3:.2f} ms; "
            f"{self._taken()} of {os.cpu_count()} processors{told}"
        )

    def _taken(self) -> str:
        stolen = f" and the hypervisor {self.stolen:.0%}" if self.stolen >= _TOLD else ""
        return f"others take {self.others:.0%}{stolen}"


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the probe found."""

    moment: Moment
    trials: Sequence[highest_rate.Trial]

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


def watch(duration_s: float = _WATCHED_S) -> Moment:
    """Sleep in short naps, and see how late they end and what others do meanwhile."""
    late_s: list[float] = []

    def nap() -> None:
        end_s = time.monotonic() + duration_s
        while (began_s := time.monotonic()) < end_s:
            time.sleep(_SLEEP_S)
            late_s.append(time.monotonic() - began_s - _SLEEP_S)

    threads = [threading.Thread(target=nap) for _ in range(_SLEEPERS)]
    before, own_s = process_status.machine_ticks(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gained, own_s = process_status.machine_ticks().since(before), time.process_time() - own_s
    late_s.sort()
    return Moment(
        late_p50_s=statistics.median(late_s),
        late_p99_s=late_s[int(0.99 * (len(late_s) - 1))],
        others=gained.others(own_s * os.sysconf("SC_CLK_TCK")) if gained.all > 0 else 0.0,
        stolen=gained.stolen / gained.all if gained.all > 0 else 0.0,
    )


def probe(rates_bps: Sequence[int] = RATES_BPS) -> Findings:
    """Look at timers and processors, then find the first of these rates that a lab holds."""
    moment = watch()
    trials = []
    for rate_bps in rates_bps:
        trials.append(highest_rate.attempt(rate_bps))
        if _arrives(trials[-1]):
            break
    return Findings(moment=moment, trials=trials)


def _arrives(trial: highest_rate.Trial) -> bool:
    return trial.reached >= SHARE_ARRIVED
