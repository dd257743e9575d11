"""The keys of a topology: how many hosts, and what its links are like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from testbed.shared.problems import Section, optional

MOST_LAB_WORKERS = 127  # with the server 128 hosts: a fat tree of k = 8
MOST_WORKERS = 20_000  # in virtual time, where hosts are no namespaces
MOST_EXTRA_HOSTS = 32
FRAME_BYTES = 1514
_QUEUE_BYTES = 150_000


class LinkParameters(Section):
    """A link, the same in both directions; what is not given is taken from the next larger scope.

    The scopes, from small to large: `links.NAME`, the topology's own choice for the link, `core`
    (links between switches), the topology's top level.
    """

    rate_bps: int | None = optional(
        "bits of Ethernet frames a second", ge=100_000, le=10_000_000_000
    )
    delay_s: float | None = optional(
        "delay in each direction; a round trip takes it twice", ge=0, le=10
    )
    jitter_s: float | None = optional(
        "how far a packet's delay may lie from delay_s, either way; at most delay_s", ge=0, le=10
    )
    loss: float | None = optional(
        "share of packets that are lost at random, in each direction", ge=0, le=1
    )
    queue_bytes: int | None = optional(
        "queue of each direction; 150 kB where no scope gives a queue",
        ge=2 * FRAME_BYTES,
        le=64 << 20,
    )
    queue_bdp: float | None = optional(
        "queue in multiples of rate x round-trip delay of the longest pair of hosts", gt=0, le=1000
    )
    ecn_threshold_bytes: int | None = optional(
        "a queue longer than this marks packets (ECN); none: never", ge=FRAME_BYTES, le=64 << 20
    )
    priority_queue_bytes: int | None = optional(
        "a second queue of each direction, for datagrams that an arm's marks protect, "
        "served before the other; none: marks mean nothing",
        ge=2 * FRAME_BYTES,
        le=64 << 20,
        exclude_if=lambda value: value is None,
    )

    @model_validator(mode="after")
    def _one_queue(self) -> Self:
        if self.queue_bytes is not None and self.queue_bdp is not None:
            raise ValueError("queue_bytes and queue_bdp exclude each other; give one of them")
        return self

    def over(self, larger: LinkParameters) -> LinkParameters:
        """These parameters, completed by those of a larger scope."""
        own, inherited = self._given(), larger._given()
        if "queue_bytes" in own or "queue_bdp" in own:
            inherited.pop("queue_bytes", None)
            inherited.pop("queue_bdp", None)
        return LinkParameters(**{**inherited, **own})

    def queue_size_bytes(self, rtt_s: float) -> int:
        """The queue of one direction; `rtt_s`: the network's longest round trip without queues."""
        if self.queue_bdp is None:
            return self.queue_bytes or _QUEUE_BYTES
        if rtt_s <= 0:
            raise ValueError(
                f"queue_bdp is {self.queue_bdp:g}, but no link has a delay: "
                "give queue_bytes, or a delay_s above 0"
            )
        product_bytes = (self.rate_bps or 0) * rtt_s / 8
        return max(2 * FRAME_BYTES, min(64 << 20, round(self.queue_bdp * product_bytes)))

    def options(self, rtt_s: float) -> dict[str, Any]:
        """The options of Mininet's `addLink`; a ValueError names keys that do not fit together."""
        delay_s, jitter_s = self.delay_s or 0.0, self.jitter_s or 0.0
        if jitter_s > delay_s:
            raise ValueError(
                f"jitter_s is {jitter_s:g}, more than delay_s: some packets would have to wait "
                f"less than 0 s; valid: up to {delay_s:g}, the link's delay_s"
            )
        queue_bytes = self.queue_size_bytes(rtt_s)
        most = queue_bytes - FRAME_BYTES
        if self.ecn_threshold_bytes is not None and self.ecn_threshold_bytes > most:
            raise ValueError(
                f"ecn_threshold_bytes is {self.ecn_threshold_bytes}, but the queue holds "
                f"{queue_bytes} bytes: it would drop and never mark; valid: up to {most}"
            )
        if self.ecn_threshold_bytes is not None and self.priority_queue_bytes is not None:
            raise ValueError(
                "priority_queue_bytes and ecn_threshold_bytes exclude each other: of two queues "
                "none marks; give one of them"
            )
        options = {
            "rate_bps": self.rate_bps,
            "queue_bytes": queue_bytes,
            "delay_s": delay_s,
            "jitter_s": jitter_s,
            "loss": self.loss or 0.0,
            "ecn_threshold_bytes": self.ecn_threshold_bytes,
        }
        if self.priority_queue_bytes is not None:
            options["priority_queue_bytes"] = self.priority_queue_bytes
        return options

    def _given(self) -> dict[str, Any]:
        return self.model_dump(include=set(LinkParameters.model_fields), exclude_none=True)


class TopologyParameters(LinkParameters):
    """The keys of every topology; the keys of a link are those of all links not named in it."""

    name: str = Field(description="the topology's name, or a reference to a user's own code")
    workers: int = Field(
        default=3, ge=1, le=MOST_WORKERS, description="how many train, besides the server"
    )
    extra_hosts: int = Field(
        default=0, ge=0, le=MOST_EXTRA_HOSTS, description="hosts that make traffic and do not train"
    )
    rate_bps: int = Field(
        default=100_000_000,
        ge=100_000,
        le=10_000_000_000,
        description="bits of Ethernet frames a second, in each direction",
    )
    delayed_by: Literal["auto", "netem", "relay"] = Field(
        default="auto",
        description="what delays links; `auto`: netem where there is one, else our relay",
    )
    core: LinkParameters = Field(default=LinkParameters(), description="links between switches")
    links: dict[str, LinkParameters] = Field(
        default={}, description="single links by name, `FIRST--SECOND` in either order"
    )

    @model_validator(mode="before")
    @classmethod
    def _queue_by_default(cls, keys: Any) -> Any:
        """Let the resolved configuration show the queue that an experiment does not mention."""
        queues = ("queue_bdp", "queue_bytes")
        if not isinstance(keys, Mapping) or any(keys.get(key) is not None for key in queues):
            return keys
        return {**keys, "queue_bytes": _QUEUE_BYTES}

    def host_names(self) -> list[str]:
        """List the training hosts: the server, then the workers in order."""
        return ["server", *self.worker_names()]

    def worker_names(self) -> list[str]:
        return [f"worker-{rank}" for rank in range(1, self.workers + 1)]

    def traffic_names(self) -> list[str]:
        """List the hosts that take no part in training."""
        return [f"traffic-{number}" for number in range(1, self.extra_hosts + 1)]

    def all_host_names(self) -> list[str]:
        return [*self.host_names(), *self.traffic_names()]
