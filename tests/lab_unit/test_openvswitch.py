"""A switch that does not start: the error says why, and at once."""

from __future__ import annotations

import shutil
import time

import pytest

from testbed.lab.kernel.commands import CommandError
from testbed.lab.openvswitch import SCHEMA, OpenVSwitch

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
