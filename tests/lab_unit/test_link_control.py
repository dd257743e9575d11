"""What changes of links are refused before anything is asked of the kernel."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.lab.kernel.commands import CommandError
from testbed.lab.link_control import LinkControl


def network(*, middle: list[str] | None = None) -> dict[str, Any]:
    port = {"interface": "nowhere", "number": 1, "pid": None}
    link = {
        "name": "a--s1",
        "first": {"node": "a", **port},
        "second": {"node": "s1", **port},
        "rate_bps": 10_000_000,
        "queue_bytes": 150_000,
        "ecn_threshold_bytes": None,
        "delay_s": 0.005 if middle else 0.0,
        "jitter_s": 0.0,
        "loss": 0.0,
        "middle": middle,
    }
    return {"links": [link], "delayed_by": "relay" if middle else None, "relay_socket": None}


def test_a_direction_is_known_from_both_ends_and_what_is_not_there_is_named():
    links = LinkControl(network())
    assert links.shape("a", "s1") == links.shape("s1", "a")
    assert links.shape("a", "s1").rate_bps == 10_000_000
    with pytest.raises(CommandError, match="no link from 'a' to 'b'"):
        links.change("a", "b", {"rate_bps": 1_000_000})
    with pytest.raises(CommandError, match="no link from 'b' to 'a'"):
        links.change("b", "a", {"queue_bytes": 3_028})
    with pytest.raises(CommandError, match="link a--s1 was made without delay"):
        links.change("a", "s1", {"delay_s": 0.01})
    with pytest.raises(CommandError, match="interface nowhere: No such device"):
        links.change("a", "s1", {"rate_bps": 1_000_000})


def test_a_delay_out_of_range_is_refused_and_nothing_remembered():
    links = LinkControl(network(middle=["x", "y"]))
    with pytest.raises(CommandError, match=r"link a--s1: delay_s -1; valid: 0 to 10"):
        links.change("a", "s1", {"delay_s": -1})
    with pytest.raises(CommandError, match="no relay"):
        links.change("a", "s1", {"delay_s": 0.01})
    assert links.now("a", "s1")["delay_s"] == 0.005
