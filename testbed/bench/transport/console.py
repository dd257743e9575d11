"""Prints the benchmark of the transport, also beside an earlier one; writes records and figure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from rich.console import Console
from rich.table import Table

from analysis.figures import style
from testbed.bench import record_file
from testbed.bench.peer.adapter import Peer
from testbed.bench.transport import cases, measurement
from testbed.bench.transport.cases import Selection
from testbed.bench.transport.records import INTERVALS, NARROW, TIME_S, ends_of
from testbed.experiment import estimates
from testbed.shared.yaml_input import InputError

SCHEMA = 2  # 1: without intervals and processor time by bytes on the wire
_COLUMNS = (
    *("case", "completion", "interval", "n", "/ bound", "goodput"),
    *("CPU s/GB send", "receive", "on the wire: send", "receive", "control", "note"),
)
_FEW = 5
# What of the cases the figure shows.
_DRAWN_TOLERANCE, _DRAWN_RATE_BPS, _DRAWN_PAYLOAD_BYTES = 0.008, 100_000_000, 1_000_000
_CHANGES = ("case", "completion", "CPU send", "receive", "on the wire: send", "receive", "note")
Record = Mapping[str, Any]
# How far apart, as a factor, intervals of two runs of the same code often are: they know only
# what varies within a run. Where no link holds the pace, completion is processor time too.
OF_CPU, OF_LINK = 1.2, 1.02
# What makes a case another one, under the same name.
_PARAMETERS = (
    *("rate_bps", "added_rtt_s", "loss", "workers", "offloads", "payload_bytes", "tolerance"),
    *("repair", "congestion_control", "chunk_bytes", "peer"),
)
_MACHINE = ("cpu", "cpus", "kernel", "compiled")
_MOST_LOAD = 0.5  # processes per processor: what two runs' loads may differ by without a word


def run(
    selection: Selection,
    *,
    json_file: Path | None,
    compare: Path | None = None,
    peer: Peer | None = None,
) -> bool:
    """Measure, print and write; return whether every case finished that has to."""
    expected = selection.cases()
    if not expected:
        raise InputError(_no_case(selection))
    picture = None if json_file is None else json_file.with_suffix(".png")
    if picture is not None and picture == json_file:
        raise InputError(f"--json {json_file}: the figure would replace it; valid: another ending")
    earlier = None
    if compare is not None:
        earlier = read_earlier(compare, (case.name for case in expected))
    console = Console(highlight=False, markup=False, soft_wrap=True)
    each_s = 1 if selection.size == "quick" else TIME_S + 2  # and a lab for most
    about = estimates.in_words(len(expected) * each_s)
    console.print(f"{len(expected)} cases, one after another, about {about}")
    facts = record_file.machine()
    records: list[dict[str, Any]] = []
    try:
        _show(console, _COLUMNS, _measured(selection, peer, console, records, len(expected)))
    except (KeyboardInterrupt, measurement.BenchError):
        if records and json_file is not None:
            # Beside the file: what an earlier run left there may be whole.
            partial = json_file.with_suffix(".interrupted.json")
            halves = [record | {"interrupted": True} for record in records]
            record_file.write(partial, halves, facts, schema=SCHEMA)
            console.print(f"records of {len(records)} of {len(expected)} cases: {partial}")
        raise
    if earlier is not None and compare is not None:
        compare_with(console, records, earlier, facts, compare)
    if json_file is not None and picture is not None:
        record_file.write(json_file, records, facts, schema=SCHEMA)
        console.print(f"records: {json_file}")
        if draw(records, picture):
            console.print(f"figure: {picture}")
    must = {cases.OURS, selection.other}
    return all(record["status"] == "ok" for record in records if record["peer"] in must)


def _measured(
    selection: Selection, peer: Peer | None, console: Console, records: list[Any], expected: int
) -> Iterator[list[str]]:
    """Append the records while they come, and yield the cells of each."""
    with console.status("") as status:

        def begins(name: str) -> None:
            status.update(f"{len(records) + 1}/{expected}  {name}")

        for record in measurement.measure(selection, peer, begins):
            records.append(record)
            place = [] if console.is_terminal else [f"{len(records)}/{expected}"]
            yield [*place, *cells(record)]


def _no_case(selection: Selection) -> str:
    everything = replace(selection, size="full")
    if number := len(everything.cases()):
        return f"--cases {selection.pattern}: matches none; with --full it matches {number}"
    first: dict[str, str] = {}
    for case in replace(selection, pattern="*").cases():
        first.setdefault(case.name.split("/")[0], case.name)
    kinds = ", ".join(sorted(first))
    such = ", ".join(first.values())
    return f"--cases {selection.pattern}: matches none; they begin with {kinds}; such as {such}"


def _show(console: Console, columns: tuple[str, ...], rows: Iterable[list[str]]) -> None:
    """Print rows: on a terminal a table of those that came, else lines while they come."""
    table = Table(*columns, box=None)
    try:
        for number, row in enumerate(rows):
            if console.is_terminal:
                table.add_row(*row)
            else:
                console.print(*[" | ".join(columns)] * (number == 0), " ".join(row), sep="\n")
    finally:
        if table.rows:
            console.print(table)


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
    return [
        *(record["case"], _time(record["completion_s"]), _spread(record), str(record["n"])),
        _number(record["ratio_to_bound"], ".2f"),
        f"{record['goodput_bps'] / 1e6:.4g} Mbit/s",
        *(_number(record[key], ".2f") for key in INTERVALS[1:]),
        *(_number(record["control_share"], ".2%"), ", ".join(notes)),
    ]


def _spread(record: Record) -> str:
    """The interval; of a few values that scatter it says little: those at their ends."""
    low_s, high_s = record["completion_low_s"], record["completion_high_s"]
    if record["n"] == 1 or low_s is None:
        return "-"
    if record["n"] < _FEW and not record["narrow"]:
        least, most = record["completion_min_s"], record["completion_max_s"]
        return f"min {_time(least)}, max {_time(most)}"
    return f"{_time(low_s)}..{_time(high_s)}"


@dataclass(frozen=True)
class Change:
    """One value of one case, over what it was."""

    ratio: float | None
    apart: bool | None


def read_earlier(path: Path, names: Iterable[str]) -> dict[str, Record]:
    """The earlier run's records of these cases, by name."""
    place = f"--compare {path}"
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{place}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{place}: is no JSON; expected what --json wrote") from None
    if not isinstance(records, list) or not all(_is_record(each) for each in records):
        raise InputError(
            f"{place}: is no list of this benchmark's cases; expected what --json wrote"
        )
    earlier = {each["case"]: each for each in records}
    common = {name: earlier[name] for name in names if name in earlier}
    if not common:
        kinds = ", ".join(sorted({name.split("/")[0] for name in earlier})) or "none at all"
        raise InputError(f"{place}: has none of these cases; its own begin with {kinds}")
    return common


