"""TLS for control streams: the command that makes keys, who is let in, and what others hear."""

import os
import re
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.shared.input_error import InputError
from testbed.transport import (
    EndpointConfig,
    PayloadLayout,
    PeerLost,
    ProtocolError,
    open_endpoint,
    preset,
)
from testbed.transport.messages import Cipher, Welcome
from testbed.transport.net import keys
from testbed.transport.net.membership import Membership
from testbed.transport.net.tls import Credentials, Tls, TlsError, aes
from testbed.transport.wire import fields, new_frames
from tests.transport.loopback import SESSION, carry, failure, in_thread, joined, site, udp_of

NAMES = ["server", "worker-1", "worker-2"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    keys.make(directory, NAMES)
    keys.make(directory / "others", NAMES)
    return directory


def openssl(*arguments: object, stdin: bytes = b"") -> bytes:
    command = ["openssl", *map(str, arguments)]
    return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout


def credentials(folder: Path, name: str, *peers: str) -> Credentials:
    return Credentials.of(folder, name, peers)


def server_of(folder: Path) -> Tls:
    return credentials(folder, "server", "worker-1", "worker-2").tls(is_server=True)


def worker_of(folder: Path) -> Tls:
    return credentials(folder, "worker-1", "server").tls(is_server=False)


def converse(server: Tls, worker: Tls, piece: int = 1 << 16) -> tuple[bytes, bytes]:
    """Carries bytes to and fro, in pieces, until neither has more; what each side read."""
    heard = {server: b"", worker: b""}
    for _ in range(20):
        moved = False
        for speaker, listener in ((worker, server), (server, worker)):
            words = speaker.outgoing()
            for at in range(0, len(words), piece):
                heard[listener] += listener.feed(words[at : at + piece])
                moved = True
        if not moved:
            break
    return heard[server], heard[worker]


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
def test_both_sides_learn_the_others_name_and_read_what_was_said(folder, piece):
    server, worker = server_of(folder), worker_of(folder)
    words = worker.write(b"HELLO before the handshake")  # kept until then
    assert b"HELLO" not in words
    server.feed(words)
    heard = converse(server, worker, piece)
    assert (server.identity, worker.identity) == ("worker-1", "server")
    assert heard == (b"HELLO before the handshake", b"")
    large = bytes(range(256)) * 1000
    words = server.write(large)
    assert len(words) > len(large) and large[:64] not in words
    assert b"".join(worker.feed(words[at : at + 999]) for at in range(0, len(words), 999)) == large


def test_an_impostor_of_the_server_is_refused(folder):
    impostor = credentials(folder / "others", "server", "worker-1").tls(is_server=True)
    with pytest.raises(TlsError, match="its certificate is refused"):
        converse(impostor, worker_of(folder))


def test_one_more_may_be_trusted_later_also_of_the_same_name(folder):
    ours = credentials(folder, "server", "worker-1")
    others = folder / "others"
    again = Credentials(others / "worker-1.crt", others / "worker-1.key", (folder / "server.crt",))
    with pytest.raises(TlsError, match="its certificate is refused"):
        converse(ours.tls(is_server=True), again.tls(is_server=False))
    ours.trust((others / "worker-1.crt").read_text())
    for worker in (again.tls(is_server=False), worker_of(folder)):
        server = ours.tls(is_server=True)
        converse(server, worker)
        assert server.identity == "worker-1"
    with pytest.raises(ValueError, match="this is no certificate: "):
        ours.trust("nothing")


NEW_KEY = ("-newkey", "ed25519", "-nodes")


def meet(folder: Path, trusted: Path, certificate: Path, key: Path) -> None:
    server = Credentials(folder / "server.crt", folder / "server.key", (trusted,))
    worker = Credentials(certificate, key, (folder / "server.crt",))
    converse(server.tls(is_server=True), worker.tls(is_server=False))


def test_a_certificate_that_a_trusted_one_has_signed_is_not_trusted(folder, tmp_path):
    key, out, own, signed = (tmp_path / name for name in ("1.key", "1.crt", "2.key", "2.crt"))
    authority = ("-addext", "basicConstraints=critical,CA:TRUE")
    openssl("req", "-x509", *NEW_KEY, "-subj", "/CN=1", *authority, "-keyout", key, "-out", out)
    request = openssl("req", *NEW_KEY, "-subj", "/CN=worker-2", "-keyout", own)
    signer = ("-CA", out, "-CAkey", key, "-CAcreateserial")
    openssl("x509", "-req", *signer, "-out", signed, stdin=request)
    with pytest.raises(TlsError, match="not one of those that are trusted here"):
        meet(folder, out, signed, own)


def test_an_expired_certificate_is_refused(folder, tmp_path):
    key, out = tmp_path / "worker-1.key", tmp_path / "worker-1.crt"
    request = openssl("req", *NEW_KEY, "-subj", "/CN=worker-1", "-keyout", key)
    openssl("x509", "-req", "-signkey", key, "-days", "0", "-out", out, stdin=request)
    with pytest.raises(TlsError, match="its certificate is refused: certificate has expired"):
        meet(folder, out, out, key)


def nobody_s(newest=ssl.TLSVersion.TLSv1_3):
    """A client that proves nothing, what comes for it, and its first words and later ones."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = newest
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    nobody = context.wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        nobody.do_handshake()
    return nobody, incoming, outgoing


def test_one_without_a_certificate_is_refused(folder):
    nobody, incoming, outgoing = nobody_s()
    server = server_of(folder)
    server.feed(outgoing.read())
    incoming.write(server.outgoing())
    nobody.do_handshake()
    with pytest.raises(TlsError, match="peer did not return a certificate"):
        server.feed(outgoing.read())
    assert server.identity is None


def test_older_versions_are_refused(folder):
    _, _, outgoing = nobody_s(ssl.TLSVersion.TLSv1_2)
    with pytest.raises(TlsError, match="unsupported protocol"):
        server_of(folder).feed(outgoing.read())


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01" * 50])
def test_noise_instead_of_a_handshake_is_an_error(folder, words):
    for tls in (server_of(folder), worker_of(folder)):
        with pytest.raises(TlsError):
            for _ in range(1000):  # what claims to be a record may have to be complete
                tls.feed(words)
        assert tls.identity is None
        assert tls.write(b"secret") == b""  # nothing is said to one who has proven nothing


def test_credentials_name_the_file_that_is_missing_or_unfit(folder, tmp_path):
    with pytest.raises(OSError, match="worker-9"):
        credentials(folder, "worker-9", "server")
    with pytest.raises(OSError, match="worker-9"):
        credentials(folder, "server", "worker-9")
    broken = Credentials(folder / "server.crt", folder / "worker-1.key", (folder / "worker-1.crt",))
    with pytest.raises(ValueError, match=r"server\.crt and .*worker-1\.key"):
        broken.tls(is_server=True)


# Endpoints.


def secure_site(folder: Path, workers: int = 1, **settings):
    """A site whose sides have credentials, and the server's."""
    layout = PayloadLayout([("w", 100_001)], chunk_bytes=1440)
    place = site(preset("fixed-low", tolerance=0), layout=layout, workers=workers, **settings)
    return place, credentials(folder, "server", *place.addresses)


def secured(folder: Path, **settings):
    place, trust = secure_site(folder, **settings)
    mine = credentials(folder, "worker-1", "server")
    return joined(place, place.server(credentials=trust), place.worker(credentials=mine))


def test_endpoints_with_credentials_move_payloads(folder):
    with secured(folder) as (worker, server):
        carry(worker, server)
        carry(server, worker, 1)


@pytest.mark.skipif(aes() is None, reason="no C, or no libcrypto.so.3")
@pytest.mark.parametrize("who_can", ["both", "server", "worker", "one lacks it"])
def test_what_both_sides_can_seals_the_datagrams(folder, monkeypatch, who_can):
    place, trust = secure_site(folder)
    mine = credentials(folder, "worker-1", "server")
    server = place.server(credentials=trust, encrypted=who_can != "worker")
    worker = place.worker(credentials=mine, encrypted=who_can != "server")
    if who_can == "one lacks it":
        lacks = property(lambda self: Cipher.AES_256_GCM if self.is_server else Cipher.BLAKE2B)
        monkeypatch.setattr(EndpointConfig, "cipher", lacks)
    with joined(place, server, worker) as (worker, server):
        carry(worker, server)
        carry(server, worker, 1)
        facts = worker.facts()["server"], server.facts()["worker-1"]
    expected = "AES_256_GCM" if who_can == "both" else "BLAKE2B"
    assert [fact["cipher"] for fact in facts] == [expected] * 2


def test_a_cipher_that_was_not_offered_is_refused(folder, monkeypatch):
    place, trust = secure_site(folder, connect_timeout_s=2.0)
    mine = credentials(folder, "worker-1", "server")
    monkeypatch.setattr(
        Membership,
        "_welcome",
        lambda self, name, key, cipher: Welcome(
            session=SESSION, data_port=1, key=key, cipher=Cipher.AES_256_GCM
        ),
    )
    opened = in_thread(lambda: open_endpoint(place.server(credentials=trust)))
    with pytest.raises((ProtocolError, PeerLost), match="WELCOME with cipher 1; valid: up to 0"):
        open_endpoint(place.worker(credentials=mine))
    opened.result(timeout=30).close()


def test_encryption_needs_credentials():
    with pytest.raises(ValueError, match="encrypted is True; valid: with credentials"):
        site().worker(encrypted=True)


@pytest.mark.parametrize(
    ("server_has", "worker_has", "worker_hears", "operator_reads"),
    [
        (  # it says that it is worker-1
            *("keys", "worker-2", "closed without a WELCOME"),
            r"\d another-name \(the last: 'worker-1' from 127",
        ),
        ("keys", "others", "certificate", r"\d silent \(the last: 127\S+: its certificate is"),
        ("keys", None, "has only one side credentials", r"it does not speak TLS"),
        (None, "worker-1", "has only one side credentials|does not speak TLS", r"\d garbage \("),
    ],
)
def test_who_does_not_prove_its_name_does_not_join(
    folder, server_has, worker_has, worker_hears, operator_reads
):
    place, trust = secure_site(folder, workers=2, connect_timeout_s=1.0)
    mine = None
    if worker_has == "others":
        mine = Credentials.of(folder / "others", "worker-1", ["server"])
        mine = Credentials(mine.certificate, mine.key, (folder / "server.crt",))
    elif worker_has is not None:
        mine = credentials(folder, worker_has, "server")
    hears = in_thread(failure, open_endpoint, place.worker(credentials=mine))
    with pytest.raises(PeerLost, match="worker-1, worker-2") as caught:
        open_endpoint(place.server(credentials=trust if server_has else None))
    assert re.search(worker_hears, str(hears.result(timeout=30)))
    assert re.search(operator_reads, caught.value.reason)


def test_a_server_whose_certificate_has_another_name_is_left(folder):
    place, _ = secure_site(folder, connect_timeout_s=2.0)
    posing = credentials(folder, "worker-2", "worker-1")
    opened = in_thread(lambda: open_endpoint(place.server(credentials=posing)))
    mine = credentials(folder, "worker-1", "worker-2")
    with pytest.raises(ProtocolError, match="certificate names 'worker-2', not 'server'"):
        open_endpoint(place.worker(credentials=mine))
    with pytest.raises(PeerLost):
        opened.result(timeout=30).receive(0, 0, {"worker-1": place.layout.new_buffer()})


def test_datagrams_of_one_who_knows_session_and_address_but_not_the_key_are_forgeries(folder):
    with secured(folder) as (worker, server):
        udp = udp_of(worker)
        forged = new_frames(50, 1440 + 16)
        batch = fields(forged[:, :-16], 1440)
        batch["session"], batch["sequence"], batch["length"] = SESSION, range(50), 1440
        batch["chunk"] = 0xEE
        genuine, udp.seal = udp.seal, None
        assert udp.send(forged) == 50  # from the worker's own address and port
        udp.seal = genuine
        carry(worker, server)
        assert server.counters()["forged"] == 50


def test_addresses_beyond_this_system_need_credentials():
    with pytest.raises(ValueError, match="credentials"):
        open_endpoint(site().worker(peers={"server": "192.0.2.1"}))


def test_kernel_tcp_with_credentials_is_refused(folder):
    with pytest.raises(ValueError, match="the protocol tcp sends its payloads in clear"):
        site(preset("tcp")).worker(credentials=credentials(folder, "worker-1", "server"))


# Keys.


def run(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({} if path is None else {"PATH": path})
    command = [sys.executable, "-m", "testbed.transport.net.keys", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_command_writes_a_pair_per_name_that_only_its_owner_reads(tmp_path):
    folder = tmp_path / "new" / "keys"
    done = run(str(folder), "server", "worker-1")
    assert done.returncode == 0, done.stderr
    names = ["server.crt", "server.key", "worker-1.crt", "worker-1.key"]
    assert sorted(file.name for file in folder.iterdir()) == names
    assert sorted(done.stdout.split()) == [str(folder / name) for name in names]
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_exists_is_never_overwritten(tmp_path):
    keys.make(tmp_path, ["server"])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert [file.name for file in keys.make(tmp_path, ["server", "w", "w"])] == ["w.key", "w.crt"]
    assert before == {name: (tmp_path / name).read_bytes() for name in before}
    (tmp_path / "w.crt").unlink()
    with pytest.raises(InputError, match=r"w\.key exists, .*w\.crt does not"):
        keys.make(tmp_path, ["w"])
    outside = tmp_path / "outside"
    (tmp_path / "x.key").symlink_to(outside)
    with pytest.raises(InputError):
        keys.make(tmp_path, ["x"])
    assert not outside.exists()


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a b", "-subj=/CN=x\n", "x" * 65, "größe"])
def test_names_that_cannot_be_used_are_refused(tmp_path, name: str):
    with pytest.raises(InputError, match="NAME is "):
        keys.make(tmp_path, ["server", name])
    assert not list(tmp_path.iterdir())


def test_a_missing_openssl_and_an_unusable_folder_are_one_line(tmp_path):
    done = run(str(tmp_path / "keys"), "server", path=str(tmp_path))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "the program openssl is missing" in done.stderr
    (tmp_path / "file").touch()
    done = run(str(tmp_path / "file"), "server")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "DIR is" in done.stderr
