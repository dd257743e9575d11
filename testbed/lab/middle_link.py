"""Mininet's link with something in its middle, and without starting programs to make it."""

from __future__ import annotations

import itertools
import os
from typing import Any

from mininet.link import Link

from testbed.lab.delay.inner import silence
from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.rtnetlink import Rtnetlink

_numbers = itertools.count()


class MiddleLink(Link):
    """A veth pair; with `delay_s`, `jitter_s` or `loss` two, whose inner ends are to be joined.

    Names and ports of the outer ends are Mininet's own. The inner ends lie in this process's
    namespace, which is the switches'; `middle` has their names, next to the first and to the
    second node, or is None.
    """

    def __init__(self, node1: Any, node2: Any, **options: Any) -> None:
        delayed = any(options.get(key) for key in ("delay_s", "jitter_s", "loss"))
        number = next(_numbers)
        self.middle = (f"mid{number}a", f"mid{number}b") if delayed else None
        super().__init__(node1, node2, **options)

    def makeIntfPair(  # noqa: N802 (Mininet's name)
        self,
        intfname1: str,
        intfname2: str,
        addr1: str | None = None,
        addr2: str | None = None,
        node1: Any = None,
        node2: Any = None,
        deleteIntfs: bool = True,  # noqa: N803
    ) -> None:
        """Make the interfaces in the nodes' namespaces."""
        ends = ((intfname1, addr1, _pid(node1)), (intfname2, addr2, _pid(node2)))
        with Rtnetlink() as kernel:
            if self.middle is not None:
                for inner, (name, mac, pid) in zip(self.middle, ends, strict=True):
                    kernel.send([rtnetlink.veth(inner, name, peer_mac=mac, peer_pid=pid)])
                    silence(inner)
                return
        (name, mac, pid), (other, other_mac, other_pid) = ends
        with Rtnetlink(pid) as kernel:
            # Said outright: seen from a host's namespace, the switches' is a foreign one.
            peer_pid = os.getpid() if other_pid is None else other_pid
            pair = rtnetlink.veth(name, other, mac=mac, peer_mac=other_mac, peer_pid=peer_pid)
            kernel.send([pair])


def _pid(node: Any) -> int | None:
    return node.pid if node.inNamespace else None
