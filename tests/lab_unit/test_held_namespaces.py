"""A host is a pair of namespaces that a thread holds; its interface is set up by messages."""

import json
import os
import threading
from pathlib import Path

import pytest

from testbed.lab.kernel import namespaces, rtnetlink, socket_defaults
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shaping import inside

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces: needs root")
MAC = "00:00:00:00:00:07"


@pytest.fixture(scope="module")
def host() -> int:
    return namespaces.hold("a host")


def test_it_has_namespaces_of_its_own_and_sees_its_own_interfaces_in_sys(host):
    for kind in ("net", "mnt"):
        own, ours = (Path(f"/proc/{entry}/ns/{kind}").readlink() for entry in (host, "self"))
        assert own != ours
    enter = ["nsenter", f"--net=/proc/{host}/ns/net", f"--mount=/proc/{host}/ns/mnt"]
    assert "lo" in run([*enter, "ls", "/sys/class/net"]).split()
    run([*inside(host), "ip", "link", "add", "only-here", "type", "veth", "peer", "name", "other"])
    assert "only-here" in run([*enter, "ls", "/sys/class/net"]).split()
    assert not Path("/sys/class/net/only-here").exists()


def test_the_thread_that_asked_stays_where_it_is(host):
    here = Path("/proc/thread-self/ns/net").readlink()
    another = namespaces.hold("another host")
    assert Path("/proc/thread-self/ns/net").readlink() == here
    assert Path(f"/proc/{another}/ns/net").readlink() != Path(f"/proc/{host}/ns/net").readlink()
    assert {"namespaces of another host"} <= {entry.name for entry in threading.enumerate()}


def test_addresses_and_neighbours_are_as_ip_sees_them(host):
    with Rtnetlink(host) as kernel:
        kernel.send([rtnetlink.veth("eth0", "peer0")])
        interface = kernel.interface("eth0")
        kernel.send(
            [
                rtnetlink.hardware_address(interface, MAC),
                rtnetlink.address(interface, "10.0.0.7/8"),
                rtnetlink.up(interface),
                rtnetlink.neighbour(interface, address="10.0.0.9", mac="00:00:00:00:00:09"),
            ]
        )
    (link,) = json.loads(run([*inside(host), "ip", "-j", "address", "show", "dev", "eth0"]))
    assert link["address"] == MAC
    assert {"UP"} <= set(link["flags"]) and "NOARP" not in link["flags"]
    (result,) = (entry for entry in link["addr_info"] if entry["family"] == "inet")
    assert (result["local"], result["prefixlen"], result["broadcast"]) == (
        "10.0.0.7",
        8,
        "10.255.255.255",
    )
    (existing,) = json.loads(run([*inside(host), "ip", "-j", "-4", "neigh", "show", "dev", "eth0"]))
    assert (existing["dst"], existing["lladdr"], existing["state"]) == (
        "10.0.0.9",
        "00:00:00:00:00:09",
        ["PERMANENT"],
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [("/dev/null", "'' and not '47000-47999' are reserved"), ("/dev/nothing/here", "No such")],
)
def test_what_cannot_be_read_back_is_an_error(monkeypatch, path, message):
    monkeypatch.setattr(socket_defaults, "_RESERVED", Path(path))
    with pytest.raises(CommandError, match=message):
        socket_defaults.reserve_ports(None, 47000, 47999)
