"""The workers of a Dask scheduler.

Dask's messages are pickles: whoever may talk to its scheduler can execute code on all of its
machines and here. Beyond this machine an address must therefore be `tls://`, whose certificates say
who may. They are named in Dask's own configuration.
"""

from __future__ import annotations

import ipaddress
import logging
import pkgutil
import queue
import secrets
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from testbed.cluster import block, worker
from testbed.experiment import Run
from testbed.shared.input_error import InputError

if TYPE_CHECKING:
    from distributed import Client

_RESOURCE = "lab"
_CALLED = f"{worker.__name__}:{worker.execute.__name__}.__name__"
_CONNECT_S = 10.0
_VALID = "valid: tls://HOST:PORT, or tcp://127.0.0.1:PORT on this machine"
_TLS = "DASK_DISTRIBUTED__COMM__TLS__"


class DaskWorkers:
    """The workers with the resource `lab=1`; see `sharing.Workers`.

    Args:
        address: of the scheduler.
        capture: hosts whose links are recorded.

    Raises:
        InputError: it cannot be reached, must not be, or Dask is not installed.
    """

    def __init__(self, address: str, capture: Sequence[str] = ()) -> None:
        self._address = address
        self._capture = list(capture)
        self._sweep = secrets.token_hex(8)
        self._given: dict[str, Any] = {}
        self._ended: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._lacking: list[tuple[str, Mapping[str, Any]]] = []
        self._client = _connect(address)

    def there(self) -> set[str]:
        """The workers that there are now.

        Raises:
            InputError: the scheduler has gone.
        """
        try:
            # A client that has just lost its scheduler knows nothing: not even that key.
            found = self._client.scheduler_info().get("workers")
        except (OSError, TimeoutError):
            found = None
        if found is None or self._client.status != "running":
            raise InputError(
                f"--scheduler {self._address}: the scheduler has gone; what came back stays, and "
                "the same command continues"
            )
        return {name for name, each in found.items() if each["resources"].get(_RESOURCE)}

    def give(self, name: str, runs: Sequence[Run]) -> None:
        """Have a worker execute runs, when it executes nothing for others."""
        # A worker that cannot import what it is to call would end of it. This any worker can.
        found = self._client.run(
            pkgutil.resolve_name, _CALLED, workers=[name], on_error="return"
        ).get(name)
        if isinstance(found, ImportError):
            self._lacking.append((name, {"refused": f"{type(found).__name__}: {found}"}))
            return
        future = self._client.submit(
            worker.execute,
            self._sweep,
            block.task([run.config() for run in runs], self._capture),
            workers=[name],
            allow_other_workers=False,
            resources={_RESOURCE: 1},
            pure=False,
        )
        self._given[name] = future
        future.add_done_callback(lambda done: self._ended.put((name, done)))

    def take(self, timeout_s: float) -> tuple[str, Mapping[str, Any]] | None:
        """A worker that has ended, and its results or why it refused; None: none has yet."""
        if self._lacking:
            return self._lacking.pop()
        try:
            name, future = self._ended.get(timeout=timeout_s)
        except queue.Empty:
            return None
        wanted = name in self._given and self._given[name] is future
        if not wanted or future.status in ("cancelled", "lost"):
            return None  # forgotten, or its worker was lost, which `there` tells
        del self._given[name]
        if future.status == "error":
            error = future.exception()
            return name, {"refused": f"{type(error).__name__}: {error}"}
        result: Mapping[str, Any] = future.result()
        return name, result

    def forget(self, name: str) -> None:
        """What this worker was given is of no interest any more."""
        if (future := self._given.pop(name, None)) is not None:
            future.cancel()

    def close(self) -> None:
        """End what goes on, and leave the scheduler."""
        if self._given and self._client.status == "running":
            self._client.run(worker.stop, self._sweep, workers=list(self._given), on_error="ignore")
        for name in list(self._given):
            self.forget(name)
        self._client.close(timeout=_CONNECT_S)


def _connect(address: str) -> Client:
    host, port = _checked(address)
    try:
        from distributed import Client
        from distributed.security import Security
    except ModuleNotFoundError as error:
        raise InputError(
            f"--scheduler: the package {error.name!r} is not installed; pip install '.[cluster]'"
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # one line is told instead
    try:
        security = Security()
        if address.startswith("tls:") and not security.get_connection_args("client")["ssl_context"]:
            raise InputError(
                f"--scheduler {address}: no certificate; set {_TLS}CA_FILE, {_TLS}CLIENT__CERT "
                f"and {_TLS}CLIENT__KEY (docs/how-to/several-machines.md)"
            )
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
        return Client(address, security=security, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ssl.SSLError) as error:
        said = " ".join(str(error).split())
        raise InputError(f"--scheduler {address}: no scheduler answers: {said}") from None


def _checked(address: str) -> tuple[str, int]:
    """Host and port of an address that may be used."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme not in ("tcp", "tls"):
        raise InputError(f"--scheduler {address}: {_VALID}")
    if parts.scheme == "tcp" and not _is_loopback(host):
        raise InputError(
            f"--scheduler {address}: without TLS only on this machine, since Dask executes what it "
            f"is sent; {_VALID}"
        )
    return host, port


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