def _is_record(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and isinstance(record.get("case"), str)
        and {"status", "completion_s", "machine"} <= record.keys()
    )


def doubts(earlier: Mapping[str, Record], facts: Record) -> list[str]:
    """What makes a comparison doubtful, a line for each."""
    then = next(iter(earlier.values()))["machine"]
    lines = []
    if any(record.get("interrupted") for record in earlier.values()):
        lines.append("was interrupted: it has not all cases")
    differing = [key for key in _MACHINE if then.get(key) != facts.get(key)]
    if differing:
        words = ", ".join(f"{key} {then.get(key)} (now {facts.get(key)})" for key in differing)
        lines.append(f"was measured on another machine: {words}")
    loads = [each["load_average"][0] for each in (then, facts) if each.get("load_average")]
    if len(loads) == 2 and abs(loads[0] - loads[1]) > _MOST_LOAD * facts["cpus"]:
        lines.append(f"was measured at a load of {loads[0]:.2f} (now {loads[1]:.2f})")
    return lines


def changes_of(now: Record, then: Record) -> dict[str, Change] | str:
    """The changes of a case by the record's keys; or why there are none, in words."""
    differing = [key for key in _PARAMETERS if then.get(key) != now.get(key)]
    if differing:
        key = differing[0]
        return f"another case then: {key} was {then.get(key)}, is {now.get(key)}"
    if now["status"] != "ok" or then["status"] != "ok":
        same = now["status"] == then["status"]
        return f"still {now['status']}" if same else f"was {then['status']}, is {now['status']}"
    return {key: Change(_ratio(now, then, key), _apart(now, then, key)) for key in INTERVALS}


