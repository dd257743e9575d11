"""Recomputes from kept rows every table, and says what differs."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

from analysis.data import kept_rows
from analysis.data.evidence import (
    FAILED,
    NOT_MEASURED,
    PASSED,
    Evidence,
    Run,
    is_of_script,
    section,
    stops,
)
from analysis.data.metrics import METRICS
from analysis.report import kept_results

_AS_KEPT = "valid: the file as it was kept"
_DIGITS = 1e-5  # six digits are kept; another processor may round the last one otherwise
_FEW = 3  # differences of one file that are printed
_BEFORE, _SHOWN = 30, 80  # characters of a line that differs


@dataclass(frozen=True, kw_only=True)
class Verification:
    recomputed: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def verify(
    *,
    root: Path = kept_results.ROOT,
    key_of: Callable[[Mapping[str, Any]], str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Verification:
    verified = Verification()
    commits = on_main(root)
    if commits is None:
        verified.remarks.append("commits were not looked for: no whole git history of main is here")
    for folder in results(root):
        evidence = kept_rows.read(folder)
        _check_gates(folder / kept_rows.GATES, evidence)
        if key_of is not None:
            _check_keys(evidence, key_of, folder)
        refused, remarks = _look_up(root, commits, (run.manifest for run in evidence.ok_runs))
        for commit in refused:
            raise ValueError(
                f"{folder / kept_rows.MANIFEST}: {commit}; valid: a commit on main, with nothing "
                "changed"
            )
        verified.remarks.extend(f"{folder.name}: {remark}" for remark in remarks)
        for file, text in kept_results.derived(evidence).items():
            verified.differences.extend(_differing(folder / file, text, root))
        verified.differences.extend(_of_rounds(evidence, folder.relative_to(root)))
        attempts = len(evidence.runs) + len(evidence.others)
        verified.recomputed.append(
            f"{folder.name}: recomputed from {evidence.rows.height} rows ({attempts} attempts)"
        )
        say(verified.recomputed[-1])
    for page in kept_results.documents(root):
        place, text = page.relative_to(root), page.read_text(encoding="utf-8")
        current, written = kept_results.filled(page, root)
        for name in kept_results.blocks(text):
            if name not in written:
                missing = root / kept_results.RESULTS / name / kept_results.PROVENANCE
                raise ValueError(f"{missing}: missing, and {place} has a table of it; {_AS_KEPT}")
        verified.differences.extend(f"{place}: {words}" for words in _lines(text, current))
    return verified


def _of_rounds(evidence: kept_rows.KeptRows, place: Path) -> Iterator[str]:
    if evidence.rounds is None:
        return
    metrics = [
        metric
        for metric in METRICS
        if metric.name.startswith(kept_rows.OF_ROUNDS) and metric.name in evidence.rows.columns
    ]
    values = [metric.expression for metric in metrics if not metric.whole_log]
    again = evidence.rounds.group_by("run_key").agg(values)
    rows = evidence.rows.join(again, on="run_key", how="left", suffix=" again")
    for name in again.columns[1:]:
        for key, kept, made in rows.select("run_key", name, f"{name} again").iter_rows():
            if not _same(kept, made):
                of_run = f"{place / kept_rows.ROUNDS}: {name} of run {key}"
                yield f"{of_run} is {made!r}; its row has {kept!r}"


def of_commits(folder: Path) -> tuple[list[str], list[str]]:
    manifests = (run.manifest for run in kept_rows.read(folder).ok_runs)
    return _look_up(folder, on_main(folder), manifests)


def renew(*, root: Path = kept_results.ROOT) -> None:
    for folder in results(root):
        kept_results.write_derived(folder)
    kept_results.write_readme(root=root)


def results(root: Path) -> list[Path]:
    """The folders of experiments' results; benchmarks keep records of their own kind."""
    files = (kept_results.PROVENANCE, kept_rows.EXPERIMENT, kept_results.SUMMARY)
    place = root / kept_results.RESULTS
    return sorted({path.parent for name in files for path in place.glob(f"*/{name}")})


def _check_keys(
    evidence: Evidence, key_of: Callable[[Mapping[str, Any]], str], folder: Path
) -> None:
    """Refuse a configuration that is not the run's: its key is a hash of it."""
    for run in evidence.runs:
        if not run.config or run.config.get("code") or is_of_script(run.config):
            continue
        try:
            key = key_of(run.config)
        except (LookupError, TypeError, AttributeError) as error:
            key = f"none ({error!r})"
        if key != run.key:
            raise ValueError(
                f"{folder / kept_rows.PLAN}: run {run.key} has, with what {kept_rows.EXPERIMENT} "
                f"says, the configuration of key {key}; valid: the configuration as it was kept"
            )


def _differing(path: Path, text: str, root: Path) -> list[str]:
    """Say where a file differs from its text; JSON numbers may differ in the last kept digit."""
    place = path.relative_to(root)
    try:
        kept = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: missing; ./lab verify-results --write makes it anew") from None
    if path.suffix != ".json":
        return [f"{place}: {words}" for words in _lines(kept, text)]
    try:
        document = json.loads(kept)
    except ValueError as error:
        return [f"{place}: {error}"]
    differences = list(_values(document, json.loads(text), ""))
    more = [f"{len(differences) - _FEW} more"] if len(differences) > _FEW else []
    return [f"{place}: {words}" for words in (*differences[:_FEW], *more)]


