"""What a report costs: `python -m tests.benchmarks.report_cost [RUNS] [ROUNDS] [FOLDER]`.

Makes that many run directories (10,000 of 60 rounds) and writes their report twice: once from the
logs, and once from what the first kept. Prints time, peak memory and the page's size of each, and
fails beyond the limits: 60 s and 2 GiB for the second, 5 MB for the page. A few hundred directories
are made whole (three workers, every transfer, 40 layers, impairments, samples); the others are of
other seeds and link to their logs. A folder that is named is kept, and used again if it is there.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

import analysis
from analysis.data import samples
from tests.analysis.build import EXPERIMENT, ResultsBuilder, write, write_lines

_ARMS = ("dblp", "fixed-low", "fixed-high", "dblp-stream", "tcp-cubic")
_LOSSES = (0.6, 0.7, 0.8, 0.9)
_WHOLE = 200  # directories of their own: ten seeds of each arm at each point
_LIMIT_S, _LIMIT_GIB, _LIMIT_MB = 60.0, 2.0, 5.0
_LINKS = [f"worker-{number}--s1" for number in range(1, 9)]
_QUEUES = pl.DataFrame(
    [
        {"t_s": number / 100, "link": link, "from": "s1", "backlog_bytes": number * 100}
        | {"backlog_packets": number, "sent_bytes": 0, "sent_packets": 0, "drops": 0}
        for number in range(500)
        for link in _LINKS
    ],
    schema=samples.QUEUES,
)
_PROCESSES = pl.DataFrame(
    [
        {"t_s": number / 10, "name": host, "pid": place, "host": host, "cpu_s": number / 20}
        | {"rss_bytes": 1 << 28}
        for number in range(50)
        for place, host in enumerate(("server", "worker-1", "worker-2", "worker-3"))
    ],
    schema=samples.PROCESSES,
)


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--once"]:
        _once(Path(words[1]))
        return
    runs = int(words[0]) if words else 10_000
    rounds = int(words[1]) if len(words) > 1 else 60
    kept = Path(words[2]) if len(words) > 2 else None
    folder = kept or Path(tempfile.mkdtemp(prefix="report-cost-"))
    try:
        began = time.monotonic()
        if not (folder / EXPERIMENT / "plan.json").is_file():
            make(folder, runs=runs, rounds=rounds)
            print(f"{runs} runs of {rounds} rounds, made in {time.monotonic() - began:.1f} s")
        for title in ("from the logs", "from kept tables"):
            command = [sys.executable, "-m", __spec__.name, "--once", str(folder)]
            facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            print(
                f"report {title}: {facts['took_s']:.1f} s ({facts['cpu_s']:.1f} s of processors), "
                f"at most {facts['peak_gib']:.2f} GiB resident, page {facts['page_mb']:.1f} MB"
            )
    finally:
        if kept is None:
            shutil.rmtree(folder)
    print(f"limits of the second: {_LIMIT_S:.0f} s, {_LIMIT_GIB} GiB, page {_LIMIT_MB} MB")
    limits = {"took_s": _LIMIT_S, "peak_gib": _LIMIT_GIB, "page_mb": _LIMIT_MB}
    if any(facts[name] > limit for name, limit in limits.items()):
        sys.exit(1)


def _once(folder: Path) -> None:
    """One report in a process of its own, which prints what it cost."""
    began = time.monotonic()
    paths = analysis.write_report(folder)
    facts = {
        "took_s": time.monotonic() - began,
        "cpu_s": time.process_time(),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "page_mb": paths.index.stat().st_size / 1e6,
    }
    print(json.dumps(facts))


def make(folder: Path, *, runs: int, rounds: int) -> None:
    """Write the run directories: arms interleaved, points of a loss factor, seeds."""
    build = ResultsBuilder(folder, arms=_ARMS)
    whole: list[Path] = []
    for number in range(runs):
        seed, cell = divmod(number, len(_ARMS) * len(_LOSSES))
        loss, arm = _LOSSES[cell // len(_ARMS)], _ARMS[cell % len(_ARMS)]
        factors = {"impairments.0.q": loss}
        is_last = number == runs - 1
        if number >= _WHOLE:
            key = f"{arm}-s{seed}-{loss}"
            build.plan(key, arm=arm, seed=seed, factors=factors, write_it=is_last)
            _copy(whole[number % _WHOLE], folder, key, seed)  # of the same arm and point
            continue
        slow = 1 + 0.01 * seed + 0.05 * _ARMS.index(arm)
        directory = build.run(
            arm=arm,
            seed=seed,
            calm_s=0.1 * slow,
            burst_s=loss * slow,
            rounds=rounds,
            factors=factors,
            verdict="invalid" if number % 50 == 49 else "ok",
            workers=3,
            congestion_control="fixed",
            layers=40,
            critical=10,  # what the detector says of norms that stay the same
            plan=is_last,
        )
        (directory / "samples").mkdir()
        _lengthen(directory)
        _QUEUES.write_parquet(directory / "samples" / "queues.parquet")
        _PROCESSES.write_parquet(directory / "samples" / "processes.parquet")
        whole.append(directory)


def _lengthen(directory: Path) -> None:
    """Give a run what a real one has: facts of its machine, gates, when each step began."""
    facts = {"sysctls": {f"net.core.fact_{number}": number for number in range(120)}}
    gates = [
        {"name": f"gate {number}", "key": f"gate_{number}", "value": number / 7, "limit": 20.0}
        | {"outcome": "passed", "where": "worker-1", "note": "the worst of all links"}
        for number in range(17)
    ]
    for name, more in (("manifest", facts), ("status", {"gates": gates})):
        path = directory / f"{name}.json"
        write(path, json.loads(path.read_bytes()) | more)
    log = directory / "events" / "rounds.jsonl"
    write_lines(log, [_with_steps(json.loads(line)) for line in log.read_text().splitlines()])


def _with_steps(record: dict[str, Any]) -> dict[str, Any]:
    """A record of a round with its steps, half a millisecond apart."""
    began_s = 3.0 * record["round"]
    gather_s = began_s + record["compute_s"] + 0.0005
    broadcast_s = gather_s + record["gather_s"] + 0.0005
    ended_s = broadcast_s + record["broadcast_s"] + 0.0005
    times = {"gather_began_s": gather_s, "gather_ended_s": broadcast_s - 0.0005}
    return (
        record
        | times
        | {
            "began_s": began_s,
            "broadcast_began_s": broadcast_s,
            "ended_s": ended_s,
            "iteration_s": ended_s - began_s,
        }
    )


def _copy(of: Path, folder: Path, key: str, seed: int) -> None:
    """A run of the same arm and point with another seed, whose files are links."""
    new = folder / EXPERIMENT / key
    for path in sorted([of, *of.rglob("*")]):
        place = new / path.relative_to(of)
        if path.is_dir():
            place.mkdir()
        elif path.parent != of:
            os.link(path, place)
        else:
            document = json.loads(path.read_bytes())
            own = {"seed": seed, "key": key}
            write(place, document | {name: own[name] for name in own if name in document})


if __name__ == "__main__":
    main()
