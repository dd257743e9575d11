"""Changes rate, queue and delay of links at work; no waiting packet is lost or overtaken."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from testbed.lab.delay import (
    DelaySettings,
    Middle,
    RelayClient,
    frame_ring,
    netem,
    untouched,
)
from testbed.lab.kernel import link_counters, shaping
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shaping import LinkShape

_OF_MIDDLE = ("delay_s", "jitter_s", "loss")


class LinkControl:
    """The directed links of a lab, each given by two nodes, from `first` to `second`."""

    def __init__(self, network: Mapping[str, Any]) -> None:
        self._delayed_by = network.get("delayed_by")
        self._relay_socket = network.get("relay_socket")
        self._relay: RelayClient | None = None
        self._kernels: dict[int | None, Rtnetlink] = {}
        self._links: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {}
        self._shapes: dict[tuple[str, str], LinkShape] = {}
        self._settings: dict[tuple[str, str], DelaySettings] = {}
        for link in network["links"]:
            for own, other in (("first", "second"), ("second", "first")):
                way = (link[own]["node"], link[other]["node"])
                self._links[way] = (link, link[own])
                self._shapes[way] = LinkShape(
                    rate_bps=link["rate_bps"],
                    queue_bytes=link["queue_bytes"],
                    ecn_threshold_bytes=link["ecn_threshold_bytes"],
                    priority_queue_bytes=link.get("priority_queue_bytes"),
                )
                self._settings[way] = DelaySettings.of_link(link)

    def shape(self, first: str, second: str) -> LinkShape:
        """Rate and queue of a direction as they are now."""
        self._require(first, second)
        return self._shapes[first, second]

    def delay(self, first: str, second: str) -> DelaySettings:
        """Delay, jitter and loss of a direction as they are now."""
        self._require(first, second)
        return self._settings[first, second]

    def now(self, first: str, second: str) -> dict[str, Any]:
        """All settings of a direction, by the names that `change` takes."""
        shape, delay = self.shape(first, second), self.delay(first, second)
        queue = {"rate_bps": shape.rate_bps, "queue_bytes": shape.queue_bytes}
        return queue | asdict(delay)

    def offered(self, first: str, second: str) -> tuple[int, int]:
        """The packets that a direction's queue has sent, and those that it has dropped, so far."""
        _, port = self._require(first, second)
        return link_counters.offered(port["interface"], port["pid"])

    def change(self, first: str, second: str, settings: Mapping[str, float]) -> None:
        """Change several settings of a direction, by name; those that are not given stay.

        Raises:
            CommandError: there is no such link, or it cannot have one of them; then none has
            changed.
        """
        self._require(first, second)
        now = self.now(first, second)
        changes = {key: each for key, each in settings.items() if now[key] != each}
        of_middle = {key: each for key, each in changes.items() if key in _OF_MIDDLE}
        if of_middle:
            self.change_delay(first, second, **of_middle)
        if "rate_bps" in changes:
            self.change_rate(first, second, int(changes["rate_bps"]))
        if "queue_bytes" in changes:
            self.change_queue(first, second, int(changes["queue_bytes"]))

    def change_rate(self, first: str, second: str, rate_bps: int) -> float:
        """Change a direction's rate; returns the monotonic time of the change in seconds."""
        _, port = self._require(first, second)
        shape = replace(self._shapes[first, second], rate_bps=rate_bps)
        kernel = self._kernel(port["pid"])
        index = kernel.index(port["interface"])
        kernel.send([shaping.rate_message(index, shape, port["interface"])])
        self._shapes[first, second] = shape
        return time.monotonic()

    def change_queue(self, first: str, second: str, queue_bytes: int) -> float:
        """Change a direction's queue limit; frames that wait beyond a smaller limit still leave."""
        _, port = self._require(first, second)
        shape = replace(self._shapes[first, second], queue_bytes=queue_bytes)
        if shape.ecn_threshold_bytes is not None:
            shaping.mark(port["interface"], shape, pid=port["pid"], verb="change")
        else:
            kernel = self._kernel(port["pid"])
            index = kernel.index(port["interface"])
            kernel.send([shaping.limit_message(index, shape, port["interface"], new=False)])
        self._shapes[first, second] = shape
        return time.monotonic()

    def change_delay(
        self,
        first: str,
        second: str,
        *,
        delay_s: float | None = None,
        jitter_s: float | None = None,
        loss: float | None = None,
    ) -> float:
        """Change a direction's delay, jitter or loss; None leaves it as it is."""
        # Only a link that was made with one of them, or as adjustable, has a middle for it.
        link, _ = self._require(first, second)
        if link["middle"] is None:
            raise CommandError(
                f"link {link['name']} was made without delay and loss, and cannot get them; valid: "
                "a delay_s, jitter_s or loss in the topology, or a lab without adjustable=False"
            )
        given = {"delay_s": delay_s, "jitter_s": jitter_s, "loss": loss}
        changes = {key: value for key, value in given.items() if value is not None}
        try:
            settings = replace(self._settings[first, second], **changes)
        except ValueError as error:
            raise CommandError(f"link {link['name']}: {error}") from None
        if self._delayed_by == "netem":
            changed_s = netem.change(Middle.of_link(link), first, settings)
        else:
            changed_s = self._relayed(Middle.of_link(link), first, settings)
        self._settings[first, second] = settings
        return changed_s

    def _relayed(self, middle: Middle, first: str, settings: DelaySettings) -> float:
        client, way = self._client(), (middle.link, first)
        there = next(node for node in middle.nodes if node != first)
        ordered = functools.partial(
            client.change,
            *way,
            on_record=True,
            rate_bps=self._shapes[first, there].rate_bps,
            **asdict(settings),
        )
        if (changed_s := ordered()) is not None:
            return changed_s
        # It is the first time. The relay would hold up other frames while it made the ring.
        slots = replace(middle, most_delay_s=settings.longest_s).slots
        try:
            ring = frame_ring.opened(slots, middle.link)
        except OSError as error:
            raise CommandError(f"delay relay: {error.strerror}") from None
        with ring:
            untouched.divert(
                middle,
                first,
                take=lambda source: ordered(source=source, ring=ring),
                forget=lambda: client.forget(*way),
            )
        return time.monotonic()

    def _require(self, first: str, second: str) -> tuple[dict[str, Any], dict[str, Any]]:
        if (first, second) not in self._links:
            raise CommandError(f"there is no link from {first!r} to {second!r}")
        return self._links[first, second]

    def _kernel(self, pid: int | None) -> Rtnetlink:
        if pid not in self._kernels:
            self._kernels[pid] = Rtnetlink(pid)
        return self._kernels[pid]

    def _client(self) -> RelayClient:
        if self._relay is None:
            if self._relay_socket is None:
                raise CommandError("this lab has no relay")
            self._relay = RelayClient(self._relay_socket)
        return self._relay
