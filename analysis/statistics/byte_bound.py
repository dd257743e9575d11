"""The limits in theory: how many times faster a higher tolerance makes a transfer that is hit.

With in-order passes a receiver that tolerates P stops as soon as the share 1 - P has arrived while
the link loses the share q. Either only bytes cost time, or only passes do: walking all indices,
also of what has arrived. (Arithmetic of this project, from the DBLP paper's rules; no source
states it.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def byte_bound(low: float, high: float) -> float:
    """The ratio if only bytes cost time: (1 - low) / (1 - high), whatever the loss.

    Args:
        low: tolerance of the arm that is compared, a share.
        high: tolerance of the faster arm.

    Raises:
        ValueError: a tolerance is not in 0 to 1, or `high` is 1.
    """
    _check(low, high)
    if high == 1:
        raise ValueError("high is 1: such a transfer needs no bytes; valid: 0 <= high < 1")
    return (1 - low) / (1 - high)


def passes(tolerance: float, loss: float) -> float:
    """The passes that a transfer is expected to pay for, where each costs what is walked of it.

    After k passes the share q ** k is missing. So all but the last of n = ceil(ln P / ln q) passes
    are walked whole. In the last one chunks arrive evenly along the indices, and Stop ends it at
    the share f where q ** (n - 1) * (1 - f * (1 - q)) = P. Together that is n - 1 + f, with
    f = (1 - P / q ** (n - 1)) / (1 - q). It is the limit for many chunks.

    Raises:
        ValueError: `tolerance` is not in 0 to 1, `loss` not in 0 to below 1, or nothing may be
            lost but something is: no number of passes is expected to suffice.
    """
    _check(tolerance, tolerance)
    if not 0 <= loss < 1:
        raise ValueError(f"loss {loss!r}; valid: 0 <= loss < 1")
    whole = 0
    if loss > tolerance:
        if tolerance == 0:
            raise ValueError("tolerance 0 under loss has no expected number of passes")
        whole = math.ceil(math.log(tolerance) / math.log(loss)) - 1
    return whole + (1 - tolerance / loss**whole) / (1 - loss)


def pass_limit(low: float, high: float, loss: float) -> float:
    """The ratio if only passes cost time: `passes` of the one tolerance over that of the other.

    It is expected, not a bound: with few chunks the ratio lies some per cent to either side, since
    of few only a whole number may stay missing. A gather waits for the slowest of its senders, for
    which it lies higher.

    Raises:
        ValueError: as `passes`, or `high` is 1.
    """
    if high == 1:
        raise ValueError("high is 1: such a transfer needs no pass; valid: 0 <= high < 1")
    return passes(low, loss) / passes(high, loss)


def tolerances(config: Mapping[str, Any], leg: str = "gather") -> tuple[float, float] | None:
    """The lowest and the highest tolerance of a leg, as `config.json` describes the protocol.

    None where it is not given by such a rule, as with TCP.
    """
    protocol = config.get("protocol")
    text = str(protocol.get(leg) or "") if isinstance(protocol, Mapping) else ""
    _, _, options = text.partition(":")
    found: dict[str, float] = {}
    for part in options.split(","):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            continue
    if "tolerance" in found:
        return found["tolerance"], found["tolerance"]
    if {"low", "high"} <= found.keys():
        return found["low"], found["high"]
    return None


def _check(*shares: float) -> None:
    for share in shares:
        if not 0 <= share <= 1:
            raise ValueError(f"tolerance {share!r}; valid: 0 to 1")
