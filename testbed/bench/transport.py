"""`./lab bench transport` and `peer`: measures cases, prints them, writes records and figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import NullLocator
from rich.console import Console

from analysis.figures import style
from testbed.bench import cases, measurement, records
from testbed.bench.cases import Selection
from testbed.bench.peer import Peer
from testbed.bench.records import INTERVALS, NARROW, TIME_S
from testbed.experiment import estimates
from testbed.shared.yaml_input import InputError

SCHEMA = 2  # 1: without intervals and processor time by bytes on the wire
_COLUMNS = (
    *("case", "completion", "interval", "n", "/ bound", "goodput"),
    *("CPU s/GB send", "receive", "on the wire: send", "receive", "control", "note"),
)
# What of the cases the figure shows.
_DRAWN_TOLERANCE, _DRAWN_RATE_BPS, _DRAWN_PAYLOAD_BYTES = 0.008, 100_000_000, 1_000_000
_RATIOS = (1, 2, 5, 10, 20, 50, 100, 200)
Record = Mapping[str, Any]


def run(selection: Selection, *, json_file: Path | None, peer: Peer | None = None) -> bool:
    expected = selection.cases()
    if not expected:
        every = replace(selection, pattern="*").cases()
        such = ", ".join({case.name.split("/")[0]: case.name for case in every}.values())
        raise InputError(f"--cases {selection.pattern}: matches none; valid: such as {such}")
    picture = None if json_file is None else json_file.with_suffix(".png")
    if picture is not None and picture == json_file:
        raise InputError(f"--json {json_file}: the figure would replace it; valid: another ending")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    case_s = 1 if selection.quick else TIME_S + 2  # and a lab for most
    about = estimates.in_words(len(expected) * case_s)
    console.print(f"{len(expected)} cases, one after another, about {about}")
    facts = records.machine()
    measured: list[dict[str, Any]] = []
    console.print(" | ".join(_COLUMNS))
    for number, record in enumerate(measurement.measure(selection, peer), start=1):
        measured.append(record)
        console.print(f"{number}/{len(expected)} {' | '.join(cells(record))}")
    if json_file is not None and picture is not None:
        records.write(json_file, measured, facts, schema=SCHEMA)
        console.print(f"records: {json_file}")
        if draw(measured, picture):
            console.print(f"figure: {picture}")
    must = {cases.OURS, selection.other}
    return all(record["status"] == "ok" for record in measured if record["peer"] in must)


def cells(record: Record) -> list[str]:
    if record["status"] != "ok":
        late = record["status"] == "timeout"
        note = f"not done in {record['limit_s']:g} s" if late else record["status"]
        return [record["case"], *["-"] * (len(_COLUMNS) - 2), note]
    notes = []
    if not record["narrow"]:
        notes.append(f"wide: an interval beyond {NARROW:.0%}")
    if record["jain"] is not None:
        notes += [f"link {record['link_busy']:.1%} busy", f"Jain {record['jain']:.3f}"]
    ends_s = record["completion_low_s"], record["completion_high_s"]
    spread = "-" if None in ends_s else "..".join(map(_time, ends_s))
    return [
        *(record["case"], _time(record["completion_s"]), spread, str(record["n"])),
        _number(record["ratio_to_bound"], ".2f"),
        f"{record['goodput_bps'] / 1e6:.4g} Mbit/s",
        *(_number(record[key], ".2f") for key in INTERVALS[1:]),
        *(_number(record["control_share"], ".2%"), ", ".join(notes)),
    ]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def draw(records: Iterable[Record], path: Path) -> bool:
    """Draw completion over the byte bound against loss; False when no case of it was measured."""
    lines = _lines(records)
    if not lines:
        return False
    looks = style.arm_styles(list(lines))
    with style.settings():
        figure, (axes,) = style.new_panels(1)
        for label, points in lines.items():
            drawn, (losses, ratios, done) = looks[label], np.array(points).T
            common: Any = {"color": drawn.colour.light, "marker": drawn.marker}
            axes.plot(
                losses[done == 1], ratios[done == 1], linestyle=drawn.line, label=label, **common
            )
            # Drawn at the time that it had, a lower limit.
            common |= {"markerfacecolor": "none", "linestyle": "none"}
            axes.plot(losses[done == 0], ratios[done == 0], **common)
        all_losses = sorted({loss for points in lines.values() for loss, _, _ in points})
        axes.set_xscale("function", functions=(np.sqrt, np.square))  # spreads the losses
        axes.set_xticks(all_losses, [f"{loss * 100:g} %" for loss in all_losses])
        axes.set_yscale("log")
        axes.set_yticks(_RATIOS, map(str, _RATIOS))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        worst = max(ratio for points in lines.values() for _, ratio, _ in points)
        axes.set_ylim(0.9, 8 * worst)  # the legend lies above the lines
        axes.axhline(1.0, color=style.MUTED.light, linewidth=0.8)
        axes.set_xlabel("loss of data packets")
        axes.set_ylabel("completion / byte bound")
        axes.set_title("1 MB at 100 Mbit/s; hollow: not done in time", fontsize=10, loc="left")
        axes.legend(loc="upper left", ncols=2)
        figure.savefig(path, dpi=160)
    return True


def _lines(records: Iterable[Record]) -> dict[str, list[tuple[float, float, bool]]]:
    """Map names to (loss, ratio, finished) in ascending loss, for 100 Mbit/s without delay."""
    lines: dict[str, list[tuple[float, float, bool]]] = {}
    for record in records:
        ours = record["peer"] == "ours"
        plain = record["added_rtt_s"] == 0 and record["workers"] == 1
        plain = plain and record["rate_bps"] == _DRAWN_RATE_BPS
        plain = plain and record["payload_bytes"] == _DRAWN_PAYLOAD_BYTES
        if not plain or (ours and record["tolerance"] != _DRAWN_TOLERANCE):
            continue
        label = f"ours, {record['repair']}" if ours else record["peer"]
        done = record["status"] == "ok"
        ratio = record["ratio_to_bound"] if done else record["limit_s"] / record["byte_bound_s"]
        lines.setdefault(label, []).append((record["loss"], ratio, done))
    return {label: sorted(points) for label, points in lines.items() if len(points) > 1}
