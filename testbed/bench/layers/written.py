"""The file of a profile: the bounds that the preset `plot` takes, and how they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from testbed.bench.layers import rule
from testbed.bench.layers.ladder import Profile
from testbed.bench.layers.rule import LADDER, Finding

_SCHEMA = 1
_DIGITS = 6


def text(profile: Profile, facts: dict[str, Any]) -> str:
    """The file's text; `facts` says what was trained."""
    document = {
        "schema": _SCHEMA,
        "profile": {
            **facts,
            "metric": profile.without[0]["metric"],
            "ladder": list(LADDER),
            "without_loss": [_number(each["value"]) for each in profile.without],
        },
        "tensors": dict(profile.tensors),
        "measured": [
            {
                "group": group.name,
                "tensors": list(group.tensors),
                "elements": profile.elements[group.name],
                **_bound(profile.climbed[group.name]),
                "rungs": [_finding(each) for each in profile.climbed[group.name]],
            }
            for group in profile.groups
        ],
        "together": None if profile.together is None else _finding(profile.together),
    }
    told: str = yaml.safe_dump(document, sort_keys=False, width=110, default_flow_style=None)
    return told


def as_setting(profile: Profile) -> str:
    """The bounds as an arm of an experiment has them."""
    setting: str = yaml.safe_dump(
        {"tensors": dict(profile.tensors)}, sort_keys=False, width=10_000, default_flow_style=None
    )
    return setting.strip()


def _bound(climbed: Sequence[Finding]) -> dict[str, Any]:
    """A group's bound; `at_least` where the ladder ended with it."""
    bound = rule.bound(climbed)
    return {"bound": bound, "at_least": rule.is_ladder_end(bound)}


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "share": round(found.share, _DIGITS),
        "lost": _number(found.lost),
        "differences": [_number(each) for each in found.differences],
        "mean": _number(found.mean),
        "low": _number(found.low),
        "holds": found.holds,
    }


def _number(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
