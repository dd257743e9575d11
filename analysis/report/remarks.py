"""The cautions that a reader needs before the numbers, and how the numbers were made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from analysis import formatting
from analysis.data import evidence
from analysis.data.evidence import (
    MISSING,
    NOT_STARTED,
    Evidence,
    Run,
    code_of,
    machine_text,
    one_machine,
    section,
)
from analysis.formatting import PERCENT, joined, number
from analysis.summary import claims, lookup

_FEW = 3  # of many alike
# Shares of critical rounds that differ by so much change the mean of DBLP's tolerances (0.8 and
# 40.8 %) by 2 points, and the time of rounds that only bytes cost by 3.4 %: 0.05 x ((1 - 0.008) /
# (1 - 0.408) - 1). Less is hard to tell from the spread between seeds.
_PHASES_DIFFER = 0.05
_CHOSEN = {"schedule", "always-critical", "never-critical"}  # these detect nothing


def cautions(results: Evidence, summary: dict[str, Any]) -> list[str]:
    runs, left_out = results.ok_runs, []
    if unplanned := results.left_out:
        count = f"{len(unplanned)} ok run{'s' * (len(unplanned) > 1)} on disk"
        reason = f"{unplanned[0].key}: {unplanned[0].note}"
        left_out = [f"in no table: {count} ({reason}); see the section on runs"]
    return [
        *_of_verdicts(results),
        *_waived(runs),
        *_mixed(runs),
        *_no_pairs(summary),
        *_pace(runs, summary),
        *_of_ends(results, summary),
        *_phases(results, summary),
        *left_out,
        *(
            f"published: {name!r} is unknown; valid: the ids in analysis/claims.yaml"
            for name in claims.unknown(results.published_ids)
        ),
    ]


def _of_verdicts(results: Evidence) -> Iterator[str]:
    runs = results.ok_runs
    if simulated := sum(bool(run.manifest.get("simulated")) for run in runs):
        count = f"{simulated} of {len(runs)} runs"
        yield f"simulated: {count}, on links and hosts of a model; no measure of a machine's speed"
    if of_tcp := sorted({run.arm for run in runs if run.manifest.get("kernel_tcp") == "model"}):
        yield f"kernel TCP is a model: {', '.join(of_tcp)}"
    reasons = Counter(run.reason for run in results.runs if run.verdict == MISSING)
    for reason, missing in reasons.items():
        if reason != NOT_STARTED:  # of a divided sweep
            yield (
                f"missing: {missing} of {len(results.runs)} planned runs ({reason}); copy that "
                "machine's results into this folder"
            )
    ok = {run.arm for run in runs}
    for arm in results.arms if ok else []:  # where no arm has any, the headline says so
        verdicts = Counter(run.verdict for run in results.runs if run.arm == arm)
        if arm not in ok:
            counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
            yield f"no ok run of {arm} ({counts})"


def _waived(runs: Sequence[Run]) -> list[str]:
    beyond = evidence.waived(runs, beyond=True)
    listed = []
    for words, keys in evidence.waived(runs).items():
        count = f"{len(set(keys))} of {len(runs)} ok runs"
        if stopped := len(set(beyond.get(words, []))):
            count += f"; failed or not measured in {stopped}"
        listed.append(f"{words} ({count})")
    return [f"waived gates: {'; '.join(listed)}"] if listed else []


def _mixed(runs: Sequence[Run]) -> Iterator[str]:
    machines = Counter(one_machine(run.manifest) for run in runs if run.manifest)
    if len(machines) > 1:
        listed = "; ".join(f"{count} on {machine}" for machine, count in machines.items())
        yield f"different machines: {listed}; only runs of one machine and code are pairs"
    commits = {code_of(run.manifest): str(run.manifest.get("commit") or "") for run in runs}
    names = [commits[code] or code[0] for code in commits if any(code)]
    if len(names) > 1:
        short = ", ".join(name[:10] + name[40:] for name in names[: _FEW + 1])
        yield f"{len(names)} versions of the code: {short}{', ...' * (len(names) > _FEW + 1)}"


def _no_pairs(summary: Mapping[str, Any]) -> list[str]:
    """`no pairs: 2 of 5 seeds of fixed-low/dblp (measured on different machines)`, and so on."""
    where = ", at some point of the sweep" if lookup.points(summary) else ""
    compared_apart = [(pair, apart, where) for pair, apart in summary.get("no_pairs", {}).items()]
    compared_apart += [
        (entry["compared"].partition(" ")[2], entry["no_pairs"], "")
        for _, _, entry in lookup.published_entries(summary)
        if "no_pairs" in entry
    ]
    compared: dict[tuple[str, str], list[str]] = {}
    for name, apart, where in compared_apart:
        count = f"{len(apart['seeds'])} of {apart['of']} seed{'s' * (apart['of'] > 1)}"
        compared.setdefault((count, formatting.why_apart(apart) + where), []).append(name)
    return [
        f"no pairs: {count} of {', '.join(dict.fromkeys(names))} ({why})"
        for (count, why), names in compared.items()
    ]


def _pace(runs: Sequence[Run], summary: Mapping[str, Any]) -> Iterator[str]:
    paces = [evidence.pace(run.config) for run in runs]
    kinds = {pace["kind"] for pace in paces}
    times_s = sorted({pace["compute_s"] for pace in paces if pace.get("compute_s")})
    if times_s and "paced" in kinds:
        unit = formatting.unit_for("s", times_s)
        times = " or ".join(f"{number(time_s, unit)} {unit.symbol}" for time_s in times_s)
        yield f"paced: computing takes {times} per iteration, chosen and not measured"
    if "payload-only" in kinds:
        some = "" if len(kinds) == 1 else " in some runs"
        yield f"nothing is learnt{some}: payloads have random content (pace payload-only)"
    shares = [
        lookup.entry(summary, "arms", arm, "pace_overrun_share").value for arm in summary["arms"]
    ]
    if share := max(filter(None, shares), default=0.0):
        yield f"slower than the pace: up to {number(share, PERCENT)} % of an arm's iterations"


def _of_ends(results: Evidence, summary: Mapping[str, Any]) -> Iterator[str]:
    runs, rows = results.ok_runs, results.measured()
    if count := rows.filter(pl.col("workers_lost") > 0).height:
        yield f"workers lost in {count} of {len(runs)} ok runs"
    noted = [f"{run.key}: {run.reason}" for run in runs if run.verdict == "ok" and run.reason]
    yield from noted[:_FEW]
    if noted[_FEW:]:
        yield f"{len(noted) - _FEW} more runs have such a remark"
    if not (metric := summary.get("task_metric")):
        return
    lacking = set(rows.filter(pl.col(metric).is_null())["run_key"])
    learns = [run for run in runs if evidence.pace(run.config)["kind"] != "payload-only"]
    if names := [f"{run.arm} seed {run.seed}" for run in learns if run.key in lacking]:
        listed = ", ".join(names[:_FEW]) + ", ..." * (len(names) > _FEW)
        yield (
            f"diverged: {len(names)} of {len(learns)} trainings end without a finite {metric} "
            f"({listed}); means are of the others, and flatter the arm"
        )


def _phases(results: Evidence, summary: Mapping[str, Any]) -> Iterator[str]:
    detectors = {section(run.config, "phases").get("detector") for run in results.ok_runs}
    if detectors <= _CHOSEN:
        return
    runs = lookup.critical_rounds(summary)
    for kind, alike in (("arms", ("point", "seed")), ("seeds", ("arm", "point"))):
        groups: dict[tuple[str, ...], list[float]] = {}
        for run in runs:
            where = [f"seed {run[name]}" if name == "seed" else run[name] for name in alike]
            groups.setdefault(tuple(where), []).append(run["critical_share"])
        spreads = [
            (max(shares) - min(shares), joined(*where))
            for where, shares in groups.items()
            if len(shares) > 1
        ]
        if wide := [spread for spread in spreads if spread[0] > _PHASES_DIFFER]:
            share, place = max(wide)
            points = number(share, formatting.POINTS)
            yield (
                f"phases differ between {kind}: critical rounds by up to {points} points "
                f"({place}), in {len(wide)} of {len(spreads)}; see docs/how-to/tolerance.md"
            )


_MOST_LISTED = 6
_OF_A_SEED = ("rounds", "seed")  # of an impairment: what the run's seed drew
_LONGEST = 60  # characters of a value: a trace has thousands of changes


def methods(results: Evidence) -> list[tuple[str, str]]:
    configs = [run.config for run in results.ok_runs]
    impairments = [item for config in configs for item in config.get("impairments") or []]
    rows = {
        "Machine, for all hosts": [machine_text(run.manifest) for run in results.ok_runs],
        **{
            name.capitalize(): [_settings(section(config, name)) for config in configs]
            for name in ("topology", "training", "phases")
        },
        "Rounds": [str(config.get("rounds") or "") for config in configs],
        "Impairments": [
            _settings(impairment) for impairment in impairments if isinstance(impairment, dict)
        ],
        "Profile": [str(config.get("profile") or "") for config in configs],
        "Seeds": [", ".join(map(str, sorted({run.seed for run in results.ok_runs})))],
    }
    listed = []
    for name, texts in rows.items():
        distinct = list(filter(None, dict.fromkeys(texts)))
        more = len(distinct) - _MOST_LISTED
        text = "; ".join(distinct[:_MOST_LISTED]) + (f"; and {more} more" if more > 0 else "")
        listed += [(name, text)] if text else []
    return listed


def _settings(settings: Mapping[str, Any]) -> str:
    texts = (
        (name, f"({_settings(value)})" if isinstance(value, dict) else str(value))
        for name, value in settings.items()
        if value and name not in _OF_A_SEED
    )
    return ", ".join(f"{name} {v[:_LONGEST]}{'...' if v[_LONGEST:] else ''}" for name, v in texts)
