"""Finds the direction of a link that an impairment's target names, and its two ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controllers.impairments.common_settings import ImpairmentParameters


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of a direction. `pid` is a process in its namespace; None: that of the switches."""

    node: str
    interface: str
    number: int
    pid: int | None
    is_switch: bool


@dataclass(frozen=True, kw_only=True)
class Direction:
    """The direction of a link from `sender` to `receiver`, and the sender's shaping."""

    link: str
    sender: End
    receiver: End
    rate_bps: int
    queue_bytes: int


def direction(network: Mapping[str, Any], parameters: ImpairmentParameters) -> Direction:
    """The direction that an impairment acts on: of its `link`, or from a switch to its `host`."""
    if parameters.link is not None:
        sender, receiver = parameters.link
        for link in network["links"]:
            ends = {link["first"]["node"]: "first", link["second"]["node"]: "second"}
            if set(ends) == {sender, receiver}:
                return _direction(network, link, ends[sender], ends[receiver])
        valid = ", ".join(
            f"[{link['first']['node']}, {link['second']['node']}]" for link in network["links"]
        )
        raise ValueError(f"link: no link [{sender}, {receiver}]; valid, either way: {valid}")
    for link in network["links"]:
        for own, other in (("first", "second"), ("second", "first")):
            if link[own]["node"] == parameters.host and parameters.host in network["hosts"]:
                return _direction(network, link, other, own)
    valid = ", ".join(network["hosts"])
    raise ValueError(f"host: {parameters.host!r}: unknown host; valid: {valid}")


def _direction(
    network: Mapping[str, Any], link: Mapping[str, Any], sender: str, receiver: str
) -> Direction:
    return Direction(
        link=link.get("name") or f"{link['first']['node']}--{link['second']['node']}",
        sender=_end(network, link[sender]),
        receiver=_end(network, link[receiver]),
        rate_bps=link["rate_bps"],
        queue_bytes=link["queue_bytes"],
    )


def _end(network: Mapping[str, Any], port: Mapping[str, Any]) -> End:
    return End(
        node=port["node"],
        interface=port.get("interface", ""),
        number=port["number"],
        pid=port.get("pid"),
        is_switch=port["node"] in network["switches"],
    )
