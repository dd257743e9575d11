"""What two workers on one machine gain: `python -m tests.benchmarks.two_labs [SEEDS] [FOLDER]`.

The same sweep of short labs (two arms, 20 seeds: 40 runs) is executed by `./lab run` alone, and by
way of a real scheduler with two workers on this machine, which take turns.
Prints the time of each, the ratio, how the runs ended, and how the results compare. It needs
what `./lab run` needs, and a machine with nothing else to do. A folder that is named is kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from testbed.shared import python_module
from tests.cluster.loopback import loopback

SWEEP = """
name: short
rounds: 24
seeds: {seeds}
topology: {{ name: star, workers: 3, rate_bps: 100_000_000, queue_bytes: 150_000 }}
training:
  {{ model: small-cnn, dataset: digits, batch_size: 32, learning_rate: 0.05, evaluate_every: 24 }}
arms: {{ dblp: {{ protocol: dblp }}, fixed-low: {{ protocol: fixed-low }} }}
impairments:
  - {{ kind: loss, host: server, leg: gather, rounds: [8, 16], q: 0.9, at_most_s: 1.0 }}
"""


def main() -> None:
    words = sys.argv[1:]
    seeds = int(words[0]) if words else 20
    if len(words) > 1:
        _measure(Path(words[1]).resolve(), seeds)
        return
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder), seeds)


def _measure(folder: Path, seeds: int) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / "short.yaml"
    path.write_text(SWEEP.format(seeds=list(range(1, seeds + 1))))
    alone_s = _run(path, folder / "alone")
    with loopback(folder / "cluster") as cluster:
        for _ in range(2):
            cluster.worker()
        shared_s = _run(path, folder / "shared", "--scheduler", cluster.address)
    print(f"ratio of the times: {shared_s / alone_s:.2f}")
    sides = [str(folder / each / "short") for each in ("alone", "shared")]
    subprocess.run(python_module.command("testbed", "compare", *sides), check=False)


def _run(path: Path, out: Path, *options: str) -> float:
    began_s = time.monotonic()
    words = ("run", str(path), "--out", str(out), *options)
    log = out.with_suffix(".log")
    with log.open("wb") as said:
        subprocess.run(
            python_module.command("testbed", *words), stdout=said, stderr=said, check=False
        )
    took_s = time.monotonic() - began_s
    ended = Counter(
        f"{json.loads(each.read_text())['verdict']}{' (repeated)' * ('.attempt' in str(each))}"
        for each in out.glob("short/*/status.json")
    )
    print(f"{out.name}: {took_s:.1f} s, runs {dict(ended)}", flush=True)
    return took_s


if __name__ == "__main__":
    main()
