"""Rounds that programs announce: what is obeyed, what is refused, and what is written of them."""

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.controller_socket import ControllerClient
from testbed.workload.markers import MarkerSocket, RefusedError, Rounds


class Controller(ControllerClient):
    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str]] = []

    def begin(self, round_number: int, leg: str) -> list[str]:
        self.calls.append(("begin", round_number, leg))
        return ["a loss"] if round_number == 1 else []

    def end(self, round_number: int, leg: str) -> list[str]:
        self.calls.append(("end", round_number, leg))
        return ["a loss"] if round_number == 1 else []


@pytest.fixture
def log() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def rounds(log: list[dict[str, Any]]) -> Rounds:
    return Rounds(Controller(), log.append)


def say(rounds: Rounds, *lines: str) -> None:
    for line in lines:
        rounds.take(line.encode(), time.monotonic() + 1)


def test_the_latency_of_a_round_is_that_of_its_legs_and_names_what_hit_it(rounds, log):
    say(rounds, "begin 0 gather", "end 0 gather", "begin 0 broadcast", "end 0 broadcast")
    say(rounds, "begin 1 gather", "end 1 gather")
    rounds.finish()
    first, second = log
    assert first["latency_s"] == first["gather_s"] + first["broadcast_s"]
    assert (first["impairments"], second["impairments"]) == ([], ["a loss"])
    assert "broadcast_s" not in second


def test_a_whole_round_counts_before_its_legs_and_an_open_one_is_none(rounds, log):
    say(rounds, "begin 3 round", "begin 3 gather", "end 3 gather", "end 3 round", "begin 4 gather")
    rounds.finish()
    (record,) = log
    assert record["latency_s"] > record["gather_s"]
    assert record["round"] == 3


@pytest.mark.parametrize(
    "lines",
    [
        ["begin 0 gather", "begin 0 gather"],
        ["begin 0 gather", "begin 1 gather"],
        ["begin 5 gather", "end 5 gather", "begin 4 broadcast"],
        ["begin 0 gather", "end 0 gather", "begin 0 gather"],
        ["begin 0 gather", "end 1 gather"],
        ["begin 9999999999 gather"],
        ["begin 1 scatter"],
        [""],
    ],
)
def test_a_line_that_is_wrong_or_out_of_order_is_refused_and_reaches_nobody(lines):
    controller = Controller()
    rounds = Rounds(controller, lambda record: None)
    say(rounds, *lines[:-1])
    before = list(controller.calls)
    with pytest.raises(RefusedError):
        say(rounds, lines[-1])
    assert controller.calls == before


_WORDS = st.sampled_from(["begin", "end", "0", "1", "2", "gather", "broadcast", "round", "x"])
_LINES = st.lists(_WORDS, max_size=4).map(lambda words: " ".join(words).encode()) | st.binary()


@given(st.lists(_LINES, max_size=60))
def test_whatever_comes_the_controller_hears_legs_that_begin_once_and_end_after(lines):
    controller = Controller()
    log: list[dict[str, Any]] = []
    rounds = Rounds(controller, log.append)
    for number, line in enumerate(lines, start=1):
        try:
            rounds.take(line, time.monotonic() + number)
        except RefusedError as error:
            assert "\n" not in str(error)
    rounds.finish()
    begun = [call[1:] for call in controller.calls if call[0] == "begin"]
    ended = [call[1:] for call in controller.calls if call[0] == "end"]
    assert len(set(begun)) == len(begun)
    assert set(ended) <= set(begun) and len(set(ended)) == len(ended)
    numbers = [record["round"] for record in log]
    assert numbers == sorted(set(numbers))
    assert all(record["latency_s"] > 0 for record in log)


class Peer:
    """A program at the socket, served step by step."""

    def __init__(self, place: Path, served: MarkerSocket) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(2)
        self.socket.connect(str(place))
        self._served = served
        self.serve()

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)
        self.serve()

    def serve(self) -> None:
        for descriptor in self._served.descriptors():
            os.set_blocking(descriptor, False)
            try:
                self._served.serve(descriptor)
            except BlockingIOError:
                continue


@pytest.fixture
def served(tmp_path: Path, rounds: Rounds):
    served = MarkerSocket(tmp_path / "m.sock", rounds)
    yield served
    served.close()


def test_lines_in_pieces_are_answered_when_they_are_whole(tmp_path, served):
    peer = Peer(tmp_path / "m.sock", served)
    peer.send(b"begin 1 ga")
    peer.send(b"ther\r\nend 1 gather\nend 1 gather\n")
    assert peer.socket.recv(1000).decode().splitlines() == [
        "ok a_loss",
        "ok a_loss",
        "refused: the gather of round 1 has not begun",
    ]
    assert (served.accepted, served.refused) == (2, 1)


def test_a_client_that_never_ends_its_line_is_sent_away_and_others_are_served(tmp_path, served):
    hostile, other = (Peer(tmp_path / "m.sock", served) for _ in range(2))
    hostile.send(b"x" * 4000)
    assert hostile.socket.recv(10) == b""
    other.send(b"begin 0 gather\n")
    assert other.socket.recv(100) == b"ok\n"
    assert (served.accepted, served.refused) == (1, 1)


def test_a_client_that_reads_no_answers_is_sent_away(tmp_path, served):
    peer = Peer(tmp_path / "m.sock", served)
    peer.socket.setblocking(False)
    with pytest.raises(ConnectionError):
        for _ in range(20_000):
            with contextlib.suppress(BlockingIOError):
                peer.socket.send(b"x\n" * 100)
            peer.serve()
    assert len(served.descriptors()) == 1
