"""Runs whose parts come from files outside the project: they act, and the run records them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]


def recorded(run: Path) -> dict[str, str]:
    """Files and hashes in the configuration; the manifest has the same."""
    config, manifest = (
        json.loads((run / f"{name}.json").read_text()) for name in ("config", "manifest")
    )
    assert manifest["code"] == config["code"]
    return dict(config["code"])


MINE = """
import errno, os, socket, struct
from pathlib import Path
from testbed.transport import CongestionControl

def delete(name):
    try:
        index = socket.if_nametoindex(name)
    except OSError:
        return  # it is not of this process's host
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:  # RTM_DELLINK
        netlink.send(struct.pack("=IHHIIBxHiII", 32, 17, 5, 1, 0, 0, 0, index, 0, 0))
        error = -struct.unpack_from("=i", netlink.recv(4096), 16)[0]
    with Path(__file__).with_name("tried").open("a") as file:
        print(name, errno.errorcode.get(error, "deleted"), file=file)

def connect():
    path = "/etc/openvswitch/controller.sock"
    if not os.path.exists(path):
        return  # the class is also made before there is a lab
    with socket.socket(socket.AF_UNIX) as opened:
        error = opened.connect_ex(path)
    with Path(__file__).with_name("tried").open("a") as file:
        print("controller", errno.errorcode.get(error, "connected"), file=file)

class Mine(CongestionControl):
    rate = -1e6
    def __init__(self):
        connect()
        for name in ("server-eth0", "worker-1-eth0", "worker-2-eth0"):
            delete(name)
    def on_feedback(self, feedback): pass
    @property
    def rate_bps(self):
        return self.rate
"""


def test_an_own_congestion_control_has_no_power_and_with_a_negative_rate_fails_the_run_by_name(
    run_small, tmp_path
):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    arm = {"protocol": "dblp", "congestion_control": "./mine.py"}
    results = run_small(arms={"dblp": arm}, transport={"peer_timeout_s": 30})
    hosts = ("server", "worker-1", "worker-2")
    tried = set((tmp_path / "tried").read_text().splitlines())
    refused = {f"{host}-eth0 EPERM" for host in hosts}
    # The first host that uses the rate ends the run, perhaps before the others made theirs.
    assert "controller EACCES" in tried
    assert tried & refused
    assert tried <= {"controller EACCES"} | refused
    status = results.verdict()
    assert status["verdict"] == "failed"
    process, _, words = status["reason"].partition(": ")
    assert process in hosts
    assert words.startswith(f"{path}: line 33: Mine.rate_bps is -1000000.0; expected bit/s above 0")
    assert words.endswith(f"; see logs/{process}.log")
    assert "Traceback" in (results.run() / "logs" / f"{process}.log").read_text()
    assert recorded(results.run()) == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    assert status["wall_s"] < 25  # not after the transport's patience
