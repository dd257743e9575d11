"""Addresses and host names: resolved once, with one clear error."""

import pytest

from testbed.transport.net.addresses import is_loopback, packed, resolve
from tests.transport.loopback import both, carry, joined, site


def test_an_address_is_a_host():
    assert resolve("127.0.0.2", what="host") == "127.0.0.2"
    assert is_loopback("127.0.0.2") and not is_loopback("192.0.2.1")
    assert packed(("127.0.0.2", 80)) == bytes([2, 0, 0, 80, 127, 0, 0, 2]).ljust(32, b"\0")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no-such-host.invalid", "peers: worker-1 is 'no-such-host.invalid'"),
        ("::1", "'::1', which cannot be resolved.*valid: an IPv4 address"),
        ("a" * 300, "cannot be resolved"),
        ("", "is ''"),
    ],
)
def test_a_name_that_means_nothing_is_one_clear_line(name, words):
    with pytest.raises(OSError, match=words) as caught:
        resolve(name, what="peers: worker-1")
    assert len(str(caught.value).splitlines()) == 1


@both
def test_endpoints_find_each_other_by_name(protocol):
    place = site(protocol)
    server_config = place.server(peers={"worker-1": "localhost"})
    worker_config = place.worker(bind_address="localhost", data_port=0)
    with joined(place, server_config, worker_config) as (worker, server):
        carry(worker, server)
