"""A run whose parts come from files outside the project: they act, and have no power over it."""

import hashlib
import json

import pytest

from tests.examples.places import EXAMPLES

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("unchanged_host")]

# Notes on which host a part works, and tries there what would change the network.
NOTE = """

def _note(kind):
    import errno, os, socket, struct
    from pathlib import Path
    hosts = [(n, name[: -len("-eth0")]) for n, name in socket.if_nameindex() if name != "lo"]
    path = "/etc/openvswitch/controller.sock"
    if not hosts or not os.path.exists(path):
        return  # parts are also made before there is a lab
    ((index, host),) = hosts
    with socket.socket(socket.AF_UNIX) as opened:
        connected = errno.errorcode.get(opened.connect_ex(path), "connected")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:  # RTM_DELLINK
        netlink.send(struct.pack("=IHHIIBxHiII", 32, 17, 5, 1, 0, 0, 0, index, 0, 0))
        deleted = errno.errorcode.get(-struct.unpack_from("=i", netlink.recv(4096), 16)[0], "yes")
    with Path(__file__).with_name("noted").open("a") as file:
        print(kind, host, connected, deleted, file=file)


"""
PARTS = {
    "congestion_control": ("Aimd", "on_feedback"),
    "order": ("Interleaved", "permutation"),
    "filling": ("Faded", "estimate_mean"),
}
# The part of the example, which notes its first use.
MINE = """
class Mine({name}):
    noted = False

    def {method}(self, *arguments):
        if not Mine.noted:
            Mine.noted = True
            _note({kind!r})
        return super().{method}(*arguments)
"""


def test_own_parts_work_on_the_hosts_of_a_run_and_have_no_power_over_its_network(
    run_small, tmp_path
):
    arm, hashes = {"protocol": "dblp"}, {}
    for kind, (name, method) in PARTS.items():
        path = tmp_path / f"{kind}.py"
        text = (EXAMPLES / f"own_{kind}.py").read_text() + NOTE
        path.write_text(text + MINE.format(name=name, method=method, kind=kind))
        arm[kind] = f"./{path.name}:Mine"
        hashes[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    results = run_small(arms={"dblp": arm})
    results.assert_trained()
    noted = [line.split() for line in (tmp_path / "noted").read_text().splitlines()]
    workers = {"worker-1", "worker-2"}
    assert {host for kind, host, *_ in noted if kind == "congestion_control"} >= workers
    assert {host for kind, host, *_ in noted if kind == "order"} >= workers
    assert "server" in {host for kind, host, *_ in noted if kind == "filling"}
    assert {tuple(refused) for _, _, *refused in noted} == {("EACCES", "EPERM")}
    for name in ("config", "manifest"):
        assert json.loads((results.run() / f"{name}.json").read_text())["code"] == hashes
