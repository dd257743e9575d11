"""A full queue of a switch port refuses single packets, and not the rest of a batch."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from testbed.lab.kernel.link_counters import offered
from tests.lab.lab_under_test import Flow, running_lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

PACKETS = 4000


def test_what_an_overfull_queue_loses_is_what_it_counts(tmp_path: Path):
    topology = {"name": "star", "workers": 3, "rate_bps": 50_000_000, "queue_bytes": 60_000}
    with running_lab(tmp_path / "lab", [], topology=topology) as lab:
        senders = ("worker-1", "worker-2", "worker-3")
        # A late sender catches up, and may then fill the queue of its own link.
        outputs = [lab.interface("s1", "server"), *(lab.interface(each, "s1") for each in senders)]
        before = [offered(interface, pid)[1] for pid, interface in outputs]
        flows = [
            Flow(lab, sender, "server", 47100 + number) for number, sender in enumerate(senders)
        ]
        # None needs more than its own link has, and three are too many for the server's.
        threads = [
            threading.Thread(
                target=each.send, args=(PACKETS,), kwargs={"payload_bytes": 1400, "rate_bps": 35e6}
            )
            for each in flows
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        received = sum(len(each.received()) for each in flows)
        after = [offered(interface, pid)[1] for pid, interface in outputs]
        refused = [late - early for early, late in zip(before, after, strict=True)]
        for each in flows:
            with each:
                pass
    assert refused[0] > 20  # three senders in one Python process are late at times
    assert received + sum(refused) == 3 * PACKETS
