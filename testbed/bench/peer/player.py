"""The process at one end of another implementation's transfers; the only one that loads it.

    python -m testbed.bench.peer.player JSON READING WRITING

JSON is a `Task`, the numbers are descriptors of the conductor's pipes. What the implementation
prints goes wherever this process's output goes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from testbed.bench.conductor import Player, Process, start
from testbed.bench.peer.adapter import Adapter, End, Payload, UnfitError, load
from testbed.lab.kernel import privileges
from testbed.shared import python_module
from testbed.shared.input_error import InputError

_MODULE = "testbed.bench.peer.player"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What this process does."""

    adapter: str
    checkout: str
    end: End | None = None

    def start(self, enter: Callable[[], None], folder: Path) -> Process:
        """Start the process."""

        def begin(player: Player) -> None:
            enter()
            os.chdir(folder)
            task = json.dumps(dataclasses.asdict(self), default=str)
            descriptors = map(str, player.kept_on_exec())
            command = python_module.command(_MODULE, task, *descriptors)
            # Nothing is left in the user's clone.
            environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
            os.execve(command[0], command, environment)  # noqa: S606 (no shell is wanted)

        return start(begin, heard=True)

    @classmethod
    def from_json(cls, text: str) -> Task:
        """What `start` hands to the process."""
        values = json.loads(text)
        if (end := values["end"]) is not None:
            values["end"] = End(**(end | {"checkout": Path(end["checkout"])}))
        return cls(**values)


def main(words: list[str]) -> None:
    """Do the task; what goes wrong is told to the conductor."""
    task, player = Task.from_json(words[0]), Player(int(words[1]), int(words[2]))
    privileges.give_up()
    doing = "check"
    try:
        kind = load(task.adapter)
        kind.check(Path(task.checkout))
        if task.end is None:
            player.ready()
            if player.turn():
                player.tell({})
            return
        doing = "open"
        adapter = kind(task.end)
        adapter.open()
        player.ready()
        doing = "receive" if task.end.is_server else "send"
        _transfers(adapter, task.end, player)
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


if __name__ == "__main__":
    main(sys.argv[1:])
