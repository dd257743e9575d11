"""Lets frames pass the middle of a link untouched, until it is to delay or to lose some.

A relay that takes over a direction gets the frames through a pair of interfaces of its own. The
filter that leads there comes before the earlier one: no frame is lost, doubled or overtaken by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from testbed.lab.delay.delay_settings import Middle
from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.rtnetlink import Rtnetlink, bring_up_silent

_FIRST = 1  # filters without a number of their own come after this one


def redirection(source: str, sink: str) -> list[str]:
    """The commands of tc that make all frames that arrive at `source` leave by `sink`."""
    # u32 with a mask of nothing: every protocol, and no need for the matchall module.
    return [
        f"qdisc add dev {source} ingress",
        f"filter add dev {source} parent ffff: protocol all {_everything_to(sink)}",
    ]


def _everything_to(sink: str) -> str:
    return f"u32 match u32 0 0 action mirred egress redirect dev {sink}"


def join(middles: Sequence[Middle]) -> None:
    """Let frames pass these middles in both directions, by one call of tc."""
    ends = [each.interfaces for each in middles]
    lines = [line for a, b in ends for way in ((a, b), (b, a)) for line in redirection(*way)]
    if lines:
        run(["tc", "-batch", "-"], input_text="".join(f"{line}\n" for line in lines))


def divert(
    middle: Middle, sender: str, take: Callable[[str], object], forget: Callable[[], object]
) -> None:
    """Hand a direction's frames to `take`; if that fails, they pass untouched again."""
    source = middle.interfaces[middle.nodes.index(sender)]
    near, far = f"{source}-out", f"{source}-in"
    with Rtnetlink() as kernel:
        kernel.send([rtnetlink.veth(near, far)])
    place = f"dev {source} parent ffff: protocol all pref {_FIRST}"
    try:
        for end in (near, far):
            bring_up_silent(end)
        take(far)
        run(["tc", *f"filter add {place} {_everything_to(near)}".split()])
    except BaseException:
        # A filter whose answer was late is there; without its interface it would drop all frames.
        for undo in (f"tc filter delete {place}", f"ip link delete {near}"):
            with suppress(CommandError):
                run(undo.split())
        with suppress(CommandError):
            forget()
        raise
