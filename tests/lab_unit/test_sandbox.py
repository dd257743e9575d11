"""Limits that a lab's programs would die of, and ports that the kernel does not keep, are told."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from testbed.lab import sandbox
from testbed.lab.kernel import socket_defaults
from testbed.lab.kernel.commands import CommandError
from testbed.shared.input_error import InputError

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((40, 4096), [(1024, 4096)]),
        ((40, INFINITE), [(1024, INFINITE)]),
        ((40, 40), [(1024, 1024)]),
        ((1024, 4096), []),
        ((INFINITE, INFINITE), []),
    ],
)
def test_a_low_limit_is_raised_and_others_stay(before, after, monkeypatch):
    limits = {resource.RLIMIT_NOFILE: before}
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which, (INFINITE,) * 2))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: made.append(limits))
    sandbox.raise_limits()
    assert made == after


@pytest.mark.parametrize(
    ("limit", "line"),
    [
        (resource.RLIMIT_NOFILE, "ulimit -n, .*: 40 at most, and a lab needs 1024"),
        (resource.RLIMIT_FSIZE, "ulimit -f, .*: 40 at most, and a lab needs 1073741824"),
    ],
)
def test_a_limit_that_cannot_be_raised_is_named_with_what_is_needed(limit, line, monkeypatch):
    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    limits = {limit: (40, 40)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which, (INFINITE,) * 2))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    with pytest.raises(InputError, match=line):
        sandbox.start("nothing")


@pytest.mark.parametrize(
    ("path", "message"),
    [("/dev/null", "'' and not '47000-47999' are reserved"), ("/dev/nothing/here", "No such")],
)
def test_what_cannot_be_read_back_is_an_error(monkeypatch, path, message):
    monkeypatch.setattr(socket_defaults, "_RESERVED", Path(path))
    with pytest.raises(CommandError, match=message):
        socket_defaults.reserve_ports(None, 47000, 47999)
