"""Runs functions of tests in a network namespace of its own, where packets may be dropped."""

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from testbed.lab.kernel.commands import run
from testbed.lab.kernel.shaping import inside
from tests.own_network import printed

_PROGRAM = """
import importlib, json, sys
module, function, arguments = sys.argv[1:]
print(json.dumps(getattr(importlib.import_module(module), function)(*json.loads(arguments))))
"""


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns there, as JSON; skips without such a namespace, or nft in it."""
    namespace = ["unshare", "--user", "--map-root-user", "--net"]
    if os.geteuid() == 0:
        namespace = ["unshare", "--net"]
    # Also brings the loopback up, which is down in a new one.
    prepare = [*namespace, "sh", "-c", 'nft list ruleset && ip link set lo up && exec "$@"', "-"]
    if subprocess.run([*prepare, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs '{' '.join(namespace)}', nft and ip")
    words = function.__module__, function.__name__, json.dumps(arguments)
    return printed(_PROGRAM, *words, before=prepare)


def drop(*matches: str, pid: int | None = None) -> None:
    """Drops what comes and matches, in the words of nft; `pid`: in the namespace of that one."""
    lines = (
        "add table inet hole",
        "add chain inet hole input { type filter hook input priority 0; }",
        *(f"add rule inet hole input {match} drop" for match in matches),
    )
    run([*inside(pid), "nft", "-f", "-"], input_text="\n".join(lines))
