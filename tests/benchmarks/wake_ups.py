"""It measures how late workers begin their gathers in a lab: the `wakes_s` of a simulation.

    python -m tests.benchmarks.wake_ups FOLDER

FOLDER holds runs of a lab, such as `runs/lab-and-simulator`. A worker begins when the server has
released it, its program has woken up, and has come to its transfer. The time is from the begin of
the server's gather, by the clock that all of a lab's processes share. The first round is left out.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from testbed.shared import jsonl, run_directory


def lateness_s(folder: Path) -> dict[int, list[list[float]]]:
    """It returns each gather's latenesses in ascending order, by the number of workers."""
    gathers = defaultdict(list)
    for status in folder.glob("*/status.json"):
        if run_directory.read_json(status)["verdict"] != "ok":
            continue
        events = status.parent / "events"
        began_s = {
            row["round"]: row["gather_began_s"] for row in jsonl.read(events / "rounds.jsonl")
        }
        rounds = defaultdict(list)
        for path in events.glob("transfers-worker-*.jsonl"):
            for row in jsonl.read(path):
                if row["leg"] == "gather" and row["round"] > 0:
                    rounds[row["round"]].append(row["began_s"] - began_s[row["round"]])
        for late in rounds.values():
            gathers[len(late)].append(sorted(late))
    return gathers


def main() -> None:
    """Print the mean, and the median of the first worker to the last."""
    for workers, gathers in sorted(lateness_s(Path(sys.argv[1])).items()):
        ms = 1e3 * np.array(gathers)
        medians = ", ".join(f"{median_ms:.2f}" for median_ms in np.median(ms, axis=0))
        print(
            f"{workers} workers, {len(ms)} gathers: mean {ms.mean():.2f} ms; "
            f"medians from the first worker to the last {medians} ms"
        )


if __name__ == "__main__":
    main()
