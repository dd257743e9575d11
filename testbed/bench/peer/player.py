"""The process at one end of another implementation's transfers; the only one that loads it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from testbed.bench import conductor
from testbed.bench.conductor import Player, Process
from testbed.bench.peer.adapter import Adapter, End, Payload, UnfitError, load
from testbed.lab.kernel import privileges
from testbed.shared.input_error import InputError


def start(
    adapter: str, checkout: Path, enter: Callable[[], None], folder: Path, end: End | None = None
) -> Process:
    """Start the process, in a folder to write into; without an end it checks the checkout alone."""

    def begin(player: Player) -> None:
        enter()
        os.chdir(folder)
        sys.dont_write_bytecode = True  # nothing is left in the user's clone
        privileges.give_up()
        _play(adapter, checkout, end, player)

    return conductor.start(begin, heard=True)


def _play(adapter: str, checkout: Path, end: End | None, player: Player) -> None:
    """Do what is asked; what goes wrong is told to the conductor."""
    doing = "check"
    try:
        kind = load(adapter)
        kind.check(checkout)
        if end is None:
            player.ready()
            if player.turn():
                player.tell({})
            return
        doing = "open"
        side = kind(end)
        side.open()
        player.ready()
        doing = "receive" if end.is_server else "send"
        _transfers(side, end, player)
    except (InputError, UnfitError) as error:
        player.fail(str(error))
    except BaseException as error:  # SystemExit too: the code is not ours
        # Before this process ends and the other end notices, which is not to blame.
        player.fail(f"{doing}: {type(error).__name__}: {error}")


def _transfers(adapter: Adapter, end: End, player: Player) -> None:
    # No element is 0, which is what stands for a missing one.
    payload = np.arange(1, end.elements + 1, dtype=np.float32)
    while player.turn():
        received: Payload | None = None
        cpu_s, began_s = time.process_time(), time.monotonic()
        if end.is_server:
            received = adapter.receive()
        else:
            adapter.send(payload)
        ended_s = time.monotonic()
        used_s = time.process_time() - cpu_s
        player.tell(
            {
                "cpu_s": used_s,
                "began_s": began_s,
                "ended_s": ended_s,
                "chunks_received": 0 if received is None else _arrived(received, payload, end),
                "chunk_count": end.elements,
            }
        )


def _arrived(received: Payload, sent: Payload, end: End) -> int:
    """How many elements came; ValueError where they are not what was sent, or too few."""
    found = np.asarray(received)
    if found.shape != sent.shape or found.dtype != sent.dtype:
        raise ValueError(
            f"returned {found.dtype} of shape {found.shape}; expected float32 of shape {sent.shape}"
        )
    there = found != 0
    if not np.array_equal(found[there], sent[there]):
        raise ValueError("returned values that were not sent")
    count = int(np.count_nonzero(there))
    # The last chunk may be the only one that is short.
    allowed = end.tolerance * end.elements + end.chunk_bytes / found.itemsize
    if end.elements - count > allowed:
        share = 1 - count / end.elements
        raise ValueError(f"{share:.2%} of the payload is missing, of at most {end.tolerance:.2%}")
    return count
