"""Profiles of an experiment: its sizes for other machines.

    profiles:
      server: { topology.rate_bps: 1_000_000_000, rounds: 200, seeds: [1, 2, 3] }

The file's own values are those of `laptop`, which a profile of that name may still change. The keys
of all profiles are checked whenever the file is read, the values when the profile is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.shared import yaml_input
from testbed.shared.registry import one_of
from testbed.shared.yaml_input import InputError

DEFAULT_PROFILE = "laptop"
REFERENCE_PROFILE = "paper"
FIXED = ("name", "description", "profiles", "published")


def names(document: Mapping[str, Any]) -> list[str]:
    """The profiles that may be chosen."""
    given = document.get("profiles")
    return list(dict.fromkeys([DEFAULT_PROFILE, *(given if isinstance(given, Mapping) else ())]))


def changes(document: Mapping[str, Any], profile: str) -> Mapping[str, Any]:
    """What a profile that `apply` has taken replaces, by key path."""
    return (document.get("profiles") or {}).get(profile) or {}


def apply(document: dict[str, Any], profile: str) -> None:
    """Replace in an experiment what a profile replaces."""
    given = document.get("profiles") or {}
    if not isinstance(given, Mapping):
        raise InputError("profiles: must map names to the keys that they replace")
    if profile not in names(document):
        raise InputError(f"unknown profile {profile!r}; {one_of(profile, names(document))}")
    if not isinstance(given.get(profile) or {}, Mapping):
        raise InputError(f"profiles.{profile}: must map key paths to values")
    for key, value in changes(document, profile).items():
        first = str(key).partition(".")[0]
        if first in FIXED:
            raise InputError(f"profiles.{profile}.{key}: a profile cannot change {first!r}")
        try:
            yaml_input.replace(document, str(key), value)
        except InputError as error:
            raise InputError(f"profiles.{profile}.{error}") from None
