"""The controller: hostile lines are refused, clients learn that it is gone, exceptions end it."""

import contextlib
import json
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from controllers.app import ControllerServer
from controllers.controller_socket import LINE_LIMIT_BYTES, ControllerClient, ControllerError
from controllers.framework import eventlet, hub
from tests.cli.test_verbs import python


def serving(path: str) -> tuple[ControllerServer, list[dict[str, Any]]]:
    obeyed: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        obeyed.append(request)
        return {"active": []}

    server = ControllerServer(answer, logging.getLogger("test"))
    hub.spawn(server.serve, path)
    hub.sleep(0.01)
    return server, obeyed


@contextmanager
def controller(path: Path, *conversations: Callable[[socket.socket], None]) -> Iterator[None]:
    """A controller that talks like this with a client after another and is then gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            for converse in conversations:
                client, _ = listener.accept()
                with client:
                    converse(client)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 5000 + b"\n",
        b"\xff\n",
        b'{"do": "begin", "round": 1e400, "leg": "gather"}\n',
        b'{"do": "begin", "round": %d, "leg": "gather"}\n' % (1 << 80),
        b'{"do": "begin", "round": 1, "leg": ["gather"]}\n',
        b'{"do": "finish", "at_s": NaN}\n',
        b'{"do": "processes", "pids": {"a": %d}}\n' % (1 << 70),
        *(
            b'{"do": "processes", "pids": %s}\n' % pids
            for pids in (b"null", b"[]", b'{"worker-1": "7"}', b'{"worker-1": 1}', b'{"a": true}')
        ),
        b"x" * (2 * LINE_LIMIT_BYTES),
        b"no end",
        b'{"do": "shutdown"}\n',
        b'{"do": "begin", "round": true, "leg": "gather"}\n',
        b'{"do": "end", "round": 1, "leg": "sideways"}\n',
        b'{"do": "begin", "round": 1, "leg": "gather", "at_s": "now"}\n',
    ],
)
def test_a_hostile_line_is_refused_and_counted_and_the_next_client_is_served(tmp_path, line):
    path = str(tmp_path / "controller.sock")
    Path(path).touch()  # what a killed one left
    server, obeyed = serving(path)

    def ask(text: bytes) -> dict[str, Any]:
        client = eventlet.connect(path, family=socket.AF_UNIX)
        client.sendall(text)
        client.shutdown(socket.SHUT_WR)
        with client, client.makefile("rb") as stream:
            return dict(json.loads(stream.readline()))

    assert "error" in ask(line)
    assert (server.refused, obeyed) == (1, [])
    assert ask(b'{"do": "begin", "round": 3, "leg": "gather"}\n') == {"active": []}
    assert obeyed == [{"do": "begin", "round": 3, "leg": "gather"}]


@pytest.mark.parametrize("reply", [b"", b'{"active": ["d'])
def test_a_client_learns_that_the_controller_is_gone(tmp_path, reply):
    path = tmp_path / "controller.sock"
    with pytest.raises(ControllerError, match="cannot be reached"):
        ControllerClient(path)

    def converse(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(reply)

    with (
        controller(path, converse),
        closing(ControllerClient(path)) as client,
        pytest.raises(ControllerError, match="controller: gone"),
    ):
        client.finish()


@pytest.mark.parametrize("interrupted", [False, True])
def test_after_a_late_answer_no_request_gets_that_of_another(tmp_path, interrupted, request):
    path = tmp_path / "controller.sock"
    given_up, main_thread = threading.Event(), threading.get_ident()
    if interrupted:  # whoever starts tests in the background has it ignored
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def be_late(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(b'{"active": ["of anot')
        if interrupted:  # as by Ctrl-C
            signal.pthread_kill(main_thread, signal.SIGINT)
        given_up.wait(10)
        with contextlib.suppress(OSError):
            client.sendall(b'her"]}\n')

    def be_in_time(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(b'{"active": ["its own"]}\n')

    timeout_s = 10.0 if interrupted else 0.1
    with (
        controller(path, be_late, be_in_time),
        closing(ControllerClient(path, timeout_s=timeout_s)) as client,
    ):
        late = pytest.raises(ControllerError, match=r"no answer to 'begin' within 0\.1 s")
        with pytest.raises(KeyboardInterrupt) if interrupted else late:
            client.begin(1, "gather")
        given_up.set()
        assert client.begin(2, "gather") == ["its own"]


def test_a_client_that_may_only_announce_opens_no_other_connection(tmp_path):
    path = tmp_path / "controller.sock"

    def converse(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(b"{}\n")

    def ask_again(client: ControllerClient) -> None:
        with pytest.raises(ControllerError, match="controller: gone"):
            client.begin(1, "gather")

    with controller(path, converse), closing(ControllerClient(path)) as client:
        client.announce_only()
        ask_again(client)
        ask_again(client)


def test_a_connection_that_may_only_announce_changes_no_link_and_names_no_process(tmp_path):
    path = str(tmp_path / "controller.sock")
    server, obeyed = serving(path)
    link = b'{"do": "link", "from": "a", "to": "b", "set": {}}\n'
    processes = b'{"do": "processes", "pids": {"a": 17}}\n'
    announce_only = b'{"do": "announce-only"}\n'
    finish = b'{"do": "finish"}\n'
    with ExitStack() as opened:
        clients = [eventlet.connect(path, family=socket.AF_UNIX) for _ in range(2)]
        first, second = (opened.enter_context(client.makefile("rwb")) for client in clients)

        def ask(stream: Any, *lines: bytes) -> list[dict[str, Any]]:
            stream.write(b"".join(lines))
            stream.flush()
            return [json.loads(stream.readline()) for _ in lines]

        refused = ask(first, announce_only, link, processes, finish)
        assert refused[0] == {}
        assert refused[1] == {"error": "'link': this connection may only announce"}
        assert refused[2] == {"error": "'processes': this connection may only announce"}
        assert refused[3] == {"active": []}
        assert ask(second, link, processes) == [{"active": []}] * 2  # another connection
    assert server.refused == 2
    assert [request["do"] for request in obeyed] == ["finish", "link", "processes"]


FAILING = {
    "thread": "hub.spawn(boom); hub.sleep(5)",
    # An event loop catches what a handler raises; the program below does the same.
    "handler": "set_ev_cls(Event)(boom)(None)",
}
PROGRAM = """
from controllers.framework import hub, set_ev_cls

class Event:
    pass

def boom(*_):
    raise LookupError("the timeline broke")

try:
    {failing}
except LookupError:
    pass
print("still alive")
"""


@pytest.mark.parametrize("place", FAILING)
def test_an_exception_ends_the_controller(place):
    done = python("-c", PROGRAM.format(failing=FAILING[place]), timeout=100)
    assert done.returncode == 1, done
    assert "LookupError: the timeline broke" in done.stderr
    assert "still alive" not in done.stdout
