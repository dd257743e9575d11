"""Says whether the commits that kept results are of can still be found in the project's history."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

_BRANCHES = ("main", "origin/main", "HEAD")  # the first that there is
_TIMEOUT_S = 60


def on_main(root: Path) -> set[str] | None:
    """All commits of the main branch; None where there is no whole history to look in."""
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    for branch in _BRANCHES:
        if found := _git(root, "rev-list", branch, "--"):
            return set(found.split())
    return None


def unknown(commits: Iterable[str], known: set[str]) -> list[str]:
    """In words, those that are not known, or were changed without committing."""
    found = []
    for commit in commits:
        name, _, changes = commit.partition("+")
        if not name:
            found.append("no commit was recorded")
        elif name not in known:
            found.append(f"commit {name[:10]} is not on main")
        elif changes:
            found.append(f"commit {name[:10]} was run with changes that were not committed")
    return found


def _git(root: Path, *arguments: str) -> str:
    """What git prints; empty where it fails, as outside a checkout."""
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
