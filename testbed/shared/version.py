"""The version of the lab."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def version() -> str:
    try:
        return str(tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return metadata.version("bounded-loss-testbed")
