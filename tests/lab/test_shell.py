"""Mininet's prompt inside an experiment's network."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]


def test_hosts_answer_at_the_prompt():
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "shell", "quick"],
        input="worker-1 ping -c 1 -W 2 server\nexit\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 received" in done.stdout + done.stderr
