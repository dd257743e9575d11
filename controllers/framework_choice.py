"""Chooses the SDN framework without importing it; why Ryu is missing is read from a file."""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata
from pathlib import Path
from typing import Literal

Framework = Literal["ryu", "os-ken"]
FRAMEWORKS: dict[str, str] = {"ryu": "ryu", "os-ken": "os_ken"}  # name -> Python package
ENVIRONMENT_VARIABLE = "LAB_CONTROLLER_FRAMEWORK"
_WITHOUT_RYU = Path(sys.prefix, "without-ryu")


def preferred() -> Framework:
    """Ryu where it is installed, else os-ken."""
    return "ryu" if is_installed("ryu") else "os-ken"


def is_installed(framework: str) -> bool:
    """Whether this interpreter has its package."""
    spec = importlib.util.find_spec(FRAMEWORKS[framework])
    return spec is not None and spec.origin is not None  # without one: an empty folder


def why_missing(framework: str) -> str:
    """Why a framework is not installed, in one line."""
    if framework == "ryu" and _WITHOUT_RYU.is_file():
        return " ".join(_WITHOUT_RYU.read_text(encoding="utf-8").split())
    return "not installed"


def describe(framework: str) -> dict[str, str | None]:
    """The name and installed version (None: not installed), for a run's manifest."""
    try:
        version: str | None = metadata.version(framework)
    except metadata.PackageNotFoundError:
        version = None
    return {"framework": framework, "version": version}
