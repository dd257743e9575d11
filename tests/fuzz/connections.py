"""Many hostile datagrams and control messages against connections in all of their states:

    python -m tests.fuzz.connections [DATAGRAMS] [MESSAGES] [SEED]

Sends so many datagrams (10^7), in batches of 256, and so many control messages (10^6) to the two
sides of `tests.transport.hostile.Victim`. They are built by structure: valid ones, ones with a
field that is wrong or out of place, and a part with flipped, missing or additional bytes. Whole
batches of strangers, which do not know the session, must leave no trace. Prints how many were
sent; the first thing that does not hold ends it, with the seed of the life in which it happened.
"""

import random
import sys
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.messages import (
    PASS,
    SENT,
    Ack,
    ControlMessage,
    Hello,
    MessageType,
    Welcome,
    pack_arrivals,
    pack_bitmap,
)
from testbed.transport.core.wire import SEND_INDEX_MODULUS, U32_MAX, fields, new_frames
from testbed.transport.policies.repair import REPAIRS
from tests.transport.hostile import CHUNK, SESSION, SIDES, TRANSFER, Side, Victim

BATCH = 256
_STEPS = 60  # of one life
_FLOOD = 300
_TRANSFERS = (*range(TRANSFER - 1, TRANSFER + 6), 0, U32_MAX)
_REPAIRS = sorted(REPAIRS)
_ANSWERS = (
    *(MessageType.BITMAP, MessageType.LATE_BITMAP, MessageType.ACK, MessageType.ACK),
    *(MessageType.HOLD, MessageType.STOP, MessageType.PING, MessageType.PONG),
)
_ASKS = (*(MessageType.PROBE,) * 6, MessageType.PING, MessageType.PONG)


