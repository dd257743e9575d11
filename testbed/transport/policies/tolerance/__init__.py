"""Tolerances: when may a receiver stop?

`testbed.transport.core.tolerance` says what one is. To add one: a class here and a line in
`POLICIES`; or a file of your own, `gather: ./mine.py`. Imports numpy, `testbed.shared` and the
transport alone.
"""

from collections.abc import Mapping
from typing import Any

from testbed.shared.input_error import InputError
from testbed.shared.registry import Registry
from testbed.transport.core.tolerance import TolerancePolicy
from testbed.transport.policies.tolerance.by_energy import BoundedEnergy
from testbed.transport.policies.tolerance.by_time import EarlyClose, QuickLossOnly, TimeBound
from testbed.transport.policies.tolerance.fractions import Fixed, PerLayer, Phased

POLICIES: Registry[TolerancePolicy] = Registry(
    "tolerance policy",
    {
        "fixed": Fixed,
        "phased": Phased,
        "per-layer": PerLayer,
        "early-close": EarlyClose,
        "quick-loss-only": QuickLossOnly,
        "bounded-energy": BoundedEnergy,
        "time-bound": TimeBound,
    },
    own="Tolerance",
    base=TolerancePolicy,
)


def as_policy(value: TolerancePolicy | float | str | Mapping[str, Any]) -> TolerancePolicy:
    """A policy from any form a configuration may give it.

    A number is a fixed tolerance; a text is `fixed:tolerance=0.008`; a mapping is
    {"policy": "phased", "low": 0.008, "high": 0.408}, or has `name` in place of `policy`.
    Raises ValueError saying what is valid.
    """
    if isinstance(value, TolerancePolicy):
        return value
    if isinstance(value, Mapping):
        options = dict(value)
        name = options.pop("policy", None) or options.pop("name", None)
        if not isinstance(name, str):
            raise ValueError(f"a tolerance policy needs the key 'policy': {', '.join(POLICIES)}")
        if name in POLICIES:
            return POLICIES.build(name, options)
        value = {"name": name, **options}
    if not isinstance(value, str | Mapping):
        return Fixed(value)
    text = POLICIES.text(value)
    policy = POLICIES.create(text)
    if POLICIES.parse(text)[0] not in POLICIES:
        # A user's class need not know how to describe itself; `object`, since it may be frozen.
        object.__setattr__(policy, "own_text", text)
        if str(policy) != text:
            raise InputError(f"{text}: {type(policy).__name__} must not define __str__")
    return policy
