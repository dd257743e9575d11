"""Shares out blocks of runs among the workers of a Dask scheduler, which tries lost ones elsewhere.

Dask's messages are pickles: whoever may talk to its scheduler can execute code on all of its
machines and here. Beyond this machine an address must therefore be `tls://`, whose certificates say
who may. They are named in Dask's own configuration.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import secrets
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.cluster import block as execution
from testbed.cluster import worker
from testbed.experiment import Run
from testbed.run.runner import Outcome
from testbed.shared.input_error import InputError

if TYPE_CHECKING:
    from distributed import Client

_RESOURCE = "lab"
_CONNECT_S = 10.0
_POLL_S = 0.5
_VALID = "valid: tls://HOST:PORT, or tcp://127.0.0.1:PORT on this machine"
_TLS = "DASK_DISTRIBUTED__COMM__TLS__"
_ADDRESS = re.compile(r"(tcp|tls)://(?:\[([\w:.%]+)\]|([\w.-]+)):([0-9]{1,5})")


class Scheduler:
    """A Dask scheduler; workers with the resource `lab=1` execute runs and record `capture`."""

    def __init__(self, address: str, capture: Sequence[str] = ()) -> None:
        self._address, self._capture = address, list(capture)
        self._sweep = f"lab-{secrets.token_hex(8)}"
        self._submitted: dict[Any, Sequence[Run]] = {}  # by their futures

    def connect(self) -> Scheduler:
        """Join it, until `close`; InputError where it cannot or must not be, or without Dask."""
        self._client = _connect(self._address)
        return self

    def workers(self) -> set[str]:
        """Return the present workers; InputError where the scheduler has gone."""
        try:
            # A client that has just lost its scheduler knows nothing: not even that key.
            workers = self._client.scheduler_info(n_workers=-1).get("workers")
        except (OSError, TimeoutError):
            workers = None
        if workers is None or self._client.status != "running":
            raise InputError(
                f"--scheduler {self._address}: the scheduler has gone; what came back stays, and "
                "the same command continues"
            )
        return {name for name, worker in workers.items() if worker["resources"].get(_RESOURCE)}

    def share_out(
        self,
        blocks: Sequence[Sequence[Run]],
        folder: Path,
        *,
        end: Callable[[Outcome], None],
        say: Callable[[str], None],
    ) -> list[Run]:
        """Execute all blocks; return the runs that several workers were lost with.

        A worker that refuses is left out; InputError where all do.
        """
        waiting = deque(blocks)
        refused: dict[str, str] = {}
        lost: list[Run] = []
        had_workers = True
        while waiting or self._submitted:
            workers = self.workers()
            fit = workers - refused.keys()
            if workers and not fit and not self._submitted:
                reason = next(iter(refused.values()))
                raise InputError(f"no worker can execute this sweep: {reason}")
            if not workers and had_workers:
                say("waiting for a worker that was started with --resources lab=1")
            had_workers = bool(workers)
            while waiting and len(self._submitted) < len(fit):
                self._submit(waiting.popleft(), fit)
            time.sleep(_POLL_S)
            for future in [future for future in self._submitted if future.status != "pending"]:
                runs = self._submitted.pop(future)
                if future.status == "error":  # Dask tried it again as often as it does
                    say(f"{runs[0].label}: given up: {future.exception()}")
                    lost.extend(runs)
                    continue
                if future.status != "finished":
                    waiting.appendleft(runs)
                    continue
                reply = future.result()
                try:
                    outcomes = self._outcomes(runs, reply, folder)
                except ValueError as error:
                    name = reply["worker"]
                    if name not in refused:
                        say(f"worker {name} is left out: {error}")
                    refused[name] = str(error)
                    waiting.appendleft(runs)
                else:
                    for outcome in outcomes:
                        end(outcome)
        return lost

    def _submit(self, runs: Sequence[Run], fit: set[str]) -> None:
        task = execution.task([run.config() for run in runs], self._capture)
        execute, sweep = worker.execute, self._sweep
        future = self._client.submit(
            lambda: execute(task, sweep),  # Dask has cloudpickle pickle it, so all by value
            workers=sorted(fit),
            allow_other_workers=True,
            resources={_RESOURCE: 1},
            pure=False,
        )
        self._submitted[future] = runs

    def _outcomes(
        self, runs: Sequence[Run], reply: Mapping[str, Any], folder: Path
    ) -> list[Outcome]:
        """Store what a worker sent; ValueError says why the worker is to be left out."""
        if "refused" in reply:
            raise ValueError(reply["refused"])
        try:
            return execution.store(folder, runs, reply["packed"])
        except ValueError as error:
            raise ValueError(f"sent other results than asked for: {error}") from None

    def close(self) -> None:
        """End what was submitted, and leave the scheduler."""
        from distributed import Event

        if self._submitted and self._client.status == "running":
            Event(self._sweep, client=self._client).set()
        for future in self._submitted:
            future.cancel()
        self._client.close(timeout=_CONNECT_S)


def _connect(address: str) -> Client:
    host, port = _checked(address)
    try:
        import cloudpickle
        from distributed import Client
        from distributed.security import Security
    except ModuleNotFoundError as error:
        raise InputError(
            f"--scheduler: the package {error.name!r} is not installed; pip install '.[cluster]'"
        ) from None
    cloudpickle.register_pickle_by_value(worker)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # one line is said instead
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
        words = " ".join(str(error).split())
        raise InputError(f"--scheduler {address}: no scheduler answers: {words}") from None


def _checked(address: str) -> tuple[str, int]:
    """Return host and port of an address that may be used."""
    if (parts := _ADDRESS.fullmatch(address)) is None:
        raise InputError(f"--scheduler {address}: {_VALID}")
    scheme, ipv6, name, digits = parts.groups()
    host, port = ipv6 or name, int(digits)
    if not 1 <= port <= 65535:
        raise InputError(f"--scheduler {address}: port {port}; valid: 1 to 65535")
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        if ipv6 or re.fullmatch(r"[0-9.]+", host):  # no name of a host either
            raise InputError(f"--scheduler {address}: {error}; {_VALID}") from None
        is_local = host == "localhost"
    if scheme == "tcp" and not is_local:
        raise InputError(
            f"--scheduler {address}: without TLS only on this machine, since Dask executes what it "
            f"is sent; {_VALID}"
        )
    return host, port
