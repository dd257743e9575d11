"""The private emulated network of one run: sandbox, Open vSwitch, Mininet network, links, delays.

It may import `testbed.transport` and `testbed.shared`. Code that talks to the kernel belongs in
`kernel`, programs in hosts in `helpers`, delay in the middle of links in `delay`. To add a property
of links: begin in `network.LinkEnds`; `link_control` changes it while the lab runs.

`from testbed.lab import Lab` gives a whole lab to a script. It is made in `testbed.scripting`,
which is imported when it is asked for, and by nothing else in here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.scripting.lab import Lab as Lab

__all__ = ["Lab"]


def __getattr__(name: str) -> Any:
    if name == "Lab":
        from testbed.scripting.lab import Lab

        return Lab
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
