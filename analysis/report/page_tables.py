"""Tables of pages that are not of one experiment: the answers in README, and the benches'."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import formatting
from analysis.data import kept_rows
from analysis.data.frames import per_run
from analysis.data.metrics import TASK_METRICS, describe
from analysis.report import kept_results
from analysis.statistics import (
    ENOUGH_SEEDS,
    Estimate,
    difference_interval,
    ratio_interval,
)
from analysis.summary.pairing import at_point, measured
from analysis.tables import rendering
from analysis.tables.published_values import overview_table
from analysis.tables.rendering import Cell, Table, row

# Whether the first arm has less of a metric than the second, at a point of a sweep; or what the
# verdict on a published value is.
_QUESTIONS = Path(__file__).with_name("questions.csv")


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table of this folder that says what pages show."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def answers(results: Path) -> Table | None:
    """A row for each question whose result is kept."""
    kept = [each for each in read(_QUESTIONS) if (results / each["result"]).is_dir()]
    columns = ["question", "compared", "ours", "answer", "kept result"]
    rows = [
        row(each["asks"], *_answer(each, results / each["result"]), each["result"]) for each in kept
    ]
    return Table(title="", columns=columns, rows=rows, numeric=False) if rows else None


def _answer(asked: Mapping[str, str], folder: Path) -> list[Cell]:
    """What was compared, what came out, and the answer."""
    point = dict(each.split("=") for each in asked["point"].split(";") if each)
    if asked["paper"]:
        (summary,) = kept_results.read(folder)
        points = [each for each in summary["points"] if point in ({}, each["factors"])]
        published = overview_table([{**summary, "points": points}]).rows
        _, arms, paper, ours, answer = next(
            each for each in published if asked["paper"] in each[0].text
        )
        return [Cell(text=arms.text, detail=f"paper: {paper.text}"), ours, answer]
    first, second, metric = (asked[name] for name in ("first", "second", "metric"))
    is_ratio = metric not in TASK_METRICS
    rows = at_point(per_run(kept_rows.read(folder)), point)
    pair = measured(rows, [first, second], [metric]).paired(first, second, metric, ratio=is_ratio)
    found = ratio_interval(*pair) if is_ratio else difference_interval(*pair)
    sign, unit = ("/", formatting.RATIO) if is_ratio else (" \u2212 ", formatting.POINTS)
    return row(
        Cell(
            text=first + sign + second,
            detail=formatting.joined(describe(metric).label, unit.symbol),
        ),
        rendering.measured(found, unit),
        _is_less(found, 1.0 if is_ratio else 0.0),
    )


def _is_less(found: Estimate, than: float) -> str:
    ends = found.values if found.n < ENOUGH_SEEDS else (found.low, found.high)
    known = [end for end in ends if end is not None]
    said = "yes" if max(known) < than else "no" if min(known) > than else "not told apart"
    return f"{said} (an indication: few seeds)" if found.n < ENOUGH_SEEDS else said


# The tables of benches. A case's name is that of a `row` and then of a `column`, which may name
# another file first; a `key` is shown by a factor and with so many decimals. With two cases after
# `ratio of`, a cell is their ratio, and `{}` in a column stands for each of them.
_BENCHES = Path(__file__).with_name("benches.csv")


def bench(name: str, results: Path) -> Table | None:
    """The table of a bench that is called so, if it is kept."""
    parts: dict[str, dict[str, str]] = {}
    for line in read(_BENCHES):
        if line["table"] == name:
            parts.setdefault(line["part"], {})[line["label"]] = line["value"]
    if not parts or not (results / "bench").is_dir():
        return None
    records = {
        (path.stem, each["case"]): each
        for path in (results / "bench").glob("*.json")
        for each in json.loads(path.read_text(encoding="utf-8"))
    }

    def of(head: str, tail: str) -> str:
        file, _, tail = tail.rpartition(":")
        cases = [(file or "transport", head + tail.format(each)) for each in parts["ratio of"]]
        return _shown(parts, [records[case] for case in cases if case in records])

    parts.setdefault("ratio of", {"": ""})
    return Table(
        title="",
        columns=["", *parts["column"]],
        rows=[
            row(label, *(of(head, tail) for tail in parts["column"].values()))
            for label, head in parts["row"].items()
        ],
    )


def _shown(parts: Mapping[str, Mapping[str, str]], cases: Sequence[Mapping[str, Any]]) -> str:
    """What a cell says of its cases: numbers, or why there are none."""
    if not cases:
        return formatting.DASH
    for case in cases:
        if case["status"] == "timeout":
            return f"> {case['limit_s']:g} s"
        if case["status"] != "ok":
            return str(case["status"].partition(":")[0])
    shown = {key: value.split() for key, value in parts["key"].items()}
    numbers = " / ".join(
        f"{case[key] * float(factor):.{decimals}f}"
        for case in cases
        for key, (factor, decimals) in shown.items()
    )
    numbers = " ".join([numbers, *parts.get("unit", {})])
    if len(parts["ratio of"]) == 1:
        return numbers
    key = next(iter(shown))
    return f"{cases[0][key] / cases[1][key]:.1f} ({numbers})"
