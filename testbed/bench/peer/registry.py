"""The adapters by name, and a user's own from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.bench.peer.adapter import Adapter
from testbed.shared import own_code
from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of

BUILT_IN = {
    "dblp-authors": "testbed.bench.peer.dblp_authors:DblpAuthors",
    "dblp-authors-nodelay": "testbed.bench.peer.dblp_authors:WithoutDelay",
}
DEFAULT = "dblp-authors"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another implementation."""

    name: str
    adapter: str
    checkout: Path


def found(adapter: str, checkout: Path) -> Peer:
    """The other implementation that a user names; nothing of it is loaded."""
    if not checkout.is_dir():
        raise InputError(f"CHECKOUT {checkout}: no such folder")
    if adapter in BUILT_IN:
        return Peer(name=adapter, adapter=BUILT_IN[adapter], checkout=checkout.absolute())
    if not own_code.is_own(adapter):
        raise InputError(f"--adapter {adapter}: {one_of(adapter, [*BUILT_IN, own_code.FORMS])}")
    name = own_code.short(adapter)
    return Peer(name=name, adapter=own_code.located(adapter), checkout=checkout.absolute())


def load(adapter: str) -> type[Adapter]:
    """The adapter's class; for processes at the ends alone."""
    loaded: type[Adapter] = own_code.load(adapter, axis="adapter", default="Adapter", base=Adapter)
    return loaded
