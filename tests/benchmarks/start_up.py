"""How long verbs take to start: `python -m tests.benchmarks.start_up [TIMES]` prints it.

Each command runs that many times after one that fills the caches; the fastest counts, so that other
programs do not. The aim is under 0.5 s each. On a busy machine the processor's time tells more.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_LIMIT_S = 0.5
_ROOT = Path(__file__).resolve().parents[2]
_COMMANDS = (
    (["--help"], 0),
    (["list"], 0),
    (["fly"], 2),
    (["run", "quik"], 2),
    (["run", "quick", "--fast"], 2),
    (["plan", "twice.yaml"], 2),
    (["plan", "quick", "--set", "rouns=3"], 2),
    (["plan", "quick", "--set", "arms.dblp.high=1"], 2),
)


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    slow = []
    with tempfile.TemporaryDirectory(prefix="start-up-") as folder:
        (Path(folder) / "twice.yaml").write_text("rounds: 3\nrounds: 4\n")
        for words, status in _COMMANDS:
            took = [_took_s(words, status, folder) for _ in range(times + 1)]
            took_s, cpu_s = (min(each) for each in zip(*took, strict=True))
            print(f"{took_s:6.2f} s, {cpu_s:.2f} s of a processor  ./lab {' '.join(words)}")
            if took_s > _LIMIT_S:
                slow.append(words)
    print(f"limit: {_LIMIT_S} s each; the entry script adds its look at the installed packages")
    if slow:
        sys.exit(1)


def _took_s(words: list[str], status: int, folder: str) -> tuple[float, float]:
    """The time that passed, and the processor's time."""
    began_s, used_s = time.monotonic(), _used_s()
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words],
        cwd=folder,
        env={"PYTHONPATH": str(_ROOT), "COLUMNS": "200", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done
    return time.monotonic() - began_s, _used_s() - used_s


def _used_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
