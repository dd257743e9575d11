"""A sandbox raises the limit of open files that its switch would die of, or names it."""

from __future__ import annotations

import resource

import pytest

from testbed.lab import sandbox
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
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: made.append(limits))
    sandbox.allow_open_files()
    assert made == after


def test_a_limit_that_cannot_be_raised_is_named_with_what_is_needed(monkeypatch):
    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    with pytest.raises(InputError, match=r"may open 40 files here \(ulimit -n\).* needs 1024"):
        sandbox.start("nothing")
