"""Recomputes what is kept in the repository for `./lab verify-results`, and says what differs."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from analysis.report import kept_results, sentences, verification
from testbed.bench import study
from testbed.bench.factorial import console as factorial
from testbed.bench.factorial.findings import Findings
from testbed.bench.tolerance import console as tolerance
from testbed.bench.tolerance import findings
from testbed.experiment.run import key_of
from testbed.shared.yaml_input import InputError


def verify(*, write: bool, root: Path = kept_results.ROOT) -> bool:
    """Print what was recomputed and what differs; returns whether nothing does.

    Args:
        write: write first what differs anew, from the kept rows.
        root: the project's folder.

    Raises:
        InputError: evidence is missing or damaged.
    """
    others = {"tolerance": of_tolerance(root), "factorial": of_factorial(root)}
    try:
        if write:
            verification.renew(root=root, others=others)
        found = verification.verify(root=root, others=others, key_of=key_of)
        found.differences.extend(_of_table(root, "tolerance", tolerance.tables))
        found.differences.extend(_of_table(root, "factorial", factorial.tables))
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
        records = _records(root, "tolerance")
        found = {"/".join(each): by_loss for each, by_loss in findings.harm(records).items()}
        return found[group][float(loss)].as_json()

    return entry


def of_factorial(root: Path) -> sentences.Resolver:
    """The entries of the factorial, such as `effect mlp/sgd order=rotating`."""

    @cache
    def found() -> Findings:
        return Findings(_records(root, "factorial"))

    return lambda path: found().entry(path)


def _of_table(root: Path, name: str, tables: study.Tables) -> list[str]:
    """What is wrong with the kept tables of a study without a network; nothing where none is."""
    path = _kept(root, name)
    document = path.with_suffix(".md")
    if not path.is_file():
        return []
    kept = document.read_text(encoding="utf-8") if document.is_file() else ""
    same = kept == study.markdown(tables, _records(root, name))
    return [] if same else [f"{document.relative_to(root)}: not the table of {path.name}"]


def _records(root: Path, name: str) -> list[Any]:
    found: list[Any] = json.loads(_kept(root, name).read_text(encoding="utf-8"))
    return found


def _kept(root: Path, name: str) -> Path:
    return root / kept_results.RESULTS / name / f"{name}.json"
