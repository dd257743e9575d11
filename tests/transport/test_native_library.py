"""Which compiled library is loaded, and what its calls to the kernel count as sent."""

import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

from testbed.transport.native import LIBRARY, WHY_NONE, hot_path
from testbed.transport.net.udp_socket import BatchSender

needs_compiled = pytest.mark.skipif(LIBRARY is None, reason=f"the hot path in C: {WHY_NONE}")


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A copy of the library beside a copy of its source, where it is looked for."""
    assert LIBRARY is not None
    source = tmp_path / "batches.c"
    for name in ("batches.c", *hot_path._OTHER_SOURCES):
        shutil.copy(hot_path._SOURCE.with_name(name), tmp_path / name)
    monkeypatch.setattr(hot_path, "_SOURCE", source)
    return Path(shutil.copy(LIBRARY._name, tmp_path))


@needs_compiled
def test_a_library_of_this_source_is_loaded(built):
    loaded, why = hot_path._load()
    assert loaded is not None and not why


@needs_compiled
@pytest.mark.parametrize("name", ["batches.c", "batches.h", "routine.c"])
def test_a_library_of_another_source_is_not_used(built, name):
    built.with_name(name).write_text("/* changed since */")
    assert hot_path._load() == (None, f"{built.name} was compiled from another source")


@needs_compiled
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_library_that_is_cut_short_is_not_loaded(built, share):
    data = built.read_bytes()
    built.write_bytes(data[: int(share * len(data))])
    assert hot_path._load() == (None, f"{built.name} is cut short")


@needs_compiled
def test_a_file_that_is_no_library_is_not_loaded(built):
    built.write_bytes(b"\0" * 4096)
    loaded, why = hot_path._load()
    assert loaded is None and why.startswith(f"{built.name} cannot be loaded")


def test_what_a_full_queue_refused_does_not_count_as_sent():
    # A UNIX socket's queue is short and counts datagrams, so sendmmsg takes a part of a batch.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with ours, theirs:
        sender = BatchSender(100, messages=2000)
        sender._plain.headers["name"] = sender._plain.headers["name_bytes"] = 0
        frames = np.arange(2000, dtype=np.uint16).astype(np.uint8).repeat(100).reshape(-1, 100)
        taken = sender.send(ours.fileno(), frames, segmented=False)
        assert 0 < taken < len(frames)
        arrived = [theirs.recv(200) for _ in range(taken)]
        with pytest.raises(BlockingIOError):
            theirs.recv(200)
    assert arrived == [row.tobytes() for row in frames[:taken]]
