"""Recomputes what is kept in the repository for `./lab verify-results`, and says what differs."""

from __future__ import annotations

import sys
from pathlib import Path

from analysis.report import kept_results, verification
from testbed.experiment.run import key_of
from testbed.shared.yaml_input import InputError


def verify(*, write: bool, root: Path = kept_results.ROOT) -> bool:
    """Print what was recomputed and what differs; returns whether nothing does."""
    count = len(verification.results(root))
    print(f"recomputing {count} kept results, then the numbers of the pages", flush=True)
    try:
        if write:
            verification.renew(root=root)
        found = verification.verify(root=root, key_of=key_of, say=_say)
    except ValueError as error:
        raise InputError(str(error)) from None
    for line in found.remarks:
        print(line)
    for line in found.differences:
        print(f"differs: {line}", file=sys.stderr)
    agrees = "all agree with what is kept" if not found.differences else "not all agree"
    print(f"{len(found.recomputed)} results recomputed: {agrees}")
    return not found.differences


def _say(line: str) -> None:
    print(line, flush=True)
