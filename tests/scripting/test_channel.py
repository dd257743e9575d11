"""The connection between a script and its lab: messages, files, and what is no message."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from testbed.scripting.channel import Channel, ChannelError
from tests import open_files


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    pair = Channel(one), Channel(other)
    yield pair
    for each in pair:
        each.close()


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


@pytest.mark.parametrize("words", [b"{\n", b"[1]\n", b"\xff\n", b"\n", b"3\n"])
def test_what_is_no_message_is_an_error_and_leaves_no_file_open(words):
    one, other = socket.socketpair()
    channel = Channel(other)
    reading, writing = os.pipe()
    before = open_files.now()
    socket.send_fds(one, [words], [writing])
    with pytest.raises(ChannelError):
        channel.receive()
    open_files.assert_none_since(before)
    for each in (reading, writing):
        os.close(each)
    one.close()
    channel.close()


def test_the_other_sides_end_is_an_error_for_both_directions(ends):
    one, other = ends
    one.close()
    with pytest.raises(ChannelError, match="closed"):
        other.receive()
    with pytest.raises(ChannelError, match="cannot send"):
        for _ in range(100):
            other.send({"text": "x" * 10_000})


def test_closing_ends_it_although_a_forked_process_holds_a_copy():
    one, other = socket.socketpair()
    copy = one.dup()
    Channel(one).close()
    with pytest.raises(ChannelError, match="closed"):
        Channel(other).receive()
    copy.close()
    other.close()


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


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, ValueError])
def test_the_answer_to_an_interrupted_question_is_not_taken_for_the_next_ones(ends, soon, error):
    one, other = ends

    def answer_late():
        with contextlib.suppress(ChannelError):
            while True:
                asked, _ = other.receive()
                time.sleep(0.2)
                other.send({"to": asked["number"]})

    steward = threading.Thread(target=answer_late)
    steward.start()
    soon(error)
    with pytest.raises(ChannelError if error is ValueError else error):
        one.ask({"number": 1})
    time.sleep(0.3)
    with pytest.raises(ChannelError):
        one.ask({"number": 2})
    assert one.interrupted == (error is not ValueError)
    steward.join(5)


def test_files_that_came_before_an_interruption_are_closed(ends, soon):
    one, other = ends
    reading, writing = os.pipe()
    before = open_files.now()
    socket.send_fds(other._socket, [b'{"only": '], [writing])
    soon(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        one.receive()
    open_files.assert_none_since(before)
    for each in (reading, writing):
        os.close(each)


def test_what_cannot_be_sent_leaves_the_connection_as_it_was(ends):
    one, other = ends
    with pytest.raises(TypeError):
        one.ask({"env": {"NAME": b"bytes"}})
    one.send({"number": 1})
    assert other.receive() == ({"number": 1}, [])
    assert not one.interrupted
