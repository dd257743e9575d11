"""It measures how fast simulated rounds are, on one core, and how much memory they take.

    python -m tests.benchmarks.simulation_speed [--large]

Payload-only rounds over a star of 1 Gbit/s links, of several sizes, each in a process of its own.
It prints the processor time to the end of the first round and of each round after that, the
datagrams that were sent in a second of the latter, the virtual time of a round over its processor
time, and the most memory. With `--large` also 3,000 and 10,000 workers. Its times are those of a
process: others on the machine, caches and clock rates count all the same.
"""

import concurrent.futures
import json
import multiprocessing
import resource
import sys
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
  name: star
  workers: {workers}
  rate_bps: 1e9
  queue_bytes: {queue_bytes}
  delay_s: {delay_s}
training:
  model: resnet50
  batch_size: 1
  pace: {{ kind: payload-only, scale: {scale} }}
phases: {{ detector: schedule, critical_rounds: [[0, 0]] }}
arms:
  reliable: {{ protocol: none }}
"""
# Workers, delay of a link in seconds, megabytes of a payload, rounds.
_CASES = [
    (1, 0.0, 5.0, 8),
    (1, 0.001, 50.0, 8),
    (4, 0.001, 5.0, 8),
    (16, 0.001, 5.0, 4),
    (16, 0.001, 50.0, 4),
    (128, 0.001, 1.0, 4),
    (1000, 0.001, 1.0, 3),
]
_LARGE = [(3000, 0.001, 0.146, 3), (10_000, 0.001, 0.146, 3)]
_MODEL_MB = 102.2
_HEADER = (
    f"{'workers':>7} {'delay':>8} {'payload':>9} {'set-up':>8} {'a round':>9} {'datagrams':>11} "
    f"{'real time':>9} {'memory':>8}"
)


def measure(workers: int, delay_s: float, megabytes: float, rounds: int) -> str:
    """One row: of so many workers, on links of this delay."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made, "simulation-speed.yaml")
        scale = megabytes / _MODEL_MB
        # All begin at the same moment, and a queue must hold a datagram or two of each.
        queue_bytes = max(1_500_000, 4000 * workers)
        path.write_text(
            _EXPERIMENT.format(
                workers=workers,
                delay_s=delay_s,
                rounds=rounds,
                scale=scale,
                queue_bytes=queue_bytes,
            )
        )
        (run,) = Selection(name=str(path)).loaded()
        times_s = [time.process_time()]
        outcome = simulating.execute(
            Path(made, "out"),
            run.in_virtual_time(),
            lambda record: times_s.append(time.process_time()),
        )
        assert outcome.verdict == "ok", outcome.reason
        lines = [
            json.loads(line)
            for file in (outcome.directory / "events").glob("transfers-*.jsonl")
            for line in file.read_text().splitlines()
        ]
        written = (outcome.directory / "events" / "rounds.jsonl").read_text().splitlines()
    sent = sum(
        line["chunks_sent"] for line in lines if line["role"] == "sender" and line["round"] > 0
    )
    virtual_s = sum(json.loads(line)["latency_s"] for line in written[1:])
    took_s = times_s[rounds] - times_s[1]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    set_up_s = times_s[1] - times_s[0]  # with the first round, in which some is made
    return (
        f"{workers:7d} {delay_s * 1e3:5.1f} ms {megabytes:6.2f} MB {set_up_s:6.2f} s "
        f"{took_s / (rounds - 1):7.3f} s {sent / took_s:9.0f}/s {virtual_s / took_s:9.2f} "
        f"{memory / 1024:5.0f} MB"
    )


if __name__ == "__main__":
    print(_HEADER)
    alone = multiprocessing.get_context("spawn")
    for case in [*_CASES, *_LARGE] if "--large" in sys.argv else _CASES:
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=alone) as pool:
            print(pool.submit(measure, *case).result(), flush=True)
