"""How many datagrams a second of processor time simulates, on one core.

    python -m tests.benchmarks.simulation_speed

Payload-only rounds over a star of 1 Gbit/s links, of several sizes. It prints datagrams that were
sent, the processor time of one core, their ratio, and how much faster than real time it was.
"""

import json
import tempfile
import time
from pathlib import Path

from testbed.cli.options import Selection
from testbed.run import simulating

_EXPERIMENT = """
name: simulation-speed
rounds: {rounds}
seeds: [1]
topology:
  {{ name: star, workers: {workers}, rate_bps: 1e9, queue_bytes: 1500000, delay_s: {delay_s} }}
training:
  model: resnet50
  pace: {{ kind: payload-only, scale: 0.05 }}
phases: {{ detector: schedule, critical_rounds: [[0, 0]] }}
arms:
  reliable: {{ protocol: none }}
"""


def measure(folder: Path, *, workers: int, delay_s: float, rounds: int = 4) -> str:
    """One row: of so many workers, on links of this delay."""
    path = folder / "simulation-speed.yaml"
    path.write_text(_EXPERIMENT.format(workers=workers, delay_s=delay_s, rounds=rounds))
    (run,) = Selection(name=str(path)).loaded()
    began_s = time.process_time()
    outcome = simulating.execute(folder / f"{workers}-{delay_s}", run.in_virtual_time(), print_none)
    took_s = time.process_time() - began_s
    assert outcome.verdict == "ok", outcome.reason
    lines = [
        json.loads(line)
        for file in (outcome.directory / "events").glob("transfers-*.jsonl")
        for line in file.read_text().splitlines()
    ]
    sent = sum(each["chunks_sent"] for each in lines if each["role"] == "sender")
    virtual_s = max(each["ended_s"] for each in lines)
    return (
        f"{workers:7d} {delay_s * 1e3:8.1f} ms {sent:9d} {took_s:8.2f} s {sent / took_s:10.0f}/s "
        f"{virtual_s / took_s:8.2f}"
    )


def print_none(record: object) -> None:
    """Progress is of no interest."""


if __name__ == "__main__":
    print("workers       delay      sent     took       speed  times real time")
    with tempfile.TemporaryDirectory() as made:
        for count, delay in ((1, 0.0), (4, 0.0), (4, 0.001), (16, 0.001)):
            print(measure(Path(made), workers=count, delay_s=delay), flush=True)
