"""Addresses and ports, and keys where an address is beyond the machine."""

import random
import socket
import stat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from testbed.ddp import BoundedLoss, InputError, places
from tests.ddp.ranks import drawn, exchange, last, launch, values

SIZES = (30_000,)


def outside():
    """An interface of this machine whose address is not a loopback one; None without any."""
    for _, name in socket.if_nameindex():
        try:
            address = places.own_address(name)
        except InputError:
            continue
        if not places.is_loopback(address):
            return name
    return None


def test_an_interface_is_named_by_the_argument_or_as_gloo_does(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert places.own_address(None) == "127.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    with pytest.raises(InputError, match=r"MASTER_ADDR is 'no-such-host.invalid', which cannot"):
        places.own_address(None)
    assert places.own_address("lo") == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert places.own_address(None) == "127.0.0.1"
    with pytest.raises(InputError, match=r"interface is 'nowhere0'; valid: .*lo"):
        places.own_address("nowhere0")


def test_an_address_that_others_cannot_reach_is_named():
    places.require_reachable(["127.0.0.1", "127.0.0.1"])
    places.require_reachable(["10.0.0.1", "10.0.0.2"])
    with pytest.raises(InputError, match=r"rank 1 has the address 127.0.1.1, which other"):
        places.require_reachable(["10.0.0.1", "127.0.1.1"])


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
def test_ports_must_be_free_of_both_kinds(kind):
    with places.free_ports("127.0.0.1", 3) as first:
        pass
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", first + 2))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        with pytest.raises(InputError, match=rf"port {first + 2} of 127.0.0.1 is taken"):
            places.check_free("127.0.0.1", first, 3)
    with pytest.raises(InputError, match=r"port is 65535, and 3 are needed; valid: up to 65533"):
        places.check_free("127.0.0.1", 65535, 3)


def test_ranks_that_look_for_ports_at_once_find_different_ones(monkeypatch):
    random.seed(0)
    before = random.getstate()
    with places.free_ports("127.0.0.1", 40) as first:
        pass
    assert random.getstate() == before  # scripts draw from it what they like
    draws = iter([first, first, first + 2, first + 4])
    monkeypatch.setattr(places._DRAWS, "choice", lambda _: next(draws))
    with places.free_ports("127.0.0.1", 4) as one:
        with places.free_ports("127.0.0.1", 4) as other:
            assert (one, other) == (first, first + 4)
        draws = iter([first + 3])
    with places.free_ports("127.0.0.1", 4) as again:
        assert again == first + 3


def test_ports_are_held_until_all_ranks_have_theirs():
    def share(stage, facts, problem):
        with pytest.raises(InputError, match="is taken"):
            places.check_free("127.0.0.1", facts["control_port"], 2)
        return [facts, {"control_port": 47000, "data_port": 47002}]

    settings: Any = SimpleNamespace(port=None)
    rendezvous: Any = SimpleNamespace(rank=0, world=2, share=share)
    control, data = places.find_ports(settings, rendezvous, ["127.0.0.1"] * 2, session=1)
    first = control[0]
    assert (control, data) == ([first, 47000], [first + 1, 47002])
    places.check_free("127.0.0.1", first, 2)


def beyond(rank, interface, collective):
    """Exchanges with keys; returns what was seen of them."""
    state = BoundedLoss(mode="reliable", collective=collective, interface=interface, timeout_s=60)
    assert state._places is not None and state._places.identity is not None
    folder = state._places.identity.folder
    kept = stat.S_IMODE(folder.stat().st_mode), sorted(path.name for path in folder.glob("*.key"))
    parameters = [torch.zeros(size) for size in SIZES]
    for step in range(4):
        (mean,) = exchange(state, drawn(SIZES, rank, step), parameters)
    state.close()
    return mean.numpy(), last(state).carried_by, kept, folder.exists()


@pytest.mark.skipif(outside() is None, reason="no interface with an address beyond this machine")
@pytest.mark.parametrize("collective", ["server", "sharded"])
def test_beyond_the_machine_ranks_have_keys(collective):
    told = values(launch(beyond, 3, interface=outside(), collective=collective))
    for rank, (mean, carried_by, (mode, own), left) in enumerate(told):
        assert np.array_equal(mean, told[0][0])
        assert carried_by == "transport"
        assert (mode, own) == (0o700, [f"rank-{rank}.key", "server.key"])
        assert not left


def in_clear(rank, interface):
    BoundedLoss("tcp", interface=interface, timeout_s=10)


@pytest.mark.skipif(outside() is None, reason="no interface with an address beyond this machine")
def test_kernel_tcp_beyond_the_machine_must_be_asked_for():
    for outcome in launch(in_clear, 2, interface=outside()).values():
        assert outcome.kind == "InputError"
        assert outcome.error.startswith("the protocol tcp sends gradients that anybody on the way")