def _ratio(now: Record, then: Record, key: str) -> float | None:
    left, right = now.get(key), then.get(key)
    return left / right if left is not None and right else None


def _apart(now: Record, then: Record, key: str) -> bool | None:
    low, high = ends_of(key)
    if any(record.get(low) is None for record in (now, then)):
        return None
    by_chance = OF_LINK if key == "completion_s" and now["rate_bps"] is not None else OF_CPU
    return bool(max(now[low] / then[high], then[low] / now[high]) > by_chance)


def compare_with(
    console: Console,
    records: list[dict[str, Any]],
    earlier: Mapping[str, Record],
    facts: Record,
    path: Path,
) -> None:
    console.print(
        f"now over {path}; * where the intervals are a factor of {OF_CPU:g} apart "
        f"({OF_LINK:g}: completion on a link), as runs of the same code seldom are"
    )
    for remark in doubts(earlier, facts):
        console.print(f"{path}: {remark}")
    both = [record for record in records if record["case"] in earlier]
    changes = (changes_of(record, earlier[record["case"]]) for record in both)
    _show(console, _CHANGES, map(_changes, both, changes))


def _changes(record: Record, changes: dict[str, Change] | str) -> list[str]:
    if isinstance(changes, str):
        return [record["case"], *["-"] * (len(_CHANGES) - 2), changes]
    cells = [_number(each.ratio, ".2f") + ("*" if each.apart else "") for each in changes.values()]
    return [record["case"], *cells, ""]


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
        figure = Figure(figsize=(5.4, 3.6))
        axes = figure.add_subplot()
        for label, points in lines.items():
            look = looks[label]
            common: Any = {"color": look.colour.light, "marker": look.marker}
            axes.plot(
                [_place(loss) for loss, _, done in points if done],
                [ratio for _, ratio, done in points if done],
                linestyle=look.line,
                label=label,
                **common,
            )
            for loss, ratio, done in points:
                if not done:  # drawn at the time that it was given, a lower limit
                    x, arrow = _place(loss), {"arrowstyle": "->", "color": look.colour.light}
                    axes.annotate("", (x, ratio * 1.35), (x, ratio), arrowprops=arrow)
                    axes.plot(x, ratio, markerfacecolor="none", **common)
        losses = sorted({loss for points in lines.values() for loss, _, _ in points})
        axes.xaxis.set_major_locator(FixedLocator([_place(loss) for loss in losses]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([f"{loss * 100:g} %" for loss in losses])
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100, 200]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        worst = max(ratio for points in lines.values() for _, ratio, _ in points)
        axes.set_ylim(0.9, 8 * worst)  # the legend lies above the lines
        axes.axhline(1.0, color=style.MUTED.light, linewidth=0.8)
        axes.set_xlabel("loss of data packets")
        axes.set_ylabel("completion / byte bound")
        axes.set_title("1 MB at 100 Mbit/s; arrows: not done in time", fontsize=10, loc="left")
        axes.legend(loc="upper left", ncols=2)
        figure.savefig(path, dpi=160)
    return True


def _place(loss: float) -> float:
    """Where a loss is on the axis: the square root spreads the losses."""
    return loss**0.5


def _lines(records: Iterable[Record]) -> dict[str, list[tuple[float, float, bool]]]:
    """Name -> (loss, ratio, whether it finished) in ascending loss, for 100 Mbit/s, no delay."""
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
