"""Mininet's own options of links, hosts and switches: translated, or refused in one line.

`loss` is per cent in a plain Mininet `Topo`, and a share in a `LabTopo`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from testbed.shared import units
from testbed.shared.registry import one_of
from topologies.settings import FRAME_BYTES, LinkParameters

# Mininet's RED queue marks from here on: `min 30000` in its TCIntf.
_ECN_THRESHOLD_BYTES = 30_000
_TRANSLATED = ("bw", "delay", "jitter", "max_queue_size", "enable_ecn", "use_htb")
_LINK_CLASSES = ("Link", "TCLink", "TCULink", "OVSLink")
_NODE_CLASSES = {False: ("Host", "CPULimitedHost"), True: ("OVSSwitch", "OVSKernelSwitch")}
_LAB_SWITCH = {"datapath": "user", "failMode": "secure", "protocols": "OpenFlow13", "stp": False}


def link_keys(options: Mapping[str, Any], *, loss_in_percent: bool) -> dict[str, Any]:
    """Translate the options of an `addLink` to the lab's keys of a link."""
    rest = {key: value for key, value in options.items() if value is not None}
    if getattr(rest.get("cls"), "__name__", rest.get("cls")) in _LINK_CLASSES:
        del rest["cls"]
    keys = {key: rest.pop(key) for key in LinkParameters.model_fields if key in rest}
    mininet = {key: rest.pop(key) for key in _TRANSLATED if key in rest}
    for key, value in rest.items():
        if value:  # an option that is off says nothing
            valid = one_of(key, [*LinkParameters.model_fields, *_TRANSLATED])
            raise ValueError(f"{key}={_named(value)}: the lab makes links itself; {valid}")
    if "loss" in keys and loss_in_percent:
        keys["loss"] = _number("loss", str(keys["loss"]).removesuffix("%"), most=100) / 100
    elif keys.get("loss") and set(mininet) - {"use_htb"}:
        raise ValueError(
            f"loss={keys['loss']} beside Mininet's options: a share in a LabTopo, per cent in a "
            "plain Topo; use the lab's keys here (rate_bps, delay_s, queue_bytes)"
        )
    translated = _translated(mininet)
    if both := set(translated) & set(keys):
        raise ValueError(f"{min(both)} is given twice, once in Mininet's words")
    return keys | translated


def _translated(mininet: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if "bw" in mininet:
        keys["rate_bps"] = round(_number("bw", mininet["bw"]) * 1e6)
    for key in ("delay", "jitter"):
        if key in mininet:
            seconds = units.number(f"{key}_s", str(mininet[key] or "0s"))
            if seconds is None:
                raise ValueError(
                    f"{key}={mininet[key]!r}: valid: a time with its unit, such as '5ms' or '100us'"
                )
            keys[f"{key}_s"] = seconds
    if "max_queue_size" in mininet:
        packets = round(_number("max_queue_size", mininet["max_queue_size"]))
        if packets < 2:
            raise ValueError(f"max_queue_size={packets}: valid: 2 packets or more")
        keys["queue_bytes"] = packets * FRAME_BYTES
    if mininet.get("enable_ecn"):
        keys["ecn_threshold_bytes"] = _ECN_THRESHOLD_BYTES
    return keys


def check_node(options: Mapping[str, Any], *, is_switch: bool) -> None:
    """Raise ValueError for an option of `addHost` or `addSwitch` that has no meaning here."""
    for key, value in options.items():
        if value is None or (is_switch and _LAB_SWITCH.get(key, ...) == value):
            continue
        if key == "cls" and getattr(value, "__name__", "") in _NODE_CLASSES[is_switch]:
            continue
        if key == "dpid" and is_switch:
            if not (isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{1,16}", value)):
                raise ValueError(f"dpid={value!r}: valid: a text of 1 to 16 hexadecimal digits")
            continue
        nodes = "switches" if is_switch else "hosts and their addresses"
        raise ValueError(f"{key}={_named(value)}: the lab makes {nodes} itself; leave it out")


def _number(key: str, value: Any, *, most: float = math.inf) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number <= most or math.isinf(number):
        words = {"bw": "Mbit/s", "loss": "per cent", "max_queue_size": "packets"}[key]
        up_to = f", up to {most:g}" if most < math.inf else ""
        raise ValueError(f"{key}={value!r}: valid: a number of {words}{up_to}")
    return number


def _named(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)
