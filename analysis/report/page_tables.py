"""Tables of pages that are not of one experiment: the answers in README, and the benches'."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import formatting
from analysis.data import kept_rows
from analysis.data.frames import per_run
from analysis.data.metrics import TASK_METRICS, describe
from analysis.report.kept_results import read
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


def answers(results: Path) -> Table | None:
    """A row for each question whose result is kept."""
    questions = list(csv.DictReader(_QUESTIONS.read_text(encoding="utf-8").splitlines()))
    kept = [each for each in questions if (results / each["result"]).is_dir()]
    columns = ["question", "compared", "ours", "answer", "kept result"]
    rows = [
        row(each["asks"], *_answer(each, results / each["result"]), each["result"]) for each in kept
    ]
    return Table(title="", columns=columns, rows=rows, numeric=False) if rows else None


def _answer(asked: Mapping[str, str], folder: Path) -> list[Cell]:
    """What was compared, what came out, and the answer."""
    point = dict(each.split("=") for each in asked["point"].split(";") if each)
    if asked["paper"]:
        (summary,) = read(folder)
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


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """A table of a bench: which case its rows and columns name, and what a cell shows of it.

    A case is the row's part of its name and then the column's, which may name another file first.
    Each key has a factor and decimals. With `ratio_of`, a cell is the ratio of two cases.
    """

    rows: Mapping[str, str]
    columns: Mapping[str, str]
    keys: Sequence[tuple[str, float, int]]
    unit: str = ""
    ratio_of: tuple[str, str] | None = None


_CPU = [(f"cpu_s_per_gb_{end}", 1.0, 2) for end in ("sender", "receiver")]
_REPAIRS = ("passes", "selective", "streaming")
_LINKS = {
    f"{rate}bit/s, {size}, {loss} % lost": f"{rate.replace(' ', '')}/loss-{loss}%/"
    for rate, size, losses in (("100 M", "1 MB", (0, 60, 90)), ("1 G", "20 MB", (0, 60)))
    for loss in losses
}
_BENCHES = {
    "bench-bound": _Bench(
        rows={f"{each} % lost": f"100M/loss-{each}%/" for each in (0, 1, 10, 30, 60, 90)},
        columns={
            **{each: f"P-0.8%/{each}" for each in _REPAIRS},
            **{f"TCP {each}": f"tcp-{each}" for each in ("reno", "cubic", "bbr")},
        },
        keys=[("ratio_to_bound", 1.0, 2)],
    ),
    "bench-round-trip": _Bench(
        rows={
            f"{size}, {loss} % lost": f"100M/rtt-10ms/loss-{loss}%/{part}"
            for size, part in (("two round trips", "short/"), ("1 MB", ""))
            for loss in (60, 90)
        },
        columns={each: each for each in _REPAIRS},
        keys=[("completion_s", 1e3, 0)],
        unit=" ms",
    ),
    "bench-fast": _Bench(
        rows={"offloads on": "veth/offloads-on/", "offloads off": "veth/offloads-off/"},
        columns={
            **{each: each for each in ("passes", "streaming", "tcp-cubic", "gloo")},
            "passes, CRC32C": "passes+crc32c",
            "passes, shuffled": "passes+shuffled",
            "passes, largest first": "passes+largest-first",
        },
        keys=[("goodput_bps", 1e-9, 1), *_CPU],
    ),
    "bench-paced": _Bench(
        rows={
            "100 Mbit/s, none lost": "100M/loss-0%/P-0%/",
            "100 Mbit/s, 90 % lost": "100M/loss-90%/P-0.8%/",
            "1 Gbit/s, 20 MB": "1G/20MB/",
            "10 Gbit/s, 244 MB": "10G/244MB/",
        },
        columns={
            **{each: each for each in ("passes", "streaming", "tcp-cubic")},
            **{f"{each}, with tags": f"{each}+auth" for each in ("passes", "streaming")},
        },
        keys=_CPU,
    ),
    "bench-shared": _Bench(
        rows={
            each: f"100M/incast-8/{each}"
            for each in ("fixed", "timely", "reno", "cubic", "bbr", "ltp", "tcp-cubic", "tcp-bbr")
        },
        columns={"link busy (%) / Jain's index": ""},
        keys=[("link_busy", 100.0, 1), ("jain", 1.0, 2)],
    ),
    "bench-peer": _Bench(
        rows=_LINKS,
        columns={
            "the authors' code": "peer:{}/dblp-authors",
            "the same with TCP_NODELAY": "peer-nodelay:{}/dblp-authors-nodelay",
            "our passes": "peer:{}/passes",
        },
        keys=[("completion_s", 1.0, 3)],
        unit=" s",
        ratio_of=("P-0.8%", "P-40.8%"),
    ),
}


def bench(name: str, results: Path) -> Table | None:
    """The table of a bench that is called so, if it is kept."""
    shown = _BENCHES.get(name)
    if shown is None or not (results / "bench").is_dir():
        return None
    records = {
        (path.stem, each["case"]): each
        for path in (results / "bench").glob("*.json")
        for each in json.loads(path.read_text(encoding="utf-8"))
    }

    def of(head: str, tail: str) -> str:
        file, _, tail = tail.rpartition(":")
        pair = [(file or "transport", head + tail.format(each)) for each in shown.ratio_of or ("",)]
        return _shown(shown, [records[case] for case in pair if case in records])

    return Table(
        title="",
        columns=["", *shown.columns],
        rows=[
            row(label, *(of(head, tail) for tail in shown.columns.values()))
            for label, head in shown.rows.items()
        ],
    )


def _shown(shown: _Bench, cases: Sequence[Mapping[str, Any]]) -> str:
    """What a cell says of its cases: numbers, or why there are none."""
    if not cases:
        return formatting.DASH
    for case in cases:
        if case["status"] == "timeout":
            return f"> {case['limit_s']:g} s"
        if case["status"] != "ok":
            return str(case["status"].partition(":")[0])
    numbers = " / ".join(
        f"{case[key] * factor:.{decimals}f}"
        for case in cases
        for key, factor, decimals in shown.keys
    )
    if shown.ratio_of is None:
        return numbers + shown.unit
    key = shown.keys[0][0]
    return f"{cases[0][key] / cases[1][key]:.1f} ({numbers}{shown.unit})"
