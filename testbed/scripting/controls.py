"""What a script changes while its lab runs: the settings of links, and impairments."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from testbed.run import by_hand
from testbed.scripting.host import Ask

_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """One direction of a link as it is now; an impairment in force may have changed it.

    Attributes:
        rate_bps: bits of Ethernet frames a second.
        queue_bytes: the most that waits.
        delay_s, jitter_s: how long a frame is on its way, and how far that may differ.
        loss: the share of frames that are lost at random.
    """

    rate_bps: int
    queue_bytes: int
    delay_s: float
    jitter_s: float
    loss: float


class Link:
    """A link of a running lab.

    Attributes:
        name: as in all files of a run.
        ends: its two nodes.
    """

    def __init__(self, name: str, ends: tuple[str, str], ask: Ask) -> None:
        """Labs make their links; `ask` asks the steward."""
        self.name = name
        self.ends = ends
        self._ask = ask

    def __repr__(self) -> str:
        return f"<Link {self.name}>"

    def set(
        self,
        *,
        rate_bps: int | str | None = None,
        delay_s: float | str | None = None,
        jitter_s: float | str | None = None,
        loss: float | None = None,
        queue_bytes: int | str | None = None,
        toward: str | None = None,
    ) -> None:
        """Change the link while it works; what is not given stays. No packet is lost by it.

        Values may be texts with a unit, as in YAML: `"20Mbit"`, `"5ms"`. The change is recorded,
        so that the verdict does not take it for a fault. A direction's first delay or loss takes a
        moment longer, and from then on frames of that direction pass a program (see `adjustable`).

        Args:
            toward: the end to which the changed direction leads; None: both directions.

        Raises:
            InputError: a value that no link can have, or no such end.
            LabError: a delay or loss for a link that was made without, in a lab that was made with
                `adjustable=False`; or a delay for which there is no memory.
        """
        given = {
            "rate_bps": rate_bps,
            "queue_bytes": queue_bytes,
            "delay_s": delay_s,
            "jitter_s": jitter_s,
            "loss": loss,
        }
        given = {key: each for key, each in given.items() if each is not None}
        changes = by_hand.checked(given)
        for way in by_hand.ways(self.ends, toward):
            self._ask({"do": "link", "way": way, "changes": changes})

    def settings(self, toward: str | None = None) -> LinkSettings:
        """What a direction is set to now.

        Args:
            toward: the end to which it leads; None: the one that both directions share.

        Raises:
            InputError: no such end, or the directions differ and `toward` does not say which.
        """
        found = []
        for way in by_hand.ways(self.ends, toward):
            answer, _ = self._ask({"do": "link", "way": way, "changes": {}})
            found.append(LinkSettings(**answer["now"]))
        if found[0] != found[-1]:
            raise by_hand.differ(self.name, self.ends)
        return found[0]


class Impairment:
    """An impairment of the experiment, for the body of a `with`, or from `begin` to `end`.

    Attributes:
        effect: what it did the last time, once it has ended: packets `met` and `dropped`, and
            details that depend on its kind.
    """

    def __init__(self, name: str, ask: Ask) -> None:
        """Labs make it; `ask` asks the steward."""
        self.name = name
        self.effect: dict[str, Any] = {}
        self._ask = ask

    def begin(self) -> None:
        """Put it in force; it is when this returns.

        Raises:
            LabError: it did not begin, for example because it is in force already.
        """
        self._ask({"do": "begin", "name": self.name})

    def end(self) -> None:
        """End it, or wait until it has ended by itself, as a burst does."""
        answer, _ = self._ask({"do": "end", "name": self.name})
        while answer["active"]:
            time.sleep(_POLL_S)
            answer, _ = self._ask({"do": "end", "name": self.name})
        self.effect = answer["effect"]

    def __enter__(self) -> Impairment:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
