"""Addresses and ports, and keys where an address is beyond the machine."""

import contextlib
import errno
import os
import random
import socket
import stat
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from testbed.ddp import BoundedLoss, InputError, meeting
from testbed.ddp.settings import Settings
from tests.ddp.ranks import drawn, exchange, last, launch, values

SIZES = (30_000,)


def outside():
    """An interface of this machine whose address is not a loopback one; None without any."""
    for _, name in socket.if_nameindex():
        try:
            address = meeting.own_address(name)
        except InputError:
            continue
        if not meeting.is_loopback(address):
            return name
    return None


def test_an_interface_is_named_by_the_argument_or_as_gloo_does(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert meeting.own_address(None) == "127.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    with pytest.raises(InputError, match=r"MASTER_ADDR is 'no-such-host.invalid', which cannot"):
        meeting.own_address(None)
    assert meeting.own_address("lo") == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert meeting.own_address(None) == "127.0.0.1"
    with pytest.raises(InputError, match=r"interface is 'nowhere0'; valid: .*lo"):
        meeting.own_address("nowhere0")


def test_an_interface_without_ipv4_has_its_address_of_ipv6_beyond_the_link(monkeypatch, tmp_path):
    table = tmp_path / "if_inet6"
    table.write_text(
        "fe800000000000000000000000000001 01 40 20 80       lo\n"
        "fd000000000000000000000000000002 01 40 00 80    other\n"
        "fd000000000000000000000000000001 01 40 00 80       lo\n"
    )
    monkeypatch.setattr(meeting, "_IPV6", table)
    monkeypatch.setattr(meeting.fcntl, "ioctl", Mock(side_effect=OSError(errno.EADDRNOTAVAIL, "")))
    assert meeting.own_address("lo") == "fd00::1"
    table.write_text("")
    with pytest.raises(InputError, match="interface 'lo' has no address of IPv4, nor one of IPv6"):
        meeting.own_address("lo")


def test_an_address_that_others_cannot_reach_is_named():
    meeting.require_reachable(["127.0.0.1", "127.0.0.1"])
    meeting.require_reachable(["10.0.0.1", "10.0.0.2"])
    with pytest.raises(InputError, match=r"rank 1 has the address 127.0.1.1, which other"):
        meeting.require_reachable(["10.0.0.1", "127.0.1.1"])
    meeting.require_reachable(["fd00::1", "fd00::2"])
    with pytest.raises(InputError, match=r"rank 0 has the address fd00::1 and rank 1 10.0.0.1;"):
        meeting.require_reachable(["fd00::1", "10.0.0.1"])


def hold(first, count):
    try:
        with contextlib.ExitStack() as held:
            meeting.hold_ports(held, "127.0.0.1", first, count)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
def test_ports_must_be_free_of_both_kinds(kind):
    with contextlib.ExitStack() as held:
        first = meeting.hold_free_ports(held, "127.0.0.1", 3)
    assert hold(first, 3) == ""
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", first + 2))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        assert hold(first, 3) == f"port {first + 2} of 127.0.0.1 is taken; valid: a free one"
    for first in (65535, 0):
        assert hold(first, 3) == f"port is {first}, and 3 are needed; valid: 1 to 65533"


def test_what_is_wrong_beside_a_taken_port_is_named():
    too_many = OSError(errno.EMFILE, "Too many open files")
    with contextlib.ExitStack() as held:
        with pytest.raises(
            InputError, match=r"192\.0\.2\.1 cannot be used: Cannot assign requested"
        ):
            meeting.hold_free_ports(held, "192.0.2.1", 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "socket", Mock(side_effect=too_many))
            with pytest.raises(
                InputError, match=r"127\.0\.0\.1 cannot be used: Too many open files"
            ):
                meeting.hold_free_ports(held, "127.0.0.1", 2)


def test_ranks_that_look_for_ports_at_once_find_different_ones(monkeypatch):
    random.seed(0)
    before = random.getstate()
    with contextlib.ExitStack() as held:
        first = meeting.hold_free_ports(held, "127.0.0.1", 40)
    assert random.getstate() == before  # scripts draw from it what they like
    draws = iter([first, first, first + 2, first + 4, first + 3])
    monkeypatch.setattr(meeting._DRAWS, "choice", lambda _: next(draws))
    with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
        assert meeting.hold_free_ports(one, "127.0.0.1", 4) == first
        assert meeting.hold_free_ports(other, "127.0.0.1", 4) == first + 4
        one.close()
        other.close()
        assert meeting.hold_free_ports(one, "127.0.0.1", 4) == first + 3


def test_ports_are_held_until_all_ranks_have_theirs():
    def share(stage, facts_of_this):
        facts = facts_of_this()
        assert "is taken" in hold(facts["control"], 2)
        return [facts, {"control": 47000, "data": 47002}]

    rendezvous: Any = SimpleNamespace(
        rank=0, world=2, addresses=["127.0.0.1"] * 2, share=share, _settings=Settings()
    )
    control, data = meeting.Rendezvous.ports(rendezvous, session=1)
    first = control[0]
    assert (control, data) == ([first, 47000], [first + 1, 47002])
    assert hold(first, 2) == ""


def test_exchanges_and_ranks_of_a_machine_share_a_fixed_port():
    near, far = "10.0.0.1", "10.0.0.2"

    opened = []

    def ports(rank, addresses, port=47100):
        rendezvous: Any = object.__new__(meeting.Rendezvous)
        rendezvous.rank, rendezvous.world, rendezvous.addresses = rank, len(addresses), addresses
        rendezvous._settings, rendezvous.identity = Settings(port=port), None
        opened.append(rendezvous)
        first = rendezvous._fixed_ports
        assert rendezvous._fixed_ports == first  # an exchange that is opened anew stays there
        return first

    # Control messages at the port and below; data above, in a row for each rank.
    assert ports(1, [near, near, far]) == (47099, 47103)
    assert ports(0, [near, near, far]) == (47098, 47105)
    assert ports(0, [near, far]) == (47096, 47109)
    assert ports(0, [near, far], 47200) == (47200, 47201)
    for rendezvous in opened:
        rendezvous.close()
    assert ports(0, [near, far]) == (47100, 47101)
    opened[-1].close()


def beyond(rank, interface, collective):
    state = BoundedLoss(mode="reliable", collective=collective, interface=interface, timeout_s=60)
    assert state._rendezvous.identity is not None
    folder = state._rendezvous.identity.folder
    kept = stat.S_IMODE(folder.stat().st_mode), sorted(path.name for path in folder.glob("*.key"))
    parameters = [torch.zeros(size) for size in SIZES]
    for step in range(4):
        (mean,) = exchange(state, drawn(SIZES, rank, step), parameters)
    state.close()
    return mean.numpy(), last(state).carried_by, kept, folder.exists()


@pytest.mark.skipif(outside() is None, reason="no interface with an address beyond this machine")
@pytest.mark.parametrize("collective", ["server", "sharded"])
def test_beyond_the_machine_ranks_have_keys(collective):
    outcomes = values(launch(beyond, 3, interface=outside(), collective=collective))
    for rank, (mean, carried_by, (mode, own), left) in enumerate(outcomes):
        assert np.array_equal(mean, outcomes[0][0])
        assert carried_by == "transport"
        assert (mode, own) == (0o700, [f"rank-{rank}.key", "server.key"])
        assert not left


def over_ipv6(rank):
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    os.environ["MASTER_ADDR"] = "::1"
    state = BoundedLoss("dblp", rate_bps=1e9, timeout_s=60)
    assert state._rendezvous.addresses == ["::1", "::1"]
    parameters = [torch.zeros(size) for size in SIZES]
    for step in range(4):
        (mean,) = exchange(state, drawn(SIZES, rank, step), parameters)
    state.close()
    return mean.numpy(), last(state).carried_by


def test_ranks_whose_master_has_an_address_of_ipv6_use_their_own():
    for mean, carried_by in values(launch(over_ipv6, 2)):
        one, two = (drawn(SIZES, rank, 3)[0].numpy() for rank in (0, 1))
        assert np.array_equal(mean, (one + two) / np.float32(2))
        assert carried_by == "transport"


def in_clear(rank, interface):
    BoundedLoss("tcp", interface=interface, timeout_s=10)


@pytest.mark.skipif(outside() is None, reason="no interface with an address beyond this machine")
def test_kernel_tcp_beyond_the_machine_must_be_asked_for():
    for outcome in launch(in_clear, 2, interface=outside()).values():
        assert outcome.kind == "InputError"
        assert outcome.error.startswith("the protocol tcp sends gradients that anybody on the way")
