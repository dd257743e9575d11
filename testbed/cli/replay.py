"""Lists the claims of papers, runs the experiments that test them, and writes what came out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from analysis.data import kept_rows
from analysis.report import kept_results
from analysis.statistics import ENOUGH_SEEDS
from analysis.summary import claims
from analysis.summary.claims import Claim
from analysis.summary.document import summarise
from analysis.tables.claims import Kept, claims_table, comparisons
from analysis.tables.rendering import to_markdown, to_text
from testbed.cli import execution
from testbed.cli.options import LabExecution
from testbed.cli.terminal import say, show_table
from testbed.machine import steadiness
from testbed.shared import run_directory
from testbed.shared.input_error import InputError

FOLDER = "replay"  # below that of all results: no experiment may have its name
_TIME = re.compile(r"(\d+(?:\.\d+)?)(m|h)")
_STORED = kept_results.ROOT / kept_results.RESULTS


@dataclass(frozen=True, kw_only=True)
class Test:
    """The test of a claim: some arms of an experiment, in the lab or in virtual time."""

    claim: Claim
    experiment: str
    simulated: bool
    minutes: float

    def command(self) -> str:
        verb = "simulate" if self.simulated else "run"
        return f"./lab {verb} {self.experiment} --arms {','.join(sorted(self.claim.arms))}"


def tests() -> list[Test]:
    """The tests of all claims that stored results have, in the order of the claims."""
    kept = []
    for path in sorted(_STORED.glob(f"*/{kept_rows.MANIFEST}")):
        names = (kept_rows.EXPERIMENT, kept_rows.MANIFEST, kept_results.SUMMARY)
        document, manifest, summary = kept_results.read(path.parent, *names)
        if kept_results.seeds(summary) >= ENOUGH_SEEDS:  # fewer decide nothing
            kept.append((path.parent, document, kept_results.is_simulated(manifest)))
    return [
        Test(
            claim=claim,
            experiment=document["experiment"],
            simulated=simulated,
            minutes=sum(kept_rows.wall_s_by_arm(folder).get(arm, 0) for arm in claim.arms) / 60,
        )
        for claim in claims.load()
        for folder, document, simulated in kept
        if claim.paper and claim.id in (document["published"] or ())
        if set(claim.arms) <= set(document["arms"])
    ]


def show(console: Console) -> None:
    rows = [
        (test.claim.id, test.claim.paper, test.claim.title, f"{test.minutes:.0f}", test.command())
        for test in tests()
    ]
    show_table(console, ("claim", "of", "says", "minutes", "command"), rows)
    say(console, "./lab replay ID...  or  --within 60m  runs them; --kept shows what came out here")


def chosen(ids: Sequence[str], within: str | None) -> list[Test]:
    """The tests of some claims, in their order; as many as fit into so much time."""
    every = tests()
    valid = list(dict.fromkeys(test.claim.id for test in every))
    for name in ids:
        if name not in valid:
            raise InputError(f"replay {name}: unknown claim; valid: {', '.join(valid)}")
    picked = [test for test in every if not ids or test.claim.id in ids]
    if within is None:
        return picked
    match = _TIME.fullmatch(within)
    if match is None:
        raise InputError(f"--within {within}: not a time; valid: for example 60m or 2h")
    left = float(match[1]) * (60 if match[2] == "h" else 1)
    shortest = min(test.minutes for test in picked)
    if left < shortest:
        raise InputError(
            f"--within {within}: the shortest claim takes {shortest:.0f}m; valid: more"
        )
    fitting: list[Test] = []
    for test in picked:  # claims share runs, which take their time once
        shared = any(test.command() == other.command() for other in fitting)
        if shared or test.minutes <= left:
            fitting.append(test)
            left -= 0 if shared else test.minutes
    return fitting


def run(picked: Sequence[Test], results: Path, console: Console) -> bool:
    """Run tests of claims, and write the page after each of them; tell whether all runs were ok."""
    in_lab = [test for test in picked if not test.simulated]
    if in_lab and (machine := steadiness.probe()).rate_bps is None:
        simulated = [test.claim.id for test in picked if test.simulated]
        words = f"in virtual time: ./lab replay {' '.join(simulated)}" if simulated else "there"
        raise InputError(f"replay: {machine.sentence()}; valid: {words}")
    all_ok = True
    for command, test in {test.command(): test for test in picked}.items():
        say(console, command)
        options = LabExecution(name=test.experiment, arms=",".join(test.claim.arms), out=results)
        all_ok &= execution.run(options, simulated=test.simulated)
        page = write(picked, results)
    say(console, str(page))
    return all_ok


def write(picked: Sequence[Test], results: Path) -> Path:
    """Write `does-it-hold.md` and `replay.json` of what is in a folder of results."""
    from analysis.data.load import load

    kept = []
    for name in dict.fromkeys(test.experiment for test in picked):
        if not (results / name).is_dir():
            continue
        evidence = load(results, name)
        wall_s: dict[str, float] = {}
        for one in (*evidence.runs, *evidence.others):
            wall_s[one.arm] = wall_s.get(one.arm, 0.0) + (one.wall_s or 0.0)
        simulated = any(kept_results.is_simulated(one.manifest) for one in evidence.ok_runs)
        kept.append(Kept(summary=summarise(evidence), simulated=simulated, wall_s=wall_s))
    folder = results / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "claim": claim.id,
            "factors": value.factors,
            "metric": value.metric,
            "verdict": value.verdict,
        }
        | {"ours": value.entry["ours"], "theirs": list(claim.bounds)}
        for claim in claims.load()
        for group in comparisons(claim, kept)
        for value in group.values
    ]
    run_directory.write_json(folder / "replay.json", {"schema": 1, "claims": rows})
    table = claims_table(kept, {test.claim.id for test in picked})
    run_directory.write_text(folder / "does-it-hold.md", to_markdown(table))
    return folder / "does-it-hold.md"


def show_kept(console: Console) -> None:
    width = console.width if console.is_terminal else None
    console.print(to_text(claims_table(kept_results.kept_for_claims(_STORED)), width=width))
