"""What a report costs: `python -m tests.benchmarks.report_cost [RUNS] [ROUNDS]` prints it.

Makes that many run directories with the logs of a whole run (three workers, every transfer, 40
layers, impairments, samples of queues), writes their report, and prints the time and the memory
that it took. The aim is under 30 s and 1 GiB for 500 runs. With a third word, a folder, it is kept.
"""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

import analysis
from analysis.data import samples
from tests.analysis.build import ResultsBuilder

_ARMS = ("dblp", "fixed-low", "fixed-high", "dblp-stream", "tcp-cubic")
_LOSSES = (0.6, 0.7, 0.8, 0.9)
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


def main() -> None:
    words = sys.argv[1:]
    runs = int(words[0]) if words else 500
    rounds = int(words[1]) if len(words) > 1 else 60
    kept = Path(words[2]) if len(words) > 2 else None
    folder = kept or Path(tempfile.mkdtemp(prefix="report-cost-"))
    try:
        began = time.monotonic()
        make(folder, runs=runs, rounds=rounds)
        made = time.monotonic()
        paths = analysis.write_report(folder)
        took = time.monotonic() - made
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{runs} runs of {rounds} rounds, made in {made - began:.1f} s")
        print(f"report: {took:.1f} s, at most {peak:.2f} GiB resident (limits: 30 s, 1 GiB)")
        print(f"page: {paths.index.stat().st_size / 1e6:.1f} MB")
    finally:
        if kept is None:
            shutil.rmtree(folder)
    if took > 30 or peak > 1:
        sys.exit(1)


def make(folder: Path, *, runs: int, rounds: int) -> None:
    """Write the run directories: arms interleaved, points of a loss factor, seeds."""
    build = ResultsBuilder(folder, arms=_ARMS)
    for number in range(runs):
        seed, cell = divmod(number, len(_ARMS) * len(_LOSSES))
        loss, arm = _LOSSES[cell // len(_ARMS)], _ARMS[cell % len(_ARMS)]
        slow = 1 + 0.01 * seed + 0.05 * _ARMS.index(arm)
        directory = build.run(
            arm=arm,
            seed=seed,
            calm_s=0.1 * slow,
            burst_s=loss * slow,
            rounds=rounds,
            factors={"impairments.0.q": loss},
            verdict="invalid" if number % 50 == 49 else "ok",
            workers=3,
            layers=40,
            plan=number == runs - 1,
        )
        (directory / "samples").mkdir()
        _QUEUES.write_parquet(directory / "samples" / "queues.parquet")


if __name__ == "__main__":
    main()
