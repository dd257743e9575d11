"""The workload's data ports are nobody's by chance."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from testbed.lab.kernel.namespaces import entered, socket_in
from tests.lab.lab_under_test import running_lab

pytestmark = pytest.mark.lab
FIRST, LAST = 47000, 47999


def chosen_ports(pid: int, address: str, kind: socket.SocketKind, count: int) -> set[int]:
    """Ports that the kernel gives to sockets which are all open at once."""
    opened, ports = [], set()
    try:
        for _ in range(count):
            opened.append(socket_in(pid, socket.AF_INET, kind))
            opened[-1].bind((address, 0))
            ports.add(opened[-1].getsockname()[1])
    finally:
        for each in opened:
            each.close()
    return ports


def connections_ports(pid: int, address: str, count: int) -> set[int]:
    """Ports of connections that are all open at once, as control connections get theirs."""
    with socket_in(pid, socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(count)
        opened = [socket_in(pid, socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
        try:
            for each in opened:
                each.settimeout(5)
                each.connect((address, listener.getsockname()[1]))
            return {each.getsockname()[1] for each in opened}
        finally:
            for each in opened:
                each.close()


def test_no_host_gives_a_data_port_to_a_socket_that_asked_for_none(tmp_path):
    with running_lab(tmp_path / "lab", []) as lab:
        assert lab.network["data_ports"] == [FIRST, LAST]
        for name in lab.network["hosts"]:
            with entered(lab.host_pid(name)):
                found = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
                low, high = map(int, found)
            assert low <= FIRST <= LAST <= high, "else this proves nothing"
            # A third of the range: without the reservation 350 of them would lie in it.
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                ports = chosen_ports(lab.host_pid(name), lab.address(name), kind, 10_000)
                assert len(ports) == 10_000
                assert not ports & set(range(FIRST, LAST + 1))
            ports = connections_ports(lab.host_pid(name), lab.address(name), 1000)
            assert not ports & set(range(FIRST, LAST + 1))
            with socket_in(lab.host_pid(name), socket.AF_INET, socket.SOCK_DGRAM) as asked:
                asked.bind((lab.address(name), FIRST))  # who asks for one gets it
