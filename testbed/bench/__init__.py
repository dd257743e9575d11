"""The transport's benchmark: measured in a sandbox of its own, beside kernel TCP and Gloo.

`cases` says what is measured, `network` builds the links, `flows` runs one case on them,
`results` turns its figures into the record of `./lab bench transport --json FILE`, and `figure`
draws. `__main__` is the sandbox's first process. Records are those of design.md's contract and:

    status         "ok", "timeout" (limit_s was over), "unsupported: why", or a failure's words
    n, completion_min_s, completion_max_s      of the repetitions; all other values are medians
    goodput_bps    payload that arrived, over the completion time
    cpu_s_per_gb_* process time per 1e9 bytes of payload that arrived (of all senders together);
                   what the kernel does in its own threads or in another's time is not in it
    control_share  control bytes over all bytes sent
    jain, link_busy    of an incast: fairness of the flows, and what the shared link carried over
                   what it could have
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from testbed.lab import sandbox

SCHEMA = 1


class BenchError(RuntimeError):
    """The sandbox ended before all cases were measured; the message is its last line."""


def measure(
    pattern: str, *, quick: bool, begins: Callable[[str], None] = lambda name: None
) -> Iterator[dict[str, Any]]:
    """Runs the cases that match; a record as each is done. `begins` hears of each before."""
    arguments = ["--cases", pattern, *(["--quick"] if quick else [])]
    process = sandbox.start(
        "testbed.bench", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        for line in process.stdout:
            message = json.loads(line)
            if "begins" in message:
                begins(message["begins"])
            else:
                yield message
        printed = process.stderr.read().decode(errors="replace").strip()
        if process.wait() != 0:
            last = printed.splitlines()[-1] if printed else "no words"
            raise BenchError(f"the benchmark's sandbox ended: {last}")
    finally:
        sandbox.stop(process)
        process.stdout.close()
        process.stderr.close()


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": models[0] if models else None,
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "receive_buffer_max_bytes": int(Path("/proc/sys/net/core/rmem_max").read_text()),
        "user_namespace": not sandbox.is_root(),
    }


def write(path: Path, records: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    """Writes the records as a JSON list, a line for each; the machine's facts are part of each."""
    lines = [json.dumps({"schema": SCHEMA, **record, "machine": facts}) for record in records]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
