"""Messages between processes: of any size, with files, late answers, and what is no message."""

import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from testbed.shared import messages
from testbed.shared.messages import LateError, MessageError, Messages
from tests import open_files


@pytest.fixture
def ends():
    one, other = messages.pair()
    pair = one, Messages(other)
    yield pair
    for entry in pair:
        entry.close()


@pytest.fixture
def writing():
    """A file to send along; when the test ends, no other file is open than before."""
    reading, writing = os.pipe()
    before = open_files.now()
    yield writing
    open_files.assert_none_since(before)
    for entry in (reading, writing):
        os.close(entry)


@pytest.mark.parametrize("size", [0, 1, 100_000, 3_000_000])
def test_a_message_of_any_size_arrives_whole(ends, size):
    one, other = ends
    sender = threading.Thread(target=one.send, args=[{"text": "x" * size}])
    sender.start()
    assert other.receive() == ({"text": "x" * size}, [])
    sender.join()


def test_texts_that_are_no_utf_8_survive(ends):
    """File names on Linux are bytes; Python writes what is no UTF-8 as surrogates."""
    one, other = ends
    name = os.fsdecode(b"caf\xe9")
    one.send({"argv": [name]})
    assert other.receive()[0]["argv"] == [name]


def test_open_files_go_along_and_children_do_not_inherit_them(ends):
    one, other = ends
    reading, writing = os.pipe()
    one.send({"do": "start"}, [writing])
    os.close(writing)
    _, (received,) = other.receive()
    assert not os.get_inheritable(received)
    os.write(received, b"hello")
    os.close(received)
    assert os.read(reading, 10) == b"hello"
    assert os.read(reading, 10) == b""
    os.close(reading)


@pytest.mark.parametrize(
    "words",
    [b"{", b"[1]", b"\xff", b"\x03", b"[" * 60_000, b"@", bytes(70_000)],
)
def test_what_is_no_message_is_an_error_and_leaves_no_file_open(writing, words):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receiver = Messages(other)
    socket.send_fds(one, [words], [writing])
    with pytest.raises(MessageError):
        receiver.receive(0)
    one.close()
    receiver.close()


def test_the_other_sides_end_is_an_error_for_both_directions(ends):
    one, other = ends
    one.close()
    with pytest.raises(MessageError, match="closed"):
        other.receive()
    with pytest.raises(MessageError, match="cannot send"):
        other.send({})


def test_closing_ends_it_although_a_forked_process_holds_a_copy():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one.dup(), contextlib.closing(Messages(other)) as left:
        Messages(one).close()
        with pytest.raises(MessageError, match="closed"):
            left.receive()


def test_who_reads_nothing_is_waited_for_no_longer_than_the_time(ends):
    one, other = ends
    with pytest.raises(LateError):
        for _ in range(10_000):
            one.send({"text": "x" * 1000}, timeout_s=0)
    began_s = time.monotonic()
    with pytest.raises(LateError):
        one.ask({}, timeout_s=0.05)
    assert 0.05 <= time.monotonic() - began_s < 30
    other.receive()
    with pytest.raises(LateError):
        one.receive(0.05)


@pytest.fixture
def soon():
    """A signal's handler raises an error of this class in a moment."""
    before = signal.getsignal(signal.SIGALRM)

    def interrupt(error):
        def strike(*_):
            raise error

        signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    yield interrupt
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, LateError])
def test_a_late_answer_is_not_taken_for_the_next_ones(ends, writing, soon, error):
    one, other = ends

    def answer_late():
        with contextlib.suppress(MessageError):
            while True:
                request, _ = other.receive()
                time.sleep(0.2)
                other.answer(request, {"to": request["question"]}, [writing])

    answering = threading.Thread(target=answer_late)
    answering.start()
    if error is not LateError:
        soon(error)
    with pytest.raises(error):
        one.ask({"question": 1}, timeout_s=0.1 if error is LateError else 30)
    answer, (file,) = one.ask({"question": 2}, timeout_s=30)
    assert answer == {"to": 2}
    os.close(file)
    one.close()
    answering.join(5)


@pytest.mark.parametrize("wrong", ["too large", "no regular file", "too many files"])
def test_a_message_beyond_the_bounds_is_refused_and_the_next_one_arrives(ends, writing, wrong):
    one, other = ends
    if wrong == "too large":
        with os.fdopen(os.memfd_create("large"), "wb") as large:
            large.truncate(16_000_001)
            socket.send_fds(one._socket, [b"@"], [large.fileno(), writing])
    else:
        files = [writing] * (10 if wrong == "too many files" else 1)
        socket.send_fds(one._socket, [b"@"], files)
    one.send({"next": 1})
    with pytest.raises(MessageError, match="cannot receive: "):
        other.receive(0)
    assert other.receive(0) == ({"next": 1}, [])


def test_a_stage_waits_a_second_for_a_reader_and_a_round_does_not(ends):
    one, other = ends
    with contextlib.suppress(LateError):
        while True:
            one.send({"text": "x" * 1000}, timeout_s=0)
    progress = messages.ProgressWriter(one)
    began_s = time.monotonic()
    progress.round(1, 2)
    assert time.monotonic() - began_s < 0.9
    progress.stage("nobody reads")
    assert 0.9 < time.monotonic() - began_s < 30
    reader = threading.Timer(0.2, lambda: [other.receive(0) for _ in range(4)])
    reader.start()
    progress.stage("training")
    reader.join()
    with pytest.raises(LateError):
        while (last := other.receive(0)[0]) != {"stage": "training"}:
            assert "text" in last
        other.receive(0)


def test_what_cannot_be_sent_leaves_the_connection_as_it_was(ends):
    one, other = ends
    with pytest.raises(TypeError):
        one.ask({"env": {"NAME": b"bytes"}})
    one.send({"number": 1})
    assert other.receive() == ({"number": 1}, [])
