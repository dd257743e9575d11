"""The bounds in theory: how many times faster a higher tolerance can make a transfer that is hit.

With in-order passes a receiver that tolerates P stops as soon as the share 1 - P has arrived while
the link loses the share q. Either only bytes cost time, or only passes do; real transfers lie
between. (Arithmetic of this project, from the DBLP paper's rules; no source states it.)
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


def passes(tolerance: float, loss: float) -> int:
    """The passes after which what is missing is expected to be at most `tolerance`.

    The smallest n with loss ** n <= tolerance, and at least 1: ceil(ln P / ln q).

    Raises:
        ValueError: `tolerance` is not in 0 to 1, `loss` not in 0 to below 1, or nothing may be
            lost but something is: no number of passes is expected to suffice.
    """
    _check(tolerance, tolerance)
    if not 0 <= loss < 1:
        raise ValueError(f"loss {loss!r}; valid: 0 <= loss < 1")
    if loss <= tolerance:
        return 1
    if tolerance == 0:
        raise ValueError("tolerance 0 under loss has no expected number of passes")
    count = math.log(tolerance) / math.log(loss)
    return max(1, math.ceil(count - 1e-9))  # not one more because of rounding


def pass_bound(low: float, high: float, loss: float) -> float:
    """The ratio if only passes cost time: ceil(ln low / ln q) / ceil(ln high / ln q).

    Raises:
        ValueError: as `passes`.
    """
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
