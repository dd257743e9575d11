"""A host whose shell does not come up: the lab says why, where Mininet would wait without end."""

from __future__ import annotations

import os
import time

import pytest

from testbed.lab.kernel.commands import CommandError
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


ANSWERS_ONCE = r"printf '\177'; read -r line; printf '\177'; read -r line"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 1", "the shell of worker-1 ended with status 1"),
        (
            "echo mount: not permitted >&2; exit 1",
            "the shell of worker-1 ended with status 1: mount: not permitted",
        ),
        (
            "printf waiting; exec sleep 60",
            "the shell of worker-1 says nothing for 0.5 s, since 'its start': waiting",
        ),
        (f"{ANSWERS_ONCE}; exit 3", "the shell of worker-1 ended with status 3"),
        (
            f"{ANSWERS_ONCE}; echo a word; exec sleep 60",
            "the shell of worker-1 says nothing for 0.5 s, since 'ifconfig lo up'",
        ),
    ],
)
def test_a_shell_that_does_not_come_up_or_hangs_ends_the_wait_and_says_how(
    start, monkeypatch, script, words
):
    began_s = time.monotonic()
    host = start(script)
    if "sleep" in script:
        monkeypatch.setattr(LabHost, "shell_timeout_s", 0.5)
    with pytest.raises(CommandError) as raised:
        host.cmd("ifconfig lo up")
    assert str(raised.value).startswith(words)
    assert time.monotonic() - began_s < 15


def test_a_prompt_in_pieces_is_a_prompt(start):
    host = start(
        r"""printf 'a word first '; sleep 0.2; printf '\177'
        while read -r line; do printf '\177'; done"""
    )
    assert host.cmd("anything") is not None
