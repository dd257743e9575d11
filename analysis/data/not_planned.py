"""Says why a run that lies on disk is not in the plan, and hence in no table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Of a configuration: what differs between runs that belong together.
_OF_ONE_RUN = ("key", "arm", "seed", "factors", "folder", "profile", "capture", "impairments")


def reason(config: dict[str, Any], planned: Sequence[dict[str, Any]]) -> str:
    """Where a run's configuration first differs from a planned one's of the same arm, in words."""
    arm = config.get("arm")
    alike = [each for each in planned if each.get("arm") == arm]
    why = _first_difference(config, alike[0]) if alike else f"it has no run of {arm}"
    return f"not in the plan{': ' if why else ''}{why}"


def _first_difference(there: Any, here: Any, path: str = "") -> str:
    """Where a run's configuration first differs from one of the plan's, in words."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = [name for name in there if name in here and (path or name not in _OF_ONE_RUN)]
        found = (_first_difference(there[name], here[name], f"{path}{name}.") for name in names)
        return next(filter(None, found), "")
    if there == here:
        return ""
    name = path.rstrip(".")
    if name.startswith("code."):
        return f"{Path(name.removeprefix('code.')).name} has changed since"
    if isinstance(there, dict | list) or isinstance(here, dict | list):
        return f"another {name}"
    return f"{name} {there} instead of {here}"
