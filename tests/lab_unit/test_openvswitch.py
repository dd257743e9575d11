"""A switch that does not start: the error says why, and at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest

from testbed.lab.kernel.commands import CommandError
from testbed.lab.openvswitch import SCHEMA, OpenVSwitch, vsctl

pytestmark = pytest.mark.skipif(
    not SCHEMA.exists() or shutil.which("ovsdb-server") is None, reason="needs Open vSwitch"
)


def test_a_program_that_ends_at_once_is_told_in_its_own_words(tmp_path, monkeypatch):
    for name in ("OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"):
        monkeypatch.setenv(name, "")  # `start` sets them
    (tmp_path / "ovsdb-server.pid").mkdir()
    began_s = time.monotonic()
    switch = OpenVSwitch(tmp_path, tmp_path)
    with pytest.raises(CommandError, match=r"ovsdb-server ended at once: .*Is a directory"):
        switch.start()
    assert time.monotonic() - began_s < 15


def test_a_switch_that_ends_in_mid_command_is_told_at_once(tmp_path, monkeypatch):
    command = tmp_path / "ovs-vsctl"  # waits for the daemon, as the real one does
    command.write_text("#!/bin/sh\nexec sleep 60\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("OVS_RUNDIR", str(tmp_path))
    monkeypatch.setenv("OVS_LOGDIR", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "ovs-vswitchd.pid").write_text(f"{ended.pid}\n")
    (tmp_path / "ovs-vswitchd.log").write_text("one\ntwo|EMER|Too many open files\n")
    began_s = time.monotonic()
    with pytest.raises(CommandError, match=r"ovs-vswitchd ended: two.*Too many open files"):
        vsctl(["add-br", "s1"])
    assert time.monotonic() - began_s < 15
