"""Holds hosts to a share of the processors, through control groups that carry their owner's name.

The groups are the one thing of a lab that lies outside its namespaces. The command removes them
when its sandbox has ended. What a killed command leaves is empty, and `./lab clean` knows it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from testbed.lab import leftovers
from testbed.lab.kernel import cgroups, privileges
from testbed.lab.kernel.cgroups import CgroupError
from testbed.lab.kernel.shaping import MissingCapabilityError

NAME_VARIABLE = "LAB_SANDBOX_GROUP"
_PREFIX = "lab-"
_numbers = itertools.count()


def name_of_next() -> str:
    """A name for the groups of a sandbox that this process is about to start."""
    pid, started, namespace = leftovers.owner_of_now().split(" ")
    return f"{_PREFIX}{pid}-{started}-{namespace[5:-1]}-{next(_numbers)}"


def make(shares: Mapping[str, float]) -> dict[str, tuple[str, ...]]:
    """Inside a sandbox: a group for each host that has a share; see `cgroups.make`.

    Raises:
        MissingCapabilityError: this machine or user has no such groups.
    """
    try:
        return cgroups.make(os.environ[NAME_VARIABLE], shares) if shares else {}
    except CgroupError as error:
        raise MissingCapabilityError(f"host-cpu: {error}") from None


def try_out() -> str:
    """Inside a sandbox: make a group and remove it; returns what was found.

    Raises:
        OSError: there are none, in one line.
    """
    name = os.environ[NAME_VARIABLE]
    cgroups.make(name, {"a-host": 0.5})
    version = cgroups.find().version
    if version == 1:  # with version 2, this process is in it: the command removes it
        cgroups.remove(cgroups.here(name))
    return f"cgroups of version {version}"


def remove(name: str) -> None:
    """After a sandbox's end: remove its groups, if it has made any; OSError: they are in use."""
    with privileges.taken_up():
        cgroups.remove(cgroups.here(name) if name else ())


def left_over() -> dict[str, list[Path]]:
    """The groups of sandboxes whose command is gone, in whatever session: name -> folders."""
    with privileges.taken_up():
        present = cgroups.everywhere(_PREFIX)
    found = {}
    for name, folders in present.items():
        owner = name.removeprefix(_PREFIX).split("-")
        if len(owner) == 4 and leftovers.is_gone(f"{owner[0]} {owner[1]} pid:[{owner[2]}]"):
            found[name] = folders
    return found


def remove_left_over(folders: Iterable[Path]) -> None:
    """Remove groups of `left_over`; OSError: a process goes on in one."""
    with privileges.taken_up():
        cgroups.remove(folders)
