"""Recomputes what is kept in the repository for `./lab verify-results`, and says what differs."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from analysis.report import kept_results, sentences, verification
from analysis.statistics.intervals import difference_interval, ratio_interval
from testbed.bench import study
from testbed.bench.factorial import console as factorial
from testbed.bench.factorial.findings import Findings
from testbed.experiment.run import key_of
from testbed.shared.yaml_input import InputError


def verify(*, write: bool, root: Path = kept_results.ROOT) -> bool:
    """Print what was recomputed and what differs; returns whether nothing does."""
    others = {"tolerance": of_tolerance(root), "factorial": of_factorial(root)}
    count = len(verification.results(root))
    print(f"recomputing {count} kept results, then the numbers of the pages", flush=True)
    try:
        if write:
            verification.renew(root=root, others=others)
        found = verification.verify(root=root, others=others, key_of=key_of, say=_say)
        found.differences.extend(_of_table(root, factorial.tables))
    except ValueError as error:
        raise InputError(str(error)) from None
    for line in found.remarks:
        print(line)
    for line in found.differences:
        print(f"differs: {line}", file=sys.stderr)
    agrees = "all agree with what is kept" if not found.differences else "not all agree"
    print(f"{len(found.recomputed)} results recomputed, {len(found.older)} older: {agrees}")
    return not found.differences


def _say(line: str) -> None:
    print(line, flush=True)


def of_tolerance(root: Path) -> sentences.Resolver:
    """How much worse than without loss, paired by seed, in points of accuracy or per cent.

    Entries such as `digits/early-stop/in-order/zero/always 0.4` of the trainings that a former
    bench left behind.
    """

    def entry(path: str) -> sentences.Entry:
        group, loss = path.split()
        what = ("task", "cause", "order", "filling", "when", "loss")
        wanted = (*group.split("/"), float(loss))
        trainings = _records(root, "bench", "tolerance")
        lossy = {e["seed"]: e for e in trainings if tuple(e[key] for key in what) == wanted}
        whole = {e["seed"]: e for e in trainings if (e["task"], e["loss"]) == (wanted[0], 0)}
        seeds = sorted(lossy)
        if not seeds:
            raise LookupError(path)
        worse, better = ([of[seed]["final"] for seed in seeds] for of in (lossy, whole))
        if lossy[seeds[0]]["metric"] == "accuracy":
            points = ([100 * each for each in side] for side in (better, worse))
            return difference_interval(*points).as_json()
        ratio = ratio_interval(worse, better).as_json()
        return {key: 100 * ratio[key] - 100 for key in ("value", "low", "high")} | {"n": ratio["n"]}

    return entry


def of_factorial(root: Path) -> sentences.Resolver:
    """The entries of the factorial, such as `effect mlp/sgd order=rotating`."""

    @cache
    def found() -> Findings:
        return Findings(_records(root, "factorial", "factorial"))

    return lambda path: found().entry(path)


def _of_table(root: Path, tables: study.Tables) -> list[str]:
    """What is wrong with the kept tables of the factorial; nothing where it is not kept."""
    path = _kept(root, "factorial", "factorial")
    document = path.with_suffix(".md")
    if not path.is_file():
        return []
    kept = document.read_text(encoding="utf-8") if document.is_file() else ""
    same = kept == study.markdown(tables, _records(root, "factorial", "factorial"))
    return [] if same else [f"{document.relative_to(root)}: not the table of {path.name}"]


def _records(root: Path, folder: str, name: str) -> list[Any]:
    found: list[Any] = json.loads(_kept(root, folder, name).read_text(encoding="utf-8"))
    return found


def _kept(root: Path, folder: str, name: str) -> Path:
    return root / kept_results.RESULTS / folder / f"{name}.json"
