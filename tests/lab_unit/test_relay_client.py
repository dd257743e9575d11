"""A relay's clients, when it is slow, silent or dead."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.lab.delay import DelaySettings, Middle, Relay, relay_client
from testbed.lab.delay.relay_client import RelayClient
from testbed.lab.helpers.process import HelperProcess
from testbed.lab.kernel.commands import CommandError
from testbed.shared.messages import MessageError, Messages

Answer = Callable[[dict[str, Any]], dict[str, Any] | None]


@pytest.fixture
def client_of(tmp_path: Path) -> Iterator[Callable[[Answer], RelayClient]]:
    """A client whose relay answers what a function says, and hangs up where that is None."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "relay.sock"))
        listener.listen()

        def serve(answer: Answer) -> None:
            while listener.fileno() >= 0:
                try:
                    connection, _ = listener.accept()
                except OSError:  # the test is over
                    return
                asked = Messages(connection)
                with contextlib.closing(asked), contextlib.suppress(MessageError):
                    while True:
                        request, _ = asked.receive()
                        if (fields := answer(request)) is None:
                            break
                        asked.answer(request, fields)

        def connected(answer: Answer) -> RelayClient:
            threading.Thread(target=serve, args=(answer,), daemon=True).start()
            return RelayClient(tmp_path / "relay.sock")

        yield connected


def test_a_relay_that_refuses_or_is_gone_is_told_in_one_line(client_of, tmp_path):
    client = client_of(lambda request: {"error": "no delayed link 'x' from 'y'"})
    with pytest.raises(CommandError, match="delay relay: no delayed link 'x' from 'y'"):
        client.change("x", "y", delay_s=1)
    with pytest.raises(CommandError, match=r"the delay relay at .*nowhere does not answer"):
        RelayClient(tmp_path / "nowhere")


MIDDLE = Middle(
    link="a--b",
    nodes=("a", "b"),
    interfaces=("no-such-interface", "nor-this"),
    rate_bps=1_000_000,
    settings=DelaySettings(delay_s=0.001),
)


def test_a_relay_that_cannot_begin_says_why_and_can_be_closed(tmp_path):
    relay = Relay([MIDDLE], tmp_path / "delay.sock", log=tmp_path / "log").start()
    with pytest.raises(CommandError, match=r"did not begin: OSError: .*(such device|permitted)"):
        relay.wait_until_ready()
    relay.close()
    assert relay.process.poll() is not None


def test_a_relay_that_never_begins_is_not_awaited_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(relay_client, "_START_TIMEOUT_S", 0.2)
    monkeypatch.setattr(relay_client, "_END_TIMEOUT_S", 0.2)
    relay = Relay([MIDDLE], tmp_path / "delay.sock", log=tmp_path / "log").start()
    os.kill(relay.process.pid, signal.SIGSTOP)
    with pytest.raises(CommandError, match="did not begin: delay relay: no answer in time"):
        relay.wait_until_ready()
    began_s = time.monotonic()
    relay.close()
    assert time.monotonic() - began_s < 30  # and the helper is stopped for ever
    assert relay.process.poll() is not None


def test_the_relay_program_ends_without_a_request():
    relay = HelperProcess([sys.executable, "-m", "testbed.lab.delay.relay"], name="relay").start()
    relay.finish(30)
    assert relay.process.returncode == 0
