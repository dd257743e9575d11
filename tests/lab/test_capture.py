"""`--pcap`: a run's links in files that agree with the run's own events."""

import json
from collections import Counter

import pytest
from scapy.layers.inet import IP
from scapy.utils import rdpcap

from testbed.capture import reading
from testbed.capture.layers import Control, Datagram
from testbed.transport.messages import MessageType

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("unchanged_host")]


def test_captures_of_both_ends_agree_with_what_the_hosts_noted(run_small, capsys):
    hit = {"kind": "loss", "host": "server", "leg": "gather", "rounds": [2], "q": 0.5}
    results = run_small(capture=["server", "worker-1"], impairments=[hit])
    results.assert_trained()
    folder = results.run() / "pcap"
    assert sorted(path.name for path in folder.iterdir()) == ["server.pcap", "worker-1.pcap"]
    captures = json.loads((results.run() / "manifest.json").read_text())["captures"]
    assert [capture["host"] for capture in captures] == ["server", "worker-1"]
    assert not any(capture["packets_dropped"] or capture["bound_reached"] for capture in captures)
    assert json.loads((results.run() / "config.json").read_text())["capture"] == [
        *("server", "worker-1")
    ]
    seen = {name: rdpcap(str(folder / f"{name}.pcap")) for name in ("server", "worker-1")}
    for name, packets in seen.items():
        described = captures[name == "worker-1"]
        assert len(packets) == described["packets"]
    for worker, packets in (("worker-1", seen["worker-1"]), ("worker-2", seen["server"])):
        (address,) = {
            packet[IP].src
            for packet in packets
            if Control in packet and packet[Control].type == MessageType.HELLO
            if worker.encode() in packet[Control].body
        }
        sent = Counter(
            packet[Datagram].transfer
            for packet in packets
            if Datagram in packet and packet[IP].src == address
        )
        noted = [
            event for event in results.events(f"transfers-{worker}") if event["role"] == "sender"
        ]
        assert sent == {2 * row["round"]: row["chunks_sent"] for row in noted}
        stops = {
            packet[Control].transfer
            for packet in packets
            if Control in packet and packet[Control].type == MessageType.STOP
        }
        assert stops >= set(sent)
    reading.show(folder / "worker-1.pcap", transfer=4)
    report = capsys.readouterr().out
    assert report.startswith("transfer 4: round 2, gather")
    assert "PROBE" in report and report.count("datagrams in") > 1  # what was lost, again
