"""A host whose shell ends: the lab says so, where Mininet would wait without end."""

import os

import pytest

from testbed.lab.kernel.commands import CommandError
from testbed.lab.mininet_parts import LabHost


def test_a_shell_that_ends_is_told_with_its_status(tmp_path, monkeypatch):
    # Mininet looks for the programs that it needs; this test needs none of them.
    monkeypatch.setattr(LabHost, "checkSetup", lambda _self: None)
    mnexec = tmp_path / "mnexec"
    answers_once = r"printf '\177'; read -r line; printf '\177'; read -r line"
    mnexec.write_text(f"#!/bin/sh\n{answers_once}; exit 3\n")
    mnexec.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host = LabHost("worker-1", inNamespace=False)
    for _ in range(2):
        with pytest.raises(CommandError, match="the shell of worker-1 ended with status 3"):
            host.cmd("exit")
