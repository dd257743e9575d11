"""Says whether the code that kept results were measured with can still be found on main.

A commit is lost where its change came to main as another commit. The trees of its sources, which a
manifest has as `sources`, may be on main nevertheless: then the code is there, under another name.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BRANCHES = ("main", "origin/main", "HEAD")  # the first that there is
_TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class LookedUp:
    """What is to be said of the commits of some runs, in words."""

    refused: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class History:
    """The commits of the main branch of the repository that `root` lies in."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.commits = on_main(root)

    def look_up(self, manifests: Iterable[Mapping[str, Any]]) -> LookedUp:
        """What is to be said of these manifests; nothing where there is no whole history."""
        found = LookedUp()
        if self.commits is None:
            return found
        recorded = {str(each.get("commit") or ""): each.get("sources") for each in manifests}
        for commit, sources in sorted(recorded.items()):
            name, _, changes = commit.partition("+")
            if not name:
                found.refused.append("no commit was recorded")
            elif changes:
                found.refused.append(
                    f"commit {name[:10]} was run with changes that were not committed"
                )
            elif name not in self.commits:
                found.remarks.append(f"commit {name[:10]} is not on main{self._instead(sources)}")
        return found

    def _instead(self, sources: Mapping[str, str] | None) -> str:
        if not sources:
            return ", and its sources were not recorded"
        if same := self.with_sources(sources):
            return f"; {same[:10]} there has the same {', '.join(sources)}"
        return ", nor is there one with the same sources"

    def with_sources(self, sources: Mapping[str, str]) -> str | None:
        """The oldest commit on main whose folders have these git trees; None if there is none."""
        commits = self.commits or []
        asked = "\n".join(f"{commit}:{folder}" for commit in commits for folder in sources)
        told = _git(self._root, "cat-file", "--batch-check=%(objectname)", given=asked).split("\n")
        width, wanted = len(sources), list(sources.values())
        trees = (told[at : at + width] for at in range(0, len(told), width))
        same = [each for each, found in zip(commits, trees, strict=False) if found == wanted]
        return same[-1] if same else None


def on_main(root: Path) -> list[str] | None:
    """All commits of the main branch, newest first; None where there is no whole history."""
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    for branch in _BRANCHES:
        if found := _git(root, "rev-list", branch, "--"):
            return found.split()
    return None


def _git(root: Path, *arguments: str, given: str | None = None) -> str:
    """What git prints when it is given a text; empty where it fails, as outside a checkout."""
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            input=given,
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
