"""A host whose shell does not come up: the lab says why, where Mininet would wait without end."""

from __future__ import annotations

import os
import time

import pytest

from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.shaping import MissingCapabilityError
from testbed.lab.mininet_parts import LabHost


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a host in this process's namespaces, with an mnexec of the test's own."""
    processes = []
    monkeypatch.setattr(LabHost, "shell_timeout_s", 5.0)
    # Mininet looks for the programs that it needs; this test needs none of them.
    monkeypatch.setattr(LabHost, "checkSetup", lambda _self: None)
    popen = LabHost._popen

    def kept(self, *args, **kwargs):
        processes.append(popen(self, *args, **kwargs))
        return processes[-1]

    monkeypatch.setattr(LabHost, "_popen", kept)

    def make(script: str) -> LabHost:
        mnexec = tmp_path / "mnexec"
        mnexec.write_text(f"#!/bin/sh\n{script}\n")
        mnexec.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        host = LabHost("worker-1", inNamespace=False)
        assert host.shell is None, "it has a shell before anybody asked for one"
        return host

    yield make
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("words", ["", "mount: Operation not permitted"])
def test_a_shell_that_cannot_start_is_a_missing_capability_with_mnexecs_own_words(start, words):
    began_s = time.monotonic()
    with pytest.raises(MissingCapabilityError) as raised:
        start(f"echo '{words}' >&2; exit 1").cmd("true")
    then = f": {words}" if words else ""
    assert str(raised.value) == f"mnexec cannot start the shell of worker-1{then}"
    assert time.monotonic() - began_s < 15


@pytest.mark.parametrize("output", ["", "waiting for something"])
def test_a_shell_without_a_prompt_ends_the_wait(start, monkeypatch, output):
    monkeypatch.setattr(LabHost, "shell_timeout_s", 0.3)
    with pytest.raises(CommandError) as raised:
        start(f"printf '{output}'; exec sleep 60").cmd("true")
    assert not isinstance(raised.value, MissingCapabilityError)
    words = f": {output}" if output else ""
    assert (
        str(raised.value) == f"the shell of worker-1 gave no prompt within 0.3 s of mnexec{words}"
    )


def test_a_prompt_in_pieces_is_a_prompt(start):
    host = start(
        r"""printf 'a word first '; sleep 0.2; printf '\177'
        while read -r line; do printf '\177'; done"""
    )
    assert host.cmd("anything") is not None


ANSWERS_ONCE = r"printf '\177'; read -r line; printf '\177'; read -r line"


def test_a_shell_that_ends_while_a_command_runs_ends_the_wait(start):
    began_s = time.monotonic()
    host = start(f"{ANSWERS_ONCE}; exit 3")
    with pytest.raises(CommandError, match="the shell of worker-1 ended with status 3"):
        host.cmd("ifconfig lo up")
    assert time.monotonic() - began_s < 15


def test_a_shell_that_hangs_in_a_command_ends_the_wait_and_names_the_command(start, monkeypatch):
    host = start(f"{ANSWERS_ONCE}; echo a word; exec sleep 60")
    monkeypatch.setattr(LabHost, "shell_timeout_s", 0.3)
    words = r"the shell of worker-1 says nothing for 0\.3 s, since 'ifconfig lo up'"
    with pytest.raises(CommandError, match=words):
        host.cmd("ifconfig lo up")
