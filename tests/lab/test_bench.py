"""The benchmark verb and its delay line, in sandboxes of their own."""

import json
from pathlib import Path

import pytest

from testbed.lab.delay.relay import GRAIN_S
from tests.bench.test_transport import CONTRACT
from tests.lab.conftest import finished
from tests.own_network import printed

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

ADAPTER = Path(__file__).resolve().parents[2] / "examples" / "peer" / "plain_tcp.py"

# Inside a sandbox: a pair with an added round trip, and what pings through it took, in ms.
PING = """
import json, os, re
from testbed.bench.network import LinkKind, SERVER_ADDRESS, build
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.shaping import inside
network = build(LinkKind(rtt_s=0.01))
here = inside(network.workers[0].pid)
printed = run([*here, "ping", "-c", "40", "-i", "0.01", "-s", "1400", SERVER_ADDRESS])
times = [float(each) for each in re.findall(r"time=([0-9.]+) ms", printed)]
network.close()
print(json.dumps({"times": times}))
"""


def test_a_quick_benchmark_writes_the_contracts_records(tmp_path):
    path = tmp_path / "bench.json"
    done = finished(
        "bench", "transport", "--quick", "--json", str(path), "--cases", "100M/loss-*/*[sc]"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads(path.read_text())
    assert {record["peer"] for record in records} == {"ours", "tcp-cubic"}
    for record in records:
        assert record.keys() >= CONTRACT
        if record["status"] == "ok":
            assert record["completion_s"] > 0.4 * record["byte_bound_s"]
            assert record["n"] >= 1
            assert record["cpu_s_per_gb_sender"] > 0
            # All that arrived was sent, in frames with headers.
            assert record["wire_bytes"] > record["delivered_share"] * record["payload_bytes"]
            assert 0 < record["cpu_s_per_gb_wire_sender"] < record["cpu_s_per_gb_sender"]
        assert record["case"] in done.stdout
    assert {record["status"] for record in records if record["peer"] == "ours"} == {"ok"}


THEIRS = """
def send_all(connection, data):
    connection.sendall(data)

def receive_all(connection, size):
    data = bytearray()
    while len(data) < size:
        data += connection.recv(size - len(data))
    return bytes(data)
"""


def other_implementation(folder):
    folder.mkdir()
    (folder / "theirs.py").write_text(THEIRS)
    return str(folder)


def test_another_implementation_is_measured_on_the_same_links(tmp_path):
    path = tmp_path / "peer.json"
    words = ("peer", other_implementation(tmp_path / "theirs"), "--adapter", str(ADAPTER))
    done = finished("bench", *words, "--quick", "--json", str(path), "--cases", "100M/loss-0%/*")
    assert done.returncode == 0, done.stdout + done.stderr
    records = {record["peer"]: record for record in json.loads(path.read_text())}
    assert records.keys() == {"plain_tcp", "ours", "tcp-cubic"}
    theirs, ours = records["plain_tcp"], records["ours"]
    assert theirs.keys() == ours.keys() >= CONTRACT
    assert theirs["byte_bound_s"] == ours["byte_bound_s"]
    assert theirs["completion_s"] > 0.9 * theirs["byte_bound_s"]
    assert theirs["wire_bytes"] > theirs["payload_bytes"]
    assert theirs["cpu_s_per_gb_wire_receiver"] > 0


def test_data_that_no_link_loses_are_no_measurement_of_loss(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(ADAPTER.read_text().replace("end.data_port", "end.control_port"))
    folder = other_implementation(tmp_path / "theirs")
    words = ("peer", folder, "--adapter", str(mine), "--quick", "--cases", "100M/loss-60%/*/mine")
    done = finished("bench", *words)
    assert done.returncode == 1
    assert "failed: its data did not go to port 47000, so the link lost nothing" in done.stdout


def test_the_delay_line_adds_its_delay():
    spaces = ("--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child")
    measured = printed(PING, before=("unshare", *spaces, "--mount-proc"))
    times_ms = sorted(measured["times"])
    assert len(times_ms) == 40
    # On either way, a frame may leave half a grain before its time.
    assert times_ms[0] >= 10 - GRAIN_S * 1e3
    assert times_ms[20] < 14  # two relays and two hosts share the processors with whatever else
