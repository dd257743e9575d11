"""The word for the lab's own Python in a program's command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

LAB_PYTHON = "lab-python"


def resolved(command: Sequence[str]) -> list[str]:
    """A command with the path of the lab's Python, which no configuration holds."""
    program, *arguments = command
    return [sys.executable if program == LAB_PYTHON else program, *arguments]
