"""IPv6 and host names: resolved once, with one clear error."""

import socket

import pytest

from testbed.transport.net.addresses import in_words, packed, resolve
from tests.transport.loopback import both, carry, joined, site


def test_an_address_is_a_host():
    host = resolve("127.0.0.2", what="host")
    assert (str(host), host.at(80), host.is_loopback) == ("127.0.0.2", ("127.0.0.2", 80), True)
    assert host.is_source(("127.0.0.2", 5)) and not host.is_source(("127.0.0.3", 5))
    assert in_words(host.at(80)) == "127.0.0.2:80"
    assert not resolve("192.0.2.1", what="host").is_loopback
    six = resolve("2001:db8::1", what="host")
    assert (six.at(80), six.family) == (("2001:db8::1", 80, 0, 0), socket.AF_INET6)
    assert in_words(six.at(80)) == "[2001:db8::1]:80"
    assert six.is_source(("2001:db8::1", 5, 0, 0)) and not six.is_source(("2001:db8::2", 5, 0, 0))


def test_addresses_of_one_link_belong_to_their_interface():
    host = resolve("fe80::1%lo", what="host")
    index = socket.if_nametoindex("lo")
    assert host.is_source(("fe80::1%lo", 5, 0, index))
    assert not host.is_source(("fe80::1%other", 5, 0, index + 1))
    assert bytes(packed(host.at(80)))[24:28] == index.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("name", "family", "words"),
    [
        ("no-such-host.invalid", socket.AF_UNSPEC, "peers: worker-1 is 'no-such-host.invalid'"),
        ("::1", socket.AF_INET, "as an IPv4 address"),
        ("127.0.0.1", socket.AF_INET6, "as an IPv6 address"),
        ("a" * 300, socket.AF_UNSPEC, "cannot be resolved"),
        ("", socket.AF_INET, "is ''"),
    ],
)
def test_a_name_that_means_nothing_is_one_clear_line(name, family, words):
    with pytest.raises(OSError, match=words) as caught:
        resolve(name, socket.AddressFamily(family), what="peers: worker-1")
    assert len(str(caught.value).splitlines()) == 1


@both
def test_endpoints_find_each_other_by_ipv6_and_by_name(protocol):
    try:
        place = site(protocol, control_port=free_port(), data_port=free_port())
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    server_config = place.server(bind_address="::1", peers={"worker-1": "::1"})
    try:
        named = socket.getaddrinfo("ip6-localhost", 0, socket.AF_INET6)[0][4][0] == "::1"
    except OSError:
        named = False
    worker_config = place.worker(
        bind_address="::1", peers={"server": "ip6-localhost" if named else "::1"}, data_port=0
    )
    with joined(place, server_config, worker_config) as (worker, server):
        carry(worker, server)


def free_port() -> int:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        return int(taken.getsockname()[1])
