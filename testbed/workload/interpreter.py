"""The word for the lab's own Python in a program's command, and what another one lacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import cache

LAB_PYTHON = "lab-python"
# Nothing is imported, which would take seconds.
_ASKED = "import sys, importlib.util as u; print(*(n for n in sys.argv[1:] if not u.find_spec(n)))"
_WITHIN_S = 20.0


def resolved(command: Sequence[str]) -> list[str]:
    """A command with the path of the lab's Python, which no configuration holds."""
    program, *arguments = command
    return [sys.executable if program == LAB_PYTHON else program, *arguments]


@cache
def lacks(python: str, modules: tuple[str, ...]) -> str:
    """What is wrong with an interpreter, in words: which modules it has not; empty: nothing.

    Args:
        python: its path.
        modules: names without full stops.
    """
    try:
        # Without -P it would find what lies in the current folder.
        asked = subprocess.run(
            [python, "-P", "-c", _ASKED, *modules],
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be asked what it has: {error}"
    if asked.returncode:
        said = asked.stderr.strip().rpartition("\n")[2] or f"status {asked.returncode}"
        return f"is no Python of 3.11 or later: {said}"
    return f"has no module {' and no '.join(asked.stdout.split())}" if asked.stdout.strip() else ""
