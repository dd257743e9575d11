"""The JSON file of a benchmark's records: the machine's facts, and writing it."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from testbed.lab.kernel import privileges
from testbed.run import manifest
from testbed.transport.native import HOT_PATH


def machine() -> dict[str, Any]:
    """The machine that the numbers were measured on, and the commit that measured them."""
    return {
        "commit": manifest.commit(),
        "cpu": manifest.cpu_model(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiled": HOT_PATH.compiled,
        "load_average": os.getloadavg(),
        "receive_buffer_max_bytes": int(Path("/proc/sys/net/core/rmem_max").read_text()),
        "user_namespace": not privileges.may_be_root(),
    }


def write(path: Path, records: list[dict[str, Any]], facts: dict[str, Any], *, schema: int) -> None:
    """Write the records as a JSON list, one per line; each holds the machine's facts."""
    lines = [json.dumps({"schema": schema, **record, "machine": facts}) for record in records]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
