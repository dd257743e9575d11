"""Our congestion controls beside the kernel's of the same name, on the same link in the same run:

    python -m tests.benchmarks.congestion_controls [--only CONTROL,... ] [--scenarios NAME,...]
        [--trials N] [--minutes M] [--rate-mbps R] [--rtt-ms T] [--queue Q] [--json FILE]
    python -m tests.benchmarks.congestion_controls --read FILE...

Runs `bbr`, `reno` and `cubic` of ours and the kernel's in turn, and those that the kernel does not
have (`timely`, `ltp`, `fixed`) alone, through every scenario of `congestion_trials`, and that N
times (3), but begins none after M minutes (15). Prints tables of medians, with
the ratio of goodputs ours/kernel: the median of the trials' ratios and its interval of 95 %. The
link has R Mbit/s (50), T ms of round trip (10) and a queue of Q products of the two (1). Needs what
`./lab bench transport` needs. `--read` prints the tables of stored files together.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.bench import record_file, repetition
from testbed.lab import sandbox
from tests.benchmarks.congestion_trials import KERNEL, OURS, SCENARIOS, BottleneckPath, link, trial

CONTROLS = ("bbr", "cubic", "reno", "timely", "ltp", "fixed")
PARTS = ("start", "steady", "one-loss", "loss-1%", "halved", "doubled", "two-flows", "burst")
SCHEMA = 1
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_COLUMNS = (
    ("goodput", "goodput", "{:.3f}"),
    ("queue_mean", "queue mean", "{:.2f}"),
    ("queue_peak", "peak", "{:.2f}"),
    ("drops", "drops", "{:.0f}"),
    ("back", "back after", "{:.0f}"),
    ("jain", "Jain", "{:.3f}"),
)
Record = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--only", type=lambda text: _names(text, CONTROLS), default=CONTROLS)
    parser.add_argument("--scenarios", type=lambda text: _names(text, SCENARIOS))
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--rate-mbps", type=float, default=50.0)
    parser.add_argument("--rtt-ms", type=float, default=10.0)
    parser.add_argument("--queue", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", type=Path, nargs="+")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        _inside(given)
        return
    if given.read:
        _print([record for path in given.read for record in json.loads(path.read_text())])
        return
    record_file.require_place(given.json)
    facts = record_file.machine()
    facts |= {
        "command": shlex.join(
            ["python", "-m", "tests.benchmarks.congestion_controls", *sys.argv[1:]]
        ),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    records: list[Record] = []
    try:
        for record in _measured(sys.argv[1:]):
            records.append(record)
            print("#", record.get("error") or _line(record), file=sys.stderr, flush=True)
    finally:
        facts["load_average_after"] = os.getloadavg()
        found = [{**record, "machine": facts} for record in records]
        if given.json is not None:
            record_file.write(given.json, records, facts, schema=SCHEMA)
        _print(found)
    if any("error" in record for record in records):
        sys.exit(1)


def _names(text: str, valid: Iterable[str]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in valid:
            raise argparse.ArgumentTypeError(f"{name!r}; valid: {', '.join(valid)}")
    return names


def _commit() -> str:
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    folder = Path(__file__).parent
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _measured(arguments: list[str]) -> Iterator[Record]:
    with tempfile.TemporaryFile() as errors:
        process = sandbox.start(
            "tests.benchmarks.congestion_controls",
            *arguments,
            "--inside",
            stdout=subprocess.PIPE,
            stderr=errors.fileno(),
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
            if process.wait(30.0):
                errors.seek(0)
                raise RuntimeError(errors.read().decode(errors="replace"))
        finally:
            sandbox.stop(process)
            process.stdout.close()


def _inside(given: argparse.Namespace) -> None:
    """Run the trials; print a line of JSON for each part of each."""
    sandbox.end_with_lifeline()
    tempfile.tempdir = str(sandbox.prepare())
    with suppress(OSError):  # where allowed: less of what else the machine does
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    kernels = _AVAILABLE.read_text().split()
    arms = [
        (side, control)
        for control in given.only
        for side in (OURS, KERNEL)
        if side == OURS or control in kernels
    ]
    path = BottleneckPath(
        rate_bps=int(given.rate_mbps * 1e6), rtt_s=given.rtt_ms / 1e3, queue=given.queue
    )
    began_s = time.monotonic()
    with link(path) as network:
        for number in range(given.trials):
            for scenario in given.scenarios or SCENARIOS:
                for side, control in arms if number % 2 == 0 else reversed(arms):
                    if time.monotonic() - began_s > 60 * given.minutes:
                        return
                    where = {"side": side, "control": control, "trial": number}
                    try:
                        parts = trial(network, side, control, scenario)
                    except RuntimeError as error:
                        print(
                            json.dumps(where | {"part": scenario, "error": str(error)}),
                            file=results,
                        )
                        continue
                    for part, measures in parts.items():
                        about: Record = {"rate_bps": path.rate_bps, "rtt_s": path.rtt_s}
                        about |= {"queue": path.queue, "part": part}
                        print(json.dumps(where | about | measures), file=results)


def _line(record: Record) -> str:
    cells = [f"{key} {_cell([record[key]], form)}" for key, _, form in _COLUMNS if key in record]
    return f"{record['trial']} {record['side']} {record['control']} {record['part']}: " + ", ".join(
        cells
    )


def _print(records: list[Record]) -> None:
    """The tables, in Markdown."""
    good = [record for record in records if "error" not in record]
    for part in PARTS:
        rows = [record for record in good if record["part"] == part]
        if not rows:
            continue
        columns = [each for each in _COLUMNS if each[0] in rows[0]]
        heads = ["control", "n", *(title for _, title, _ in columns)]
        print(f"\n{part}: ours / kernel\n\n| {' | '.join([*heads, 'goodput, ratio'])} |")
        print("| --- " + "| ---: " * len(heads) + "|")
        for control in CONTROLS:
            ours, kernel = (
                {row["trial"]: row for row in rows if (row["side"], row["control"]) == key}
                for key in ((OURS, control), (KERNEL, control))
            )
            if not ours:
                continue
            cells = [f"`{control}`", str(len(ours))]
            for key, _, form in columns:
                each = [_cell([row[key] for row in side.values()], form) for side in (ours, kernel)]
                cells.append(" / ".join(each) if kernel else each[0])
            ratios = [
                ours[number]["goodput"] / kernel[number]["goodput"]
                for number in ours.keys() & kernel.keys()
                if kernel[number]["goodput"] > 0
            ]
            print(f"| {' | '.join([*cells, _ratio(ratios)])} |")
    for machine in {json.dumps(record["machine"], sort_keys=True) for record in records}:
        facts = json.loads(machine)
        loads = (facts["load_average"][0], facts["load_average_after"][0])
        print(
            f"\n{facts['command']}, {facts['date']}, commit {facts['commit']}, "
            f"{facts['cpus']} CPUs ({facts['cpu']}), kernel {facts['kernel']}, "
            f"load {loads[0]:.1f} before and {loads[1]:.1f} after"
        )


def _cell(values: list[float | None], form: str) -> str:
    """The median; "never" counts as more than any."""
    if not values:
        return "-"
    middle = statistics.median_high([float("inf") if each is None else each for each in values])
    return "never" if middle == float("inf") else form.format(middle)


def _ratio(ratios: list[float]) -> str:
    if not ratios:
        return "-"
    ends = repetition.interval(ratios)
    middle = f"{statistics.median(ratios):.2f}"
    return middle if ends is None else f"{middle} ({ends[0]:.2f} to {ends[1]:.2f})"


if __name__ == "__main__":
    main()
