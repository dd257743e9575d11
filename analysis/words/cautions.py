"""Writes the cautions: what a reader must know before the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl

from analysis.data import gates, learning, published
from analysis.data.blocks import code_of, one_machine
from analysis.data.evidence import INVALID_INCLUDED, MISSING, NOT_STARTED, Evidence, Run
from analysis.data.per_run import logged
from analysis.words import formatting, no_pairs, phase_cautions

_FEW = 3  # of many alike


def sentences(results: Evidence, summary: dict[str, Any]) -> list[str]:
    """Sentences for the top of the report; empty where nothing calls for caution."""
    return [
        *_invalid_included(results),
        *_simulated(results.ok_runs),
        *_missing_shards(results),
        *_arms_without_ok_runs(results),
        *_waived(results.ok_runs),
        *_mixed_machines(results.ok_runs),
        *_mixed_versions(results.ok_runs),
        *no_pairs.sentences(summary),
        *_pace(results, summary),
        *_lost_workers(results),
        *_stood_still(results.ok_runs),
        *_without_an_end(results, summary),
        *phase_cautions.sentences(results, summary),
        *_left_out(results),
        *(
            f"published: {name!r} is not among the published values; valid: the ids in "
            "analysis/data/published.yaml."
            for name in published.unknown(results.published_ids)
        ),
    ]


def _simulated(runs: Sequence[Run]) -> list[str]:
    simulated = sum(bool(run.manifest.get("simulated")) for run in runs)
    if not simulated:
        return []
    some = "These runs are" if simulated == len(runs) else f"{simulated} of these runs are"
    of_tcp = sorted({run.arm for run in runs if run.manifest.get("kernel_tcp") == "model"})
    model = (
        f"Kernel TCP ({', '.join(of_tcp)}) is a model: our congestion control of that name, and "
    )
    model += "TCP's timers over a reliable stream."
    return [
        f"{some} simulated: the transport's own code, on links and hosts of a model. Hosts need no "
        "time but what the experiment says, and nothing is on the links but what training and "
        "impairments send. Of how fast a machine is they say nothing.",
        *([model] if of_tcp else []),
    ]


def _missing_shards(results: Evidence) -> list[str]:
    """One sentence per part of a sweep of which runs are missing: they are on another machine."""
    found = Counter(run.reason for run in results.runs if run.verdict == MISSING)
    return [
        f"{count} of {len(results.runs)} planned runs are missing ({reason}): copy the results of "
        "the machine that has them into this folder."
        for reason, count in found.items()
        if reason != NOT_STARTED
    ]


def _invalid_included(results: Evidence) -> list[str]:
    if not results.invalid_included:
        return []
    return [
        f"{INVALID_INCLUDED}: {results.invalid_included} of the {len(results.ok_runs)} runs behind "
        "these numbers are invalid. There the emulator was the limit, and not the protocol, or it "
        "could not be told. Look at them; do not compare or publish them."
    ]


def _arms_without_ok_runs(results: Evidence) -> list[str]:
    """One sentence per arm without a number; none where no arm has any: the headline says so."""
    ok = {run.arm for run in results.ok_runs}
    found = []
    for arm in results.arms if ok else []:
        verdicts = Counter(run.verdict for run in results.runs if run.arm == arm)
        if arm not in ok:
            counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
            found.append(f"No ok run of {arm} ({counts}).")
    return found


def _waived(runs: Sequence[Run]) -> list[str]:
    found = gates.waived(runs)
    if not found:
        return []
    beyond = gates.waived(runs, beyond=True)

    def told(words: str) -> str:
        count = len(set(found[words]))
        some = f"{count} of {len(runs)} ok runs" if count < len(runs) else ""
        stopped = len(set(beyond.get(words, [])))
        in_so_many = f"failed or not measured in {stopped}" if stopped else ""
        details = "; ".join(filter(None, (some, in_so_many)))
        return f"{words} ({details})" if details else words

    listed = "; ".join(map(told, found))
    return [
        f"Results with waived gates: {listed}. These runs count although the emulator was held to "
        "less than the default limits ask. The section on gates has the values."
    ]


def _mixed_machines(runs: Sequence[Run]) -> list[str]:
    found = Counter(one_machine(run.manifest) for run in runs if run.manifest)
    if len(found) < 2:
        return []
    listed = "; ".join(f"{count} on {machine}" for machine, count in found.items())
    return [
        f"Results of {len(found)} different machines are mixed here: {listed}. Only runs of one "
        "machine and code are pairs. An arm's own mean is of all of them: do not compare such "
        "times; use --out to keep machines apart."
    ]


def _mixed_versions(runs: Sequence[Run]) -> list[str]:
    commits = {code_of(run.manifest): str(run.manifest.get("commit") or "") for run in runs}
    known = [commits[each] or each[0] for each in commits if any(each)]
    if len(known) < 2:
        return []
    short = ", ".join(each[:10] + each[40:] for each in known[:4])
    more = ", ..." if len(known) > 4 else ""
    return [f"These runs are of {len(known)} versions of the lab's code ({short}{more})."]


def _pace(results: Evidence, summary: dict[str, Any]) -> list[str]:
    paces = [learning.pace(run.config) for run in results.ok_runs]
    kinds = {each["kind"] for each in paces}
    found = []
    given = sorted({each["compute_s"] for each in paces if each.get("compute_s")})
    if given and "paced" in kinds:
        times = " or ".join(f"{formatting.number(each, formatting.Unit('s'))} s" for each in given)
        found.append(
            f"Computing is paced: every iteration computes for {times}, however long this machine "
            "needs. The experiment therefore chooses the shares and ratios of computing and "
            "communicating; they are not measured."
        )
    if "payload-only" in kinds:
        found.append(
            ("Nothing is learnt" if len(kinds) == 1 else "In some runs nothing is learnt")
            + " (pace payload-only): payloads have the model's layers and random content. There "
            "is no accuracy, and training time means the rounds' communication."
        )
    over = [
        cell["pace_overrun_share"]["value"]
        for cell in summary["arms"].values()
        if cell.get("pace_overrun_share", {}).get("value")
    ]
    if over:
        found.append(
            f"Up to {formatting.number(max(over), formatting.PERCENT)} % of an arm's "
            "iterations took longer than their pace: this machine is too slow for it, so the runs "
            "computed for longer than the experiment chose."
        )
    return found


def _lost_workers(results: Evidence) -> list[str]:
    frame = logged(results)
    hurt = frame.filter(pl.col("workers_lost") > 0).height
    if not hurt:
        return []
    return [f"In {hurt} of {len(results.ok_runs)} ok runs training went on without lost workers."]


def _stood_still(runs: Sequence[Run]) -> list[str]:
    """The first ok runs in which a host's program was stopped: their times hold the pause."""
    remarks = [f"{run.key}: {run.reason}." for run in runs if run.verdict == "ok" and run.reason]
    more = len(remarks) - _FEW
    return [*remarks[:_FEW], *([f"{more} more runs have such a pause."] if more > 0 else [])]


def _without_an_end(results: Evidence, summary: dict[str, Any]) -> list[str]:
    """Say of which learning runs the means lack the final value: what is left would flatter."""
    metric = summary.get("task_metric")
    if not metric:
        return []
    rows = logged(results).filter(pl.col(metric).is_null())
    lacking = set(rows["run_key"]) if rows.height else set()
    learning_runs = [
        each for each in results.ok_runs if learning.pace(each.config)["kind"] != "payload-only"
    ]
    listed = [f"{run.arm} seed {run.seed}" for run in learning_runs if run.key in lacking]
    if not listed:
        return []
    more = ", ..." if len(listed) > 3 else ""
    return [
        f"{len(listed)} of {len(learning_runs)} trainings end without a finite {metric} "
        f"({', '.join(listed[:3])}{more}): they diverged. Means are of the others, and so look "
        "better than the arm is."
    ]


def _left_out(results: Evidence) -> list[str]:
    """What was measured and is in no table, with the reason of the first."""
    runs = results.left_out
    if not runs:
        return []
    first = f"{runs[0].key}: {runs[0].note}"
    count = "1 ok run on disk is" if len(runs) == 1 else f"{len(runs)} ok runs on disk are"
    return [f"{count} in no table ({first}). The section on runs has the list."]