def _values(kept: Any, made: Any, where: str) -> Iterator[str]:
    if isinstance(kept, dict) and isinstance(made, dict):
        for name in dict.fromkeys((*made, *kept)):
            place = f"{where}.{name}" if where else str(name)
            if kept.get(name, {}) == {} == made.get(name, {}):
                continue  # of a metric that no arm has; what was kept earlier lacks newer ones
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
    if all(isinstance(value, int | float) and type(value) is not bool for value in (kept, made)):
        return math.isclose(kept, made, rel_tol=_DIGITS, abs_tol=1e-12)
    return type(kept) is type(made) and bool(kept == made)


def _lines(kept: str, made: str) -> list[str]:
    """The first line that differs, from shortly before where it does so."""
    pairs = zip_longest(kept.splitlines(), made.splitlines(), fillvalue="")
    for number, (one, other) in enumerate(pairs, start=1):
        if one != other:
            alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
            at = max(0, len(list(alike)) - _BEFORE)
            was, is_now = one[at : at + _SHOWN], other[at : at + _SHOWN]
            return [f"line {number} has {was!r}; kept results give {is_now!r}"]
    return []


# These apply only where a run happened to meet something: packets that wait, or a loss.
_BY_CHANCE = {"rate_under_load", "packet_bytes", "loss_error", "impairments_unmet"}


def _check_gates(path: Path, evidence: Evidence) -> None:
    for run in (*evidence.runs, *evidence.others):
        for gate in run.gates:
            if wrong := _wrong_gate(gate, run):
                raise ValueError(f"{path}: {gate['name']} of an attempt at {run.key}: {wrong}")
    tried: dict[str, dict[str, str]] = {}
    ok_runs = [run for run in evidence.runs if run.verdict == "ok"]
    for run in ok_runs:
        tried.setdefault(_kind(run), {}).update(_gates(run))
    for run in ok_runs:
        # Nothing judges a simulated run but whether its impairments met something.
        if not run.gates and not run.config.get("simulated"):
            raise ValueError(f"{path}: run {run.key} is ok without any gate; {_AS_KEPT}")
        for family, name in tried[_kind(run)].items():
            if family not in _gates(run) and name not in _BY_CHANCE:
                which = f"gate {name}, which runs of its kind have"
                raise ValueError(f"{path}: run {run.key} has no {which}; {_AS_KEPT}")


def _kind(run: Run) -> str:
    """The same machine and version try the same gates at the same point of a sweep."""
    return json.dumps([run.factors, run.manifest], sort_keys=True)


def _gates(run: Run) -> dict[str, str]:
    """The gates by name without its unit: a share and a time can be limits of the same thing."""
    return {gate["name"].removesuffix("_s"): gate["name"] for gate in run.gates}


def _wrong_gate(gate: dict[str, Any], run: Run) -> str:
    outcome, value, limit = gate["outcome"], gate["value"], gate["limit"]
    limits = section(run.config, "limits")
    if limits and gate["name"] not in {*limits, "standstill_s"}:  # whose limit has no key
        return "no such gate; valid: a key of the run's limits"
    if outcome not in (PASSED, FAILED, NOT_MEASURED):
        return f"outcome {outcome!r}; valid: {PASSED}, {FAILED}, {NOT_MEASURED}"
    if gate["decides"] is False and not gate["waived"]:
        return "decides is false, and nothing waives it; valid: true"
    if run.verdict == "ok" and stops(gate):
        return f"{outcome}, and the run is ok; valid: {PASSED}, or waived by limits.waive"
    if outcome == NOT_MEASURED:
        return ""
    if value is None or limit is None:
        return f"{outcome} without a value or limit; valid: both"
    # Both are kept to six digits, so a value just beyond its limit may be equal to it.
    if (value > limit) if outcome == PASSED else (value < limit):
        return f"{outcome} with the value {value:g} and the limit {limit:g}; valid: not both"
    return ""


_BRANCHES = ("main", "origin/main", "HEAD")  # the first that there is
_TIMEOUT_S = 60


def _look_up(
    root: Path, commits: Sequence[str] | None, manifests: Iterable[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    refused: list[str] = []
    remarks: list[str] = []
    recorded = {
        str(manifest.get("commit") or ""): manifest.get("sources") for manifest in manifests
    }
    for commit, sources in sorted(recorded.items()) if commits is not None else ():
        name, _, changes = commit.partition("+")
        if not name:
            refused.append("no commit was recorded")
        elif changes:
            refused.append(f"commit {name[:10]} was run with changes that were not committed")
        elif commits is not None and name not in commits:
            instead = ", and its sources were not recorded"
            if sources:
                same = _with_sources(root, commits, sources)
                instead = f"; {same[:10]} there has the same {', '.join(sources)}"
                instead = instead if same else ", nor is there one with the same sources"
            remarks.append(f"commit {name[:10]} is not on main{instead}")
    return refused, remarks


def _with_sources(root: Path, commits: Sequence[str], sources: Mapping[str, str]) -> str:
    """The oldest of some commits whose folders have these git trees; empty if there is none."""
    names = "\n".join(f"{commit}:{folder}" for commit in commits for folder in sources)
    trees = _git(root, "cat-file", "--batch-check=%(objectname)", text=names).split("\n")
    width, expected = len(sources), list(sources.values())
    by_commit = (trees[at : at + width] for at in range(0, len(trees), width))
    same = [name for name, of in zip(commits, by_commit, strict=False) if of == expected]
    return same[-1] if same else ""


def on_main(root: Path) -> list[str] | None:
    """All commits of the main branch, newest first; None where there is no whole history."""
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    for branch in _BRANCHES:
        if commits := _git(root, "rev-list", branch, "--"):
            return commits.split()
    return None


def _git(root: Path, *arguments: str, text: str | None = None) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
