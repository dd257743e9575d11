"""A lab's choice of a datapath, Open vSwitch's reports, and a switch that does not start."""

import os
import re
import shutil
import time

import pytest

from testbed.lab import datapath
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.shaping import MissingCapabilityError
from testbed.lab.openvswitch import SCHEMA, OpenVSwitch, vsctl

# Of OVS 3.1 on Linux 6.1, shortened.
SHOWN = """\
netdev@ovs-netdev: hit:12 missed:4
  s2:
    s2 65534/1: (tap)
    s2-eth1 1/2: (system)
system@ovs-system: hit:48 missed:3
  s1:
    s1 65534/1: (internal)
    s1-eth1 1/2: (system)
"""
STATISTICS = """\
system@ovs-system:
  lookups: hit:48 missed:3 lost:7
  flows: 0
  masks: hit:61 total:0 hit/pkt:1.20
  caches:
    masks-cache: size:256
  port 0: ovs-system (internal)
system@other:
  lookups: hit:0 missed:9 lost:2
"""


def test_auto_takes_the_kernels_where_it_works_and_who_names_that_is_told_why_not(monkeypatch):
    monkeypatch.setattr(datapath, "missing", lambda: None)
    assert datapath.choose("auto") == "kernel"
    monkeypatch.setattr(datapath, "missing", lambda: "no module")
    assert datapath.choose("auto") == datapath.choose("userspace") == "userspace"
    with pytest.raises(MissingCapabilityError, match=r"^datapath kernel: no module$"):
        datapath.choose("kernel")


def test_a_refused_trial_is_the_reason(monkeypatch):
    def refuse(argv):
        raise CommandError(f"{argv[0]}: No such file or directory")

    monkeypatch.setattr(datapath, "run", refuse)
    assert re.search("no openvswitch module.*No such file", datapath.missing() or "")


def test_the_daemon_says_which_one_forwards_and_none_in_common_is_an_error(monkeypatch):
    monkeypatch.setattr(datapath, "run", lambda _argv: SHOWN)
    for switches, kind in ((["s1"], "kernel"), (["s2"], "userspace"), (["s2", "s2"], "userspace")):
        assert datapath.in_use(switches) == kind
    for switches in (["s1", "s2"], ["s3"], []):
        with pytest.raises(CommandError, match="no datapath in common"):
            datapath.in_use(switches)


def test_lost_first_packets_are_added_up(monkeypatch):
    monkeypatch.setattr(datapath, "run", lambda _argv: STATISTICS)
    assert datapath.lost_upcalls() == 9


needs_switch = pytest.mark.skipif(
    not SCHEMA.exists() or shutil.which("ovsdb-server") is None, reason="needs Open vSwitch"
)


@needs_switch
def test_a_program_that_ends_at_once_is_told_in_its_own_words(tmp_path, monkeypatch):
    for name in ("OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"):
        monkeypatch.setenv(name, "")  # `start` sets them
    (tmp_path / "ovsdb-server.pid").mkdir()
    began_s = time.monotonic()
    switch = OpenVSwitch(tmp_path, tmp_path)
    with pytest.raises(CommandError, match=r"ovsdb-server ended at once: .*Is a directory"):
        switch.start()
    assert time.monotonic() - began_s < 15


@needs_switch
def test_a_switch_that_ends_in_mid_command_is_told_in_its_own_words(tmp_path, monkeypatch):
    command = tmp_path / "ovs-vsctl"  # waits for the daemon, as the real one does
    command.write_text("#!/bin/sh\nexec sleep 60\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("OVS_LOGDIR", str(tmp_path))
    (tmp_path / "ovs-vswitchd.log").write_text("one\ntwo|EMER|Too many open files\n")
    with pytest.raises(CommandError, match=r"no answer within 0.2 s: two.*Too many open files"):
        vsctl(["add-br", "s1"], timeout_s=0.2)
