"""The inner ends of links: interfaces that only pass on what others say."""

from __future__ import annotations

import contextlib
from pathlib import Path

from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.rtnetlink import Rtnetlink


def silence(inner: str) -> None:
    """Bring an interface of this namespace up that speaks to nobody of its own accord."""
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        Path(f"/proc/sys/net/ipv6/conf/{inner}/disable_ipv6").write_text("1\n")
    with Rtnetlink() as kernel:
        kernel.disable_offloads(inner)
        kernel.send([rtnetlink.up(kernel.index(inner), arp=False, name=inner)])
