"""The JSON file of a benchmark's records: where it may be, the machine's facts, writing it."""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path
from typing import Any

from testbed.lab import sandbox
from testbed.shared.yaml_input import InputError

SCHEMA = 1


def require_folder(json_file: Path | None) -> None:
    """Raise InputError unless the file's folder exists."""
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise InputError(f"--json {json_file}: no such folder")


def machine() -> dict[str, Any]:
    """The machine that the numbers were measured on."""
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
    """Write the records as a JSON list, one per line; each holds the machine's facts."""
    lines = [json.dumps({"schema": SCHEMA, **record, "machine": facts}) for record in records]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
