"""Recomputes from kept rows every table and every number of a sentence, and says what differs.

A result is recomputed from its rows; the tables in the pages from the results, and the numbers in
their sentences too (`sentences`). Results that were kept without rows (older ones) are named: of
them only the pages can be checked against what is kept. Figures are not drawn again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

from analysis.data import kept_rows
from analysis.data.load import Evidence
from analysis.report import commits, kept_results, sentences

_MANIFEST = kept_rows.MANIFEST
_DIGITS = 1e-5  # six digits are kept; another processor may round the last one otherwise
_FEW = 3  # differences of one file that are told
_BEFORE, _SHOWN = 30, 80  # characters of a line that differs


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found.

    Attributes:
        recomputed: a line per result whose numbers were made again from its rows.
        older: a line per result that was kept without rows.
        remarks: what could not be checked here.
        differences: a line each; empty where everything agrees.
    """

    recomputed: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def verify(
    *, root: Path = kept_results.ROOT, others: Mapping[str, sentences.Resolver] | None = None
) -> Verification:
    """Recompute everything that is kept below `root`, the project's folder.

    Args:
        root: holds README.md, docs/ and experiments/results/.
        others: as of `sentences.Kept`.

    Raises:
        ValueError: evidence is missing or damaged, or its commit is not on main: one line that
            names the file and what would be valid.
    """
    found = Verification()
    known = commits.on_main(root)
    if known is None:
        found.remarks.append("commits were not looked for: no whole git history of main is here")
    for folder in results(root):
        name = folder.name
        if kept_results.has_rows(folder):
            evidence = kept_rows.read(folder)
            for said in _unknown(evidence, known):
                raise ValueError(
                    f"{folder / _MANIFEST}: {said}; valid: a commit on main, with nothing changed"
                )
            for file, text in kept_results.derived(evidence).items():
                found.differences.extend(_differing(folder / file, text, root))
            attempts = len(evidence.runs) + len(evidence.others)
            found.recomputed.append(
                f"{name}: recomputed from {evidence.rows.height} rows ({attempts} attempts)"
            )
        else:
            recorded = kept_results.with_commits(folder)[1]["commits"]
            unknown = [] if known is None else commits.unknown(recorded, known)
            told = "; ".join(["kept without rows (older), not recomputed", *unknown])
            found.older.append(f"{name}: {told}")
    kept = sentences.Kept(root / kept_results.RESULTS, others)
    for page in kept_results.documents(root):
        found.differences.extend(_of_page(page, root, kept))
    return found


def of_commits(folder: Path) -> list[str]:
    """What is wrong with the commits of the rows that a folder keeps, in words.

    Raises:
        ValueError: as `kept_rows.read`.
    """
    return _unknown(kept_rows.read(folder), commits.on_main(folder))


def renew(
    *, root: Path = kept_results.ROOT, others: Mapping[str, sentences.Resolver] | None = None
) -> None:
    """Write anew from the rows what `verify` compares; the arguments and errors are its own."""
    for folder in results(root):
        if kept_results.has_rows(folder):
            kept_results.write_derived(folder)
    kept_results.write_readme(root=root, others=others)


def results(root: Path) -> list[Path]:
    """The folders of experiments' results; benchmarks keep records of their own kind."""
    files = (kept_results.PROVENANCE, kept_rows.EXPERIMENT, kept_results.SUMMARY)
    found = {
        path.parent for name in files for path in (root / kept_results.RESULTS).glob(f"*/{name}")
    }
    return sorted(found)


def _unknown(evidence: Evidence, known: set[str] | None) -> list[str]:
    recorded = sorted({str(run.manifest.get("commit") or "") for run in evidence.ok_runs})
    return [] if known is None else commits.unknown(recorded, known)


def _differing(path: Path, text: str, root: Path) -> list[str]:
    """Where a file differs from what it should be; numbers of JSON in what is worth keeping."""
    place = path.relative_to(root)
    try:
        kept = path.read_text(encoding="utf-8")
    except OSError:
        return [f"{place}: missing; ./lab verify-results --write makes it"]
    if path.suffix != ".json":
        return [f"{place}: {told}" for told in _lines(kept, text)]
    try:
        document = json.loads(kept)
    except ValueError as error:
        return [f"{place}: {error}"]
    told = list(_values(document, json.loads(text), ""))
    more = [f"{len(told) - _FEW} more"] if len(told) > _FEW else []
    return [f"{place}: {each}" for each in (*told[:_FEW], *more)]


def _values(kept: Any, made: Any, where: str) -> Iterator[str]:
    if isinstance(kept, dict) and isinstance(made, dict):
        for name in dict.fromkeys((*made, *kept)):
            place = f"{where}.{name}" if where else str(name)
            if name not in kept or name not in made:
                yield f"{place} is only in {'the rows' if name in made else 'the file'}"
            else:
                yield from _values(kept[name], made[name], place)
    elif isinstance(kept, list) and isinstance(made, list) and len(kept) == len(made):
        for number, (one, other) in enumerate(zip(kept, made, strict=True)):
            yield from _values(one, other, f"{where}[{number}]")
    elif not _same(kept, made):
        yield f"{where} is {kept!r}; the rows give {made!r}"


def _same(kept: Any, made: Any) -> bool:
    numbers = [isinstance(each, int | float) and type(each) is not bool for each in (kept, made)]
    if all(numbers):
        return math.isclose(kept, made, rel_tol=_DIGITS, abs_tol=1e-12)
    return type(kept) is type(made) and bool(kept == made)


def _lines(kept: str, made: str) -> list[str]:
    """Where the first line that differs does so."""
    pairs = zip_longest(kept.splitlines(), made.splitlines(), fillvalue="")
    for number, (one, other) in enumerate(pairs, start=1):
        if one != other:
            alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
            at = max(0, len(list(alike)) - _BEFORE)
            was, is_now = (each[at : at + _SHOWN] for each in (one, other))
            return [f"line {number} has {was!r}; kept results give {is_now!r}"]
    return []


def _of_page(page: Path, root: Path, kept: sentences.Kept) -> list[str]:
    place = page.relative_to(root)
    text = page.read_text(encoding="utf-8")
    new, written = kept_results.filled(page, root)
    found = [
        f"{place}: the block {name!r} has no kept results"
        for name in kept_results.blocks(text)
        if name not in written
    ]
    found += [f"{place}: {told}" for told in _lines(text, new)]
    for lines, above in sentences.claims(text):
        said = (sentences.disagreement(claim, above, kept) for claim in lines)
        found += [f"{place}: {told}" for told in said if told]
    return found