class Life:
    """One victim, and what is done to it until it has given up its peer, or has seen enough.

    Attributes:
        datagrams, messages: how many it was sent.
        given_up: how often it gave up its peer.
    """

    def __init__(self, seed: int, *, talks: bool) -> None:
        """`talks`: whether control messages come one after the other, or datagrams between."""
        self._random = random.Random(seed)
        self._arrays = np.random.default_rng(seed)
        self._talks = talks
        self._chunks = self._random.choice([1, 2, 9, 64])
        self.datagrams = self.messages = 0
        self._probed: Counter[int] = Counter()
        self._victim = Victim(
            self._random.choice(_REPAIRS),
            self._chunks,
            self._random.choice([0, 0.1, 0.5]),
            opened=self._random.random() < 0.9,
            posted=self._random.randrange(3),
        )

    @property
    def given_up(self) -> int:
        return self._victim.restarts

    def run(self) -> None:
        for _ in range(_STEPS):
            chance = self._random.random()
            side = self._random.choice(SIDES)
            if chance < 0.1:
                self._victim.wait(self._random.choice([0.0, 1e-4, 0.01, 0.3, 3.0]))
            elif chance < 0.15:
                self._victim.post(side, self._random.choice(_TRANSFERS))
            elif chance < 0.16:
                self._flood(side)
            elif chance < (0.2 if self._talks else 0.9):
                self._batch(side)
            else:
                self._say(side)
            self._victim.check()
            if self.given_up:
                return

    def _batch(self, side: Side) -> None:
        frames = self._frames()
        self.datagrams += len(frames)
        records = fields(frames, CHUNK)
        if self._random.random() < 0.3:
            records["session"][records["session"] == SESSION] = SESSION ^ 1 << 31
            before = self._victim.trace(side)
            assert self._victim.frames(side, frames) == 0, "a stranger was answered"
            assert self._victim.trace(side) == before, "a stranger left a trace"
        else:
            self._victim.frames(side, frames)

    def _flood(self, side: Side) -> None:
        """The same datagram again and again, or PROBEs for ever more transfers."""
        if self._random.random() < 0.5:
            frames = self._frames()[:1]
            for _ in range(_FLOOD):
                self._victim.frames(side, frames)
            self.datagrams += _FLOOD
            return
        body = self._random.choice([PASS.pack(1, 1), SENT.pack(self._chunks)])
        for number in range(_FLOOD):
            probe = ControlMessage(MessageType.PROBE, TRANSFER + number, body)
            self._victim.control(side, probe.encode())
            self.messages += 1
            if self.given_up:
                return

    def _frames(self) -> NDArray[np.uint8]:
        """A batch, of which most records are valid or nearly so: shape (BATCH, bytes)."""
        draw = self._arrays
        frames = new_frames(BATCH, CHUNK)
        frames[:] = draw.integers(0, 256, frames.shape, dtype=np.uint8)
        records = fields(frames, CHUNK)
        records["session"] = SESSION
        chunks = draw.integers(0, self._chunks + (draw.random() < 0.3), BATCH)
        if draw.random() < 0.3:
            chunks = np.arange(BATCH) % self._chunks
        records["sequence"] = chunks
        of = self._random.choices(_TRANSFERS, k=1 + (draw.random() < 0.3) * 3)
        records["transfer"] = draw.choice(np.array(of), BATCH)
        lengths = self._victim.layout.chunk_lengths
        records["length"] = lengths[np.minimum(chunks, self._chunks - 1)]
        first = self._random.choice(
            [0, SEND_INDEX_MODULUS - 7, int(draw.integers(SEND_INDEX_MODULUS))]
        )
        records["stamp"] = (np.arange(BATCH) + first) % (2 * SEND_INDEX_MODULUS)
        if draw.random() < 0.5:
            wrong = draw.random(BATCH) < 0.1
            places = draw.integers(0, 16, BATCH)[wrong]
            frames[wrong, places] ^= (1 << draw.integers(0, 8, BATCH)[wrong]).astype(np.uint8)
        return frames

    def _say(self, side: Side) -> None:
        stream = b""
        for _ in range(self._random.choice([1, 1, 1, 2, 5])):
            stream += self._message(side).encode()
            self.messages += 1
        if self._random.random() < 0.1:
            stream = self._damaged(stream)
        waited = self._random.random() < 0.2
        size = self._random.choice([len(stream) + 1, len(stream) + 1, 1, 7])
        for at in range(0, len(stream), size):
            self._victim.control(side, stream[at : at + size], waited=waited)

    def _message(self, side: Side) -> ControlMessage:
        """Most are of a kind that this side takes, for a transfer that it may know."""
        draw = self._random
        kinds = _ANSWERS if side == "sender" else _ASKS
        kind = draw.choice(kinds) if draw.random() < 0.95 else draw.choice(list(MessageType))
        transfer = TRANSFER if draw.random() < 0.8 else draw.choice(_TRANSFERS)
        return ControlMessage(kind, transfer, self._body(kind, transfer))

    def _body(self, kind: MessageType, transfer: int) -> bytes:
        draw = self._random
        if draw.random() < 0.02:
            return draw.randbytes(draw.randrange(40))
        if kind is MessageType.PROBE:
            ends = draw.random() < 0.7
            number = self._probed[transfer] + 1 if draw.random() < 0.9 else draw.randrange(5)
            self._probed[transfer] += ends
            sent = draw.choice([self._chunks, draw.randrange(200), U32_MAX])
            return PASS.pack(number, ends) if draw.random() < 0.6 else SENT.pack(sent)
        if kind in (MessageType.BITMAP, MessageType.LATE_BITMAP):
            most = self._chunks + (draw.random() < 0.05)
            chunks = sorted(draw.sample(range(most), draw.randrange(min(most, 3) + 1)))
            return pack_arrivals(np.array(chunks, dtype=np.int64))
        if kind is MessageType.STOP:
            received = np.array(draw.choices([True, False], k=self._chunks))
            return draw.choice([b"", pack_bitmap(received)])
        if kind is MessageType.ACK:
            return self._ack(transfer)
        if kind is MessageType.HELLO:
            return Hello(session=SESSION, name="x", layout=draw.randbytes(9)).message().body
        if kind is MessageType.WELCOME:
            return Welcome(session=SESSION, data_port=draw.randrange(2**16)).message().body
        if kind in (MessageType.ANNOUNCE, MessageType.REFUSED, MessageType.FAILED):
            return draw.randbytes(draw.randrange(60))
        return b""

    def _ack(self, transfer: int) -> bytes:
        draw = self._random
        sender = self._victim.sides["sender"].outgoing.senders.get(transfer)
        sent = max(1, sender._datagrams_sent if sender is not None else 1)
        first = draw.randrange(sent) if draw.random() < 0.9 else draw.randrange(SEND_INDEX_MODULUS)
        most = draw.choice([sent, 64, 4096]) if draw.random() < 0.2 else min(sent, 8)
        echo = draw.choice([None, first, draw.randrange(SEND_INDEX_MODULUS)])
        ack = Ack(
            first=first % SEND_INDEX_MODULUS,
            arrived=np.array(draw.choices([True, False], k=draw.randrange(most) + 1)),
            echo=None if echo is None else echo % SEND_INDEX_MODULUS,
            held_s=draw.choice([0.0, 1e-4, 1.0, 1e3]),
            probed=draw.choice([0, sent]) if draw.random() < 0.98 else draw.randrange(U32_MAX),
            at_once=draw.random() < 0.5,
        )
        return ack.message(transfer).body

    def _damaged(self, stream: bytes) -> bytes:
        data = bytearray(stream)
        place = self._random.randrange(len(data))
        how = self._random.randrange(3)
        if how == 0:
            data[place] ^= 1 << self._random.randrange(8)
        elif how == 1:
            del data[place]
        else:
            data.insert(place, self._random.randrange(256))
        return bytes(data)


def attack(datagrams: int, messages: int, seed: int) -> Counter[str]:
    """So many of each, at least; returns what was done."""
    done: Counter[str] = Counter()
    while done["datagrams"] < datagrams or done["messages"] < messages:
        talks = done["messages"] * datagrams < done["datagrams"] * messages
        life_seed = seed * 10**9 + done["lives"]
        life = Life(life_seed, talks=talks)
        try:
            life.run()
        except BaseException:
            print(f"the life of seed {life_seed}, talks {talks}", file=sys.stderr)
            raise
        done.update(
            datagrams=life.datagrams, messages=life.messages, lives=1, given_up=life.given_up
        )
    return done


def main() -> None:
    datagrams, messages, seed = (
        int(sys.argv[place]) if len(sys.argv) > place else default
        for place, default in ((1, 10**7), (2, 10**6), (3, 0))
    )
    print(f"held: {dict(attack(datagrams, messages, seed))}")


if __name__ == "__main__":
    main()
