"""What a run needs of the kernel and the machine, beyond what every run needs.

A plan says what is lacking; the run itself then ends as *unsupported*, before anything is built.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from controllers import impairments
from testbed.transport.tcp_socket import available_congestion_controls

_MODULES = Path("/lib/modules")


def lacking(
    protocol: Mapping[str, Any], timeline: Collection[Mapping[str, Any]], hosts: Collection[str]
) -> str | None:
    """What is lacking for a run, in words; None: nothing.

    Args:
        protocol: the arm's, as in `config.json`.
        timeline: the impairments, as in `config.json`.
        hosts: the names of all hosts.
    """
    if protocol["carrier"] == "tcp" and (missing := _congestion_control(protocol)):
        return missing
    found = (impairments.read(each).lacking(hosts) for each in timeline)
    return next((each for each in found if each is not None), None)


def _congestion_control(protocol: Mapping[str, Any]) -> str | None:
    listed, wanted = available_congestion_controls(), protocol["congestion_control"]
    if not listed or wanted in listed:
        return None
    said = f"this kernel has no TCP congestion control {wanted!r}; it has {', '.join(listed)}"
    modules = _MODULES / platform.release()
    if next(modules.rglob(f"tcp_{wanted}.ko*"), None) is not None:
        said += f"; 'modprobe tcp_{wanted}' as root adds it"
    return said
