"""Security without sockets: TLS 1.3 for control streams, and tags behind datagrams.

Each side trusts exactly the certificates that it was given (pinning): a certificate's name is the
peer's name.
"""

import ctypes
import errno
import hashlib
import ssl
import weakref
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.compiled import address_of, structure
from testbed.transport.errors import ProtocolError
from testbed.transport.messages import KEY_BYTES, Cipher
from testbed.transport.native.fast_path import LIBRARY
from testbed.transport.wire import HEADER_BYTES

_READ_BYTES = 1 << 16
# How a peer's alerts end that are about this side's certificate.
_REFUSALS = ("UNKNOWN_CA", "CERTIFICATE", "CERTIFICATE_EXPIRED", "CERTIFICATE_REQUIRED")


class TlsError(Exception):
    """The TLS connection cannot be made, or has ended; the text says why."""


@dataclass(frozen=True)
class Credentials:
    """This side's certificate and key, and the certificates that it trusts, as PEM files."""

    certificate: Path
    key: Path  # no one else may read it
    trusted: tuple[Path, ...]  # the peers' certificates

    @classmethod
    def of(cls, directory: str | Path, name: str, peers: Iterable[str]) -> "Credentials":
        """Credentials that `keys` has written into a folder; OSError for an unreadable file."""
        if isinstance(peers, str):
            raise TypeError(f"peers is {peers!r}; valid: a list of names, such as [{peers!r}]")
        folder = Path(directory)
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        trusted = tuple(folder / f"{peer}.crt" for peer in peers)
        for file in (certificate, key, *trusted):
            with file.open("rb"):
                pass
        return cls(certificate, key, trusted)

    @cached_property
    def _pinned(self) -> set[bytes]:
        return {ssl.PEM_cert_to_DER_cert(file.read_text()) for file in self.trusted}

    @cached_property
    def _contexts(self) -> dict[bool, ssl.SSLContext]:
        return {is_server: self._context(is_server) for is_server in (False, True)}

    def _context(self, is_server: bool) -> ssl.SSLContext:
        side = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # `Tls.identity` is compared instead: workers have no DNS
        context.verify_mode = ssl.CERT_REQUIRED
        # A pinned certificate vouches for itself; OpenSSL checks its dates.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if is_server:
            context.num_tickets = 0  # no session is ever resumed
        try:
            context.load_cert_chain(self.certificate, self.key)
            for file in self.trusted:
                context.load_verify_locations(file)
        except ssl.SSLError as error:
            raise ValueError(
                f"{self.certificate} and {self.key}, or a trusted certificate, cannot be used: "
                f"{error.reason or error}"
            ) from None
        return context

    def trust(self, certificate: str) -> None:
        """Trusts one more certificate, a PEM text; any thread may call it. ValueError for none."""
        try:
            for context in self._contexts.values():
                context.load_verify_locations(cadata=certificate)
        except ssl.SSLError as error:
            raise ValueError(f"this is no certificate: {error.reason or error}") from None
        self._pinned.add(ssl.PEM_cert_to_DER_cert(certificate))

    def tls(self, *, is_server: bool) -> "Tls":
        """Makes a new stream's TLS. ValueError for files that are no keys or certificates."""
        return Tls(self._contexts[is_server], self._pinned, is_server=is_server)


