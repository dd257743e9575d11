"""Recording a link: from the first packet to the last, cut where it may be, and bounded."""

import json
import os
import subprocess
import sys

import pytest

from testbed.capture import frames
from testbed.capture.pcap import PcapReader

USER_NAMESPACE = ("unshare", "--user", "--map-root-user", "--net")
ROOT = ("unshare", "--net")


def record(tmp_path, bound_bytes=1 << 30, namespace=USER_NAMESPACE):
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs '{' '.join(namespace)}'")
    path = tmp_path / "lo.pcap"
    done = subprocess.run(
        [*namespace, sys.executable, "-m", "tests.capture.record_loopback", path, str(bound_bytes)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with path.open("rb") as file:
        return json.loads(done.stdout), list(PcapReader(file)), path


@pytest.mark.parametrize("namespace", [USER_NAMESPACE, ROOT], ids=["user", "root"])
def test_everything_between_start_and_stop_is_recorded_and_nothing_else(tmp_path, namespace):
    if namespace is ROOT and os.geteuid() != 0:
        pytest.skip("needs root")
    recording, packets, _ = record(tmp_path, namespace=namespace)
    segments = [frames.segment(packet.data, 14) for packet in packets]
    data = [each for each in segments if each is not None and each.protocol == frames.UDP]
    # Loopback shows every packet twice: as it leaves and as it arrives.
    numbers = [int.from_bytes(each.payload[:4], "big") for each in data]
    assert sorted(numbers) == sorted([*range(1000), int.from_bytes(b"last", "big")] * 2)
    assert recording["packets"] == len(packets)
    assert (recording["packets_dropped"], recording["bound_reached"]) == (0, False)
    times = [packet.time_ns for packet in packets]
    assert times == sorted(times)


def test_data_is_cut_to_its_headers_and_control_messages_are_whole(tmp_path):
    recording, packets, _ = record(tmp_path)
    for packet in packets:
        segment = frames.segment(packet.data, 14)
        assert segment is not None
        if segment.protocol == frames.UDP:
            assert len(packet.data) == recording["snapshot_bytes"] < packet.length
        else:
            assert len(packet.data) == packet.length
    assert any(packet.length > 5000 for packet in packets)


def test_the_bound_is_kept_and_said(tmp_path):
    recording, packets, path = record(tmp_path, bound_bytes=20_000)
    assert recording["bound_reached"]
    assert 19_000 < path.stat().st_size <= 20_000 + 24
    assert recording["file_bytes"] == path.stat().st_size
    assert recording["packets"] == len(packets)  # the last one is whole
