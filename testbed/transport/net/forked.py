"""A process that is forked lets go of its parent's connections.

Else a peer that was killed would seem to live as long as its children do.
"""

import os
from typing import Protocol
from weakref import WeakSet


class Abandoned(Protocol):
    """What has descriptors that a child must not keep."""

    def abandon(self) -> None:
        """Closes this process's copies, and tells the peers nothing: the parent goes on."""


_held: WeakSet[Abandoned] = WeakSet()


def keep_from_children(item: Abandoned) -> None:
    """Whoever is forked from now on abandons the item first."""
    _held.add(item)


def _abandon_all() -> None:
    for item in list(_held):
        item.abandon()
    _held.clear()


os.register_at_fork(after_in_child=_abandon_all)
