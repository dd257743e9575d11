"""How the lab starts a process that is one of its own modules."""

from __future__ import annotations

import sys


def command(module: str, *arguments: str) -> list[str]:
    """The command of a module; it imports nothing from the current folder, such as a `yaml.py`.

    The option concerns this process alone, unlike PYTHONSAFEPATH, which users' programs would get.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