class Tls:
    def __init__(self, context: ssl.SSLContext, pinned: Set[bytes], *, is_server: bool) -> None:
        self.identity: str | None = None
        self._pinned = pinned
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._unsent = bytearray()  # what was written before the handshake was done
        self._failed = False
        if not is_server:
            self._shake_hands()

    def outgoing(self) -> bytes:
        return self._outgoing.read()

    def write(self, plaintext: bytes) -> bytes:
        """Returns the bytes to send now; plaintext waits until the handshake is done."""
        if self._failed:
            return b""
        if self.identity is None:
            self._unsent += plaintext
        elif plaintext:
            self._object.write(plaintext)
        return self.outgoing()

    def feed(self, data: bytes) -> bytes:
        """Takes bytes as they arrived; returns the plaintext. TlsError where TLS fails."""
        self._incoming.write(data)
        if self.identity is None and not self._shake_hands():
            return b""
        plaintext = bytearray()
        try:
            while piece := self._object.read(_READ_BYTES):
                plaintext += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # after close_notify the peer's TCP connection ends
        except ssl.SSLError as error:
            raise self._fail(error) from None
        return bytes(plaintext)

    def _shake_hands(self) -> bool:
        """Continues the handshake; returns whether it is done."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise self._fail(error) from None
        if self._object.getpeercert(binary_form=True) not in self._pinned:
            self._failed = True
            raise TlsError("its certificate is not one of those that are trusted here")
        certificate: Mapping[str, Any] = self._object.getpeercert() or {}
        subject = (pair for part in certificate.get("subject", ()) for pair in part)
        self.identity = next((str(name) for key, name in subject if key == "commonName"), "")
        if self._unsent:
            self._object.write(self._unsent)
            self._unsent.clear()
        return True

    def _fail(self, error: ssl.SSLError) -> TlsError:
        self._failed = True
        if isinstance(error, ssl.SSLCertVerificationError):
            return TlsError(f"its certificate is refused: {error.verify_message}")
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING"):
            return TlsError("it does not speak TLS; has it no credentials?")
        if "ALERT" in (error.reason or "") and error.reason.endswith(_REFUSALS):
            return TlsError("it refuses this side's certificate")
        words = (error.reason or str(error)).replace("_", " ").lower()
        return TlsError(f"TLS failed: {words}")


# Tags behind datagrams, by which the receiver can tell that they are genuine and intact: keyed
# BLAKE2b (RFC 7693) with the worker's key and the sender's side, or AES-256-GCM, which encrypts the
# chunk, too, with keys that are derived from that one.
TAG_BYTES = 16
_SIDES = (b"server", b"worker")
_AES_SIDES = (b"aes server", b"aes worker")
# After so many datagrams, of up to 64 KiB, RFC 9001 (6.6) asks for another key.
_EPOCH_BITS = 23


class Keyed:
    """Makes tags with a key: this side's, and the other's."""

    def __init__(self, key: bytes, sides: tuple[bytes, bytes], *, is_server: bool) -> None:
        states = [hashlib.blake2b(key=key, digest_size=TAG_BYTES, person=side) for side in sides]
        self._ours, self._theirs = states if is_server else reversed(states)

    def tag(self, datagram: bytes | memoryview, *, sent: bool) -> bytes:
        """Returns the tag of a datagram that this side `sent`, or else the other."""
        state = (self._ours if sent else self._theirs).copy()
        state.update(datagram)
        return state.digest()


class Authentication:
    """Appends tags to datagrams and takes them off again, by hashlib."""

    cipher = Cipher.BLAKE2B

    def __init__(self, key: bytes, *, is_server: bool) -> None:
        if len(key) != KEY_BYTES:
            raise ProtocolError(f"WELCOME with a key of {len(key)} bytes; valid: {KEY_BYTES}")
        self._keyed = Keyed(key, _SIDES, is_server=is_server)

    def seal(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Appends the tags, in place where the frames begin what `new_frames` has made with room.

        The result is valid until the next call.
        """
        count, size = frames.shape
        rows, shape = frames.base, (count, size + TAG_BYTES)
        if rows is None or rows.shape[1:] != shape[1:] or address_of(rows) != address_of(frames):
            rows = np.empty(shape, dtype=np.uint8)
            rows[:, :size] = frames
        assert rows.flags.c_contiguous
        self._append_tags(rows[:count])
        return rows[:count]

    def open(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the genuine datagrams without their tags."""
        # All bytes are compared, however early two differ.
        good = (rows[:, -TAG_BYTES:] == self._tags(rows, sent=False)).all(axis=1)
        frames = rows[:, :-TAG_BYTES]
        return frames if good.all() else frames[good]

    def _append_tags(self, rows: NDArray[np.uint8]) -> None:
        rows[:, -TAG_BYTES:] = self._tags(rows, sent=True)

    def _tags(self, rows: NDArray[np.uint8], *, sent: bool) -> NDArray[np.uint8]:
        tags = b"".join(self._keyed.tag(row.data, sent=sent) for row in rows[:, :-TAG_BYTES])
        return np.frombuffer(tags, dtype=np.uint8).reshape(-1, TAG_BYTES)


class _Side(ctypes.Structure):
    _fields_ = structure(
        (ctypes.c_uint64 * 8, "state"),
        (ctypes.c_uint64, "number"),
        (ctypes.c_uint64 * 2, "epochs"),
        (ctypes.c_void_p * 2, "contexts"),
        (ctypes.c_uint32, "is_worker"),
    )


class _Sealing(ctypes.Structure):
    _fields_ = structure(
        (_Side, "ours theirs"), (ctypes.c_void_p, "evp"), (ctypes.c_uint32, "session epoch_bits")
    )


class Evp(ctypes.Structure):
    """Holds what libcrypto encrypts with."""

    _functions = (
        *("EVP_CIPHER_CTX_new", "EVP_CIPHER_CTX_free", "EVP_CipherInit_ex", "EVP_CipherUpdate"),
        *("EVP_CipherFinal_ex", "EVP_CIPHER_CTX_ctrl"),
    )
    _fields_ = structure(
        (ctypes.c_void_p, "aes new_context free_context init update finish control")
    )

    def __init__(self) -> None:
        """OSError or AttributeError where this system has no such libcrypto."""
        libcrypto = ctypes.CDLL("libcrypto.so.3")
        libcrypto.EVP_CIPHER_fetch.restype = ctypes.c_void_p
        found = (ctypes.cast(getattr(libcrypto, name), ctypes.c_void_p) for name in self._functions)
        super().__init__(libcrypto.EVP_CIPHER_fetch(None, b"AES-256-GCM", None), *found)


class CompiledAuthentication(Authentication):
    """Does the same in C, by one call for a batch; with libcrypto it encrypts, too."""

    def __init__(
        self,
        key: bytes,
        *,
        is_server: bool,
        evp: Evp | None = None,
        session: int = 0,
        epoch_bits: int = _EPOCH_BITS,
    ) -> None:
        super().__init__(key, is_server=is_server)
        assert LIBRARY is not None
        self._it = it = _Sealing(session=session, epoch_bits=epoch_bits)
        self.address = ctypes.addressof(it)  # of its struct sealing
        self._evp = evp
        it.ours.is_worker, it.theirs.is_worker = not is_server, is_server
        sides, digest_bytes = _SIDES, TAG_BYTES
        if evp is not None:
            self.cipher, it.evp = Cipher.AES_256_GCM, ctypes.addressof(evp)
            sides, digest_bytes = _AES_SIDES, KEY_BYTES
        for side in (it.ours, it.theirs):
            person = sides[side.is_worker].ljust(hashlib.blake2b.PERSON_SIZE, b"\0")
            LIBRARY.take_key(side.state, key, len(key), person, digest_bytes)
        self._seal, self._open = LIBRARY.seal_rows, LIBRARY.open_rows
        weakref.finalize(self, _forget, it)

    def _append_tags(self, rows: NDArray[np.uint8]) -> None:
        count, whole = rows.shape
        if self._seal(self.address, address_of(rows), count, whole - TAG_BYTES):
            raise OSError(errno.ENOMEM, "libcrypto cannot encrypt a datagram")

    def open(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the genuine datagrams without their tags, which are then the first rows."""
        count, whole = rows.shape
        assert rows.flags.c_contiguous
        genuine = self._open(self.address, address_of(rows), count, whole - TAG_BYTES)
        return rows[:genuine, :-TAG_BYTES]


def _forget(it: _Sealing) -> None:
    assert LIBRARY is not None
    LIBRARY.forget_keys(ctypes.addressof(it))


@cache
def aes() -> Evp | None:
    """Finds this system's AES-256-GCM, and tries it; None where C or libcrypto cannot."""
    try:
        evp = None if LIBRARY is None else Evp()
        if evp is not None:
            frame = np.zeros((1, HEADER_BYTES + 1), dtype=np.uint8)
            CompiledAuthentication(bytes(KEY_BYTES), is_server=True, evp=evp).seal(frame)
    except (OSError, AttributeError):
        return None
    return evp


def authentication(
    key: bytes, *, is_server: bool, cipher: int = Cipher.BLAKE2B, session: int = 0
) -> Authentication:
    """Makes the seal of one connection's datagrams; ProtocolError for a key of another size."""
    if LIBRARY is None:
        return Authentication(key, is_server=is_server)
    evp = aes() if cipher == Cipher.AES_256_GCM else None
    return CompiledAuthentication(key, is_server=is_server, evp=evp, session=session)
