"""Chooses the SDN framework of the controller, without importing it."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Literal

Framework = Literal["ryu", "os-ken"]
FRAMEWORKS: dict[str, str] = {"ryu": "ryu", "os-ken": "os_ken"}  # name -> Python package
ENVIRONMENT_VARIABLE = "LAB_CONTROLLER_FRAMEWORK"


def choose(framework: str) -> None:
    """Choose for this process; call it before `controllers.framework` is imported.

    Raises:
        ValueError: no such framework.
    """
    if framework not in FRAMEWORKS:
        raise ValueError(f"{framework!r} is no SDN framework; valid: {', '.join(FRAMEWORKS)}")
    os.environ[ENVIRONMENT_VARIABLE] = framework


def describe(framework: str) -> dict[str, str | None]:
    """The name and installed version (None: not installed), for a run's manifest."""
    try:
        version: str | None = metadata.version(framework)
    except metadata.PackageNotFoundError:
        version = None
    return {"framework": framework, "version": version}
