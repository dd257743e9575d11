"""Recomputes what is kept in the repository for `./lab verify-results`, and says what differs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from analysis.report import kept_results, sentences, verification
from testbed.bench.tolerance import console as tolerance
from testbed.bench.tolerance import findings
from testbed.shared.yaml_input import InputError


def verify(*, write: bool, root: Path = kept_results.ROOT) -> bool:
    """Print what was recomputed and what differs; returns whether nothing does.

    Args:
        write: write first what differs anew, from the kept rows.
        root: the project's folder.

    Raises:
        InputError: evidence is missing or damaged.
    """
    others = {"tolerance": of_tolerance(root)}
    try:
        if write:
            verification.renew(root=root, others=others)
        found = verification.verify(root=root, others=others)
        found.differences.extend(_of_tolerance_table(root))
    except ValueError as error:
        raise InputError(str(error)) from None
    for line in (*found.recomputed, *found.older, *found.remarks):
        print(line)
    for line in found.differences:
        print(f"differs: {line}", file=sys.stderr)
    agrees = "all agree with what is kept" if not found.differences else "not all agree"
    print(f"{len(found.recomputed)} results recomputed, {len(found.older)} older: {agrees}")
    return not found.differences


def of_tolerance(root: Path) -> sentences.Resolver:
    """The entries of the tolerance study, such as `digits/in-order/zero/always 0.4`."""

    def entry(path: str) -> sentences.Entry:
        group, loss = path.split()
        records = json.loads((_tolerance(root)).read_text(encoding="utf-8"))
        found = {"/".join(each): by_loss for each, by_loss in findings.harm(records).items()}
        return found[group][float(loss)].as_json()

    return entry


def _of_tolerance_table(root: Path) -> list[str]:
    path = _tolerance(root)
    table = path.with_suffix(".md")
    if not path.is_file():
        return []
    made = tolerance.markdown(findings.harm(json.loads(path.read_text(encoding="utf-8"))))
    kept = table.read_text(encoding="utf-8") if table.is_file() else ""
    return [] if kept == made else [f"{table.relative_to(root)}: not the table of {path.name}"]


def _tolerance(root: Path) -> Path:
    return root / kept_results.RESULTS / "tolerance" / "tolerance.json"
