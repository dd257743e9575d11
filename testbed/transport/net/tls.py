"""TLS 1.3 for control streams, without sockets: bytes in, bytes out.

Each side trusts exactly the certificates that it was given (pinning): a certificate's name is the
peer's name.
"""

import ssl
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

_READ_BYTES = 1 << 16
# How a peer's alerts end that are about this side's certificate.
_REFUSALS = ("UNKNOWN_CA", "CERTIFICATE", "CERTIFICATE_EXPIRED", "CERTIFICATE_REQUIRED")


class TlsError(Exception):
    """The TLS connection cannot be made, or has ended; the text says why."""


@dataclass(frozen=True)
class Credentials:
    """Who this side is, and whom it trusts, as PEM files."""

    certificate: Path
    key: Path  # no one else may read it
    trusted: tuple[Path, ...]  # the peers' certificates

    @classmethod
    def of(cls, directory: str | Path, name: str, peers: Iterable[str]) -> "Credentials":
        """Those that `keys` has written into a folder; OSError for a file that cannot be read."""
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
        """Trusts one more, a PEM text, from now on; any thread may call it. ValueError for none."""
        try:
            for context in self._contexts.values():
                context.load_verify_locations(cadata=certificate)
        except ssl.SSLError as error:
            raise ValueError(f"this is no certificate: {error.reason or error}") from None
        self._pinned.add(ssl.PEM_cert_to_DER_cert(certificate))

    def tls(self, *, is_server: bool) -> "Tls":
        """The TLS of a new stream. ValueError for files that are no keys or certificates."""
        return Tls(self._contexts[is_server], self._pinned, is_server=is_server)


class Tls:
    """One stream's TLS."""

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
        """What is to be sent now."""
        return self._outgoing.read()

    def write(self, plaintext: bytes) -> bytes:
        """Returns what is to be sent now; before the handshake is done, text waits for it."""
        if self._failed:
            return b""
        if self.identity is None:
            self._unsent += plaintext
        elif plaintext:
            self._object.write(plaintext)
        return self.outgoing()

    def feed(self, data: bytes) -> bytes:
        """Takes bytes as they arrived; returns what they mean. TlsError where that is nothing."""
        self._incoming.write(data)
        if self.identity is None and not self._shake_hands():
            return b""
        plaintext = bytearray()
        try:
            while piece := self._object.read(_READ_BYTES):
                plaintext += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # where the peer says no more, its TCP connection will end
        except ssl.SSLError as error:
            raise self._fail(error) from None
        return bytes(plaintext)

    def _shake_hands(self) -> bool:
        """Goes on with the handshake; returns whether it is done."""
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
