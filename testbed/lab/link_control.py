"""Changes rate, queue and delay of links at work; no waiting packet is lost or overtaken."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from testbed.lab.delay import DelaySettings, Middle, RelayClient, netem
from testbed.lab.delay.relayed_direction import opened_ring
from testbed.lab.kernel import link_counters, rtnetlink, shaping
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.rtnetlink import Rtnetlink, bring_up_silent
from testbed.lab.kernel.shaping import LinkShape

_OF_MIDDLE = ("delay_s", "jitter_s", "loss")
_FIRST = 1  # filters without a number of their own come after this one


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
                self._shapes[way] = LinkShape.of_link(link)
                self._settings[way] = DelaySettings.of_link(link)

    def shape(self, first: str, second: str) -> LinkShape:
        """Return rate and queue of a direction as they are now."""
        self._require(first, second)
        return self._shapes[first, second]

    def now(self, first: str, second: str) -> dict[str, Any]:
        """Return all settings of a direction, by the names that `change` takes."""
        shape = self.shape(first, second)
        queue = {"rate_bps": shape.rate_bps, "queue_bytes": shape.queue_bytes}
        return queue | asdict(self._settings[first, second])

    def offered(self, first: str, second: str) -> tuple[int, int]:
        """Count the packets that a direction's queue has sent and dropped so far."""
        _, port = self._require(first, second)
        return link_counters.offered(port["interface"], port["pid"])

    def change(self, first: str, second: str, settings: Mapping[str, float]) -> None:
        """Change settings of a direction by name; CommandError: it cannot, and none has changed."""
        way, now = (first, second), self.now(first, second)
        changes = {key: setting for key, setting in settings.items() if now[key] != setting}
        if of_middle := {key: changes.pop(key) for key in _OF_MIDDLE if key in changes}:
            try:
                delay = replace(self._settings[way], **of_middle)
            except ValueError as error:
                raise CommandError(f"link {self._links[way][0]['name']}: {error}") from None
            self._set_delay(way, delay)
            self._settings[way] = delay
        for key in ("rate_bps", "queue_bytes"):
            if key in changes:
                shape = replace(self._shapes[way], **{key: int(changes[key])})
                self._set_shape(way, key, shape)
                self._shapes[way] = shape

    def _set_shape(self, way: tuple[str, str], key: str, shape: LinkShape) -> None:
        """Let the kernel change a direction's rate or queue; what waits beyond a limit leaves."""
        _, port = self._links[way]
        interface = port["interface"]
        if key == "queue_bytes" and shape.ecn_threshold_bytes is not None:
            shaping.mark(interface, shape, pid=port["pid"], verb="change")
            return
        kernel = self._kernel(port["pid"])
        shaped = kernel.interface(interface)
        if key == "rate_bps":
            kernel.send([shaping.rate_message(shaped, shape)])
        else:
            kernel.send([shaping.limit_message(shaped, shape, new=False)])

    def _set_delay(self, way: tuple[str, str], delay: DelaySettings) -> None:
        """Let netem or the relay change a direction, if its link has a middle for that."""
        link, _ = self._links[way]
        if link["middle"] is None:
            raise CommandError(
                f"link {link['name']} was made without delay and loss, and cannot get them; valid: "
                "a delay_s, jitter_s or loss in the topology"
            )
        if self._delayed_by == "netem":
            netem.change(Middle.of_link(link), way[0], delay)
        else:
            self._relayed(Middle.of_link(link), way, delay)

    def _relayed(self, middle: Middle, way: tuple[str, str], delay: DelaySettings) -> None:
        order = functools.partial(
            self._client().change,
            middle.link,
            way[0],
            on_record=True,
            rate_bps=self._shapes[way].rate_bps,
            **asdict(delay),
        )
        if order() is not None:
            return
        # It is the first time. The relay would hold up other frames while it made the ring.
        slots = replace(middle, most_delay_s=delay.longest_s).slots
        try:
            ring = opened_ring(slots, middle.link)
        except OSError as error:
            raise CommandError(f"delay relay: {error.strerror}") from None
        with ring:
            self._divert(middle, way[0], functools.partial(order, ring=ring))

    def _divert(self, middle: Middle, sender: str, take: Callable[..., object]) -> None:
        """Hand a direction's frames to the relay; if that fails, they pass untouched again."""
        # They get there through a pair of interfaces. The filter that leads there comes before the
        # earlier one: no frame is lost, doubled or overtaken by it.
        source = middle.interfaces[middle.nodes.index(sender)]
        near, far = f"{source}-out", f"{source}-in"
        with Rtnetlink() as kernel:
            kernel.send([rtnetlink.veth(near, far)])
        place = f"dev {source} parent ffff: protocol all pref {_FIRST}"
        try:
            for end in (near, far):
                bring_up_silent(end)
            take(source=far)
            run(["tc", *f"filter add {place} {netem.everything_to(near)}".split()])
        except BaseException:
            # A filter whose answer was late is there; without its interface it would drop frames.
            for undo in (f"tc filter delete {place}", f"ip link delete {near}"):
                with suppress(CommandError):
                    run(undo.split())
            with suppress(CommandError):
                self._client().forget(middle.link, sender)
            raise

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
