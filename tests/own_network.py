"""Runs a script in a network namespace of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def printed(script: str, *arguments: str, before: Sequence[str] = ("unshare", "-n")) -> Any:
    """What it prints, as JSON; `before` are the words that make the namespace."""
    argv = [*before, sys.executable, "-c", script, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
