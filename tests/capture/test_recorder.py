"""tcpdump records a link whole, from a namespace of any user, and bounded."""

import json
import os
import subprocess
import sys

import pytest
from scapy.layers.inet import TCP, UDP
from scapy.utils import rdpcap

from testbed.capture import recorder
from testbed.shared.input_error import InputError

USER_NAMESPACE = ("unshare", "--user", "--map-root-user", "--net", "--mount")
ROOT = ("unshare", "--net", "--mount")


def record(tmp_path, bound_bytes=1 << 30, namespace=USER_NAMESPACE):
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs '{' '.join(namespace)}'")
    folder = tmp_path / "pcap"
    done = subprocess.run(
        [
            *namespace,
            sys.executable,
            "-m",
            "tests.capture.record_loopback",
            folder,
            str(bound_bytes),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path = folder / "lo.pcap"
    return json.loads(done.stdout), rdpcap(str(path)), path


@pytest.mark.parametrize("namespace", [USER_NAMESPACE, ROOT], ids=["user", "root"])
def test_everything_between_start_and_stop_is_recorded_by_its_headers(tmp_path, namespace):
    if namespace is ROOT and os.geteuid() != 0:
        pytest.skip("needs root")
    recording, packets, path = record(tmp_path, namespace=namespace)
    data = [bytes(packet[UDP].payload) for packet in packets if UDP in packet]
    # Loopback shows a packet twice: as it leaves and as it arrives.
    numbers = {int.from_bytes(entry[:4], "big") for entry in data}
    assert numbers == {*range(1000), int.from_bytes(b"last", "big")}
    assert any(packet.wirelen > 5000 and TCP in packet for packet in packets)
    assert max(map(len, packets)) == recording["snapshot_bytes"]
    assert recording["packets"] == len(packets)
    assert recording["file_bytes"] == path.stat().st_size
    assert recording["failure"] == ""
    assert (recording["packets_dropped"], recording["bound_reached"]) == (0, False)


def test_the_bound_is_kept_and_said(tmp_path):
    recording, packets, path = record(tmp_path, bound_bytes=20_000)
    assert recording["bound_reached"]
    assert 19_000 < path.stat().st_size <= 20_000
    assert recording["packets"] == len(packets)  # the last one is whole


def test_without_tcpdump_the_option_is_refused_in_a_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="--pcap: there is no tcpdump; valid: apt-get install"):
        recorder.require()
