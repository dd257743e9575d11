"""Many random schedules of two connections:

    python -m tests.benchmarks.schedules [N] [PROCESSES] [FIRST]

Draws N schedules (100,000) as tests/transport/test_cluster.py does, a few hundred of which are in
`./lab test`, and checks the same of each: in shares of 1000, each with its own seed, from FIRST
(0) on. Prints how many were run; the first one that fails ends it, with hypothesis' smallest
example.
"""

import multiprocessing
import sys
import time

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.transport.test_cluster import run_schedule, schedules

_SHARE = 1000


def _run(number: int) -> int:
    """Runs one share of the schedules; returns how many."""
    count = 0

    @seed(number)
    @settings(
        max_examples=_SHARE,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(schedules())
    def check(schedule):
        nonlocal count
        count += 1
        run_schedule(schedule)

    check()
    return count


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    processes = int(sys.argv[2]) if len(sys.argv) > 2 else multiprocessing.cpu_count()
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    began_s, done = time.monotonic(), 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for count in pool.imap_unordered(_run, range(first, first - (-wanted // _SHARE))):
            done += count
            print(f"{done} schedules held, {time.monotonic() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
