"""The ends of collectives: each owner reduces or sends what is its part, in pieces."""

import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from testbed.ddp.endpoint_thread import POLL_S, SERVER, Contribution, EndpointThread, Part
from testbed.ddp.exchange import LEAST_BYTES, Bucket, Exchange, Plan, shard
from testbed.ddp.settings import Settings
from testbed.shared.input_error import InputError
from testbed.transport import EndpointConfig, Leg
from testbed.transport.layout import ELEMENT_BYTES
from testbed.transport.wire import U32_MAX

Memory = NDArray[np.uint8]  # of a tensor, or of a part of one
Done = Callable[[Exception | None], None]
BOTH = (Leg.GATHER, Leg.BROADCAST)
# A payload has one of these numbers of chunks: each transfer costs a moment at its end, so one
# carries a tensor, with zeros behind it of at most an eighth. Numbers of transfers end after some
# 25 million: a new process group has new ones.
_STEPS = [*range(1, 17), *(eighth << power for power in range(1, 10) for eighth in range(9, 17))]
_LARGEST_BYTES = 8 << 20  # of a piece: an owner holds one of each rank at once
_MOST_FREE = 8  # sizes of pieces for which an owner keeps memory
_ALIGNED_BYTES = 16  # the largest element
_NOTHING = np.empty(0, dtype=np.float32)  # what a piece loses
_STAMP = np.dtype(np.uint32)

_REDUCE: dict[Any, Callable[..., torch.Tensor]] = {  # by `ReduceOp.op`
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Reduction:
    """It makes one tensor of all ranks' tensors of a type; none where `op` is None."""

    op: Any
    dtype: torch.dtype

    @property
    def is_ours(self) -> bool:
        averages = self.op == dist.ReduceOp.AVG
        return self.op in _REDUCE and self.dtype in (
            _FLOATS if averages else (*_FLOATS, *_INTEGERS)
        )

    def reduce(self, everyone: Sequence[Memory], out: Memory) -> None:
        """Reduces all ranks' memory, in their order; may use any of it, of which `out` is one."""
        tensors = [torch.from_numpy(memory).view(self.dtype) for memory in everyone]
        if self.dtype in _HALVES:  # rounded once, at the end
            tensors = [tensor.float() for tensor in tensors]
        total, *others = tensors
        for tensor in others:
            _REDUCE[self.op](total, tensor, out=total)
        if self.op == dist.ReduceOp.AVG:
            total /= len(tensors)
        result = torch.from_numpy(out).view(self.dtype)
        if total.data_ptr() != result.data_ptr():
            result.copy_(total)


@dataclass(frozen=True)
class Move:
    """A collective does this with one memory, which one owner or one for each part reduces."""

    owner: int | None  # None: each rank owns a part
    memory: Memory
    legs: Sequence[Leg]
    reduction: Reduction

    @property
    def terms(self) -> str:
        """Says what has to be equal on all ranks."""
        op = self.reduction.op
        what = f"{len(self.memory)} bytes of {self.reduction.dtype}"
        return what if op is None else f"{what}, {op.name}"

    @cached_property
    def stamp(self) -> int:
        """Returns what stands for the terms at the end of a payload that has room for it."""
        return zlib.crc32(self.terms.encode()) | 1


@dataclass
class Piece(Contribution):
    """A part of a move, as long as one payload."""

    move: Move = field(kw_only=True)
    stamp: int = field(kw_only=True)  # 0: its payload has no room for one
    arriving: dict[str, Memory] = field(default_factory=dict)  # at the owner, by peer


class CollectiveThread(EndpointThread):
    """An end of the collectives of one owner: of that itself, or of another rank."""

    def __init__(self, config: EndpointConfig, settings: Settings, **more: Any) -> None:
        super().__init__(config, settings, **more)
        self._peers = list(config.peers)  # of an owner: the other ranks, in order
        self._is_owner = config.is_server
        self._steps = [layout.chunk_count for layout in self.layouts]
        self._free: dict[int, list[Memory]] = {}  # by length; new memory costs as much as a copy

    def begin(self, move: Move, memory: Memory, done: Done) -> int:
        """Begins with this part of its memory; returns how often `done` is called."""
        begun, chunk_bytes = 0, self.layouts[0].chunk_bytes
        while len(memory):
            chunks = -(-len(memory) // chunk_bytes)
            index = min(bisect_left(self._steps, chunks), len(self._steps) - 1)
            size = self.layouts[index].chunk_count * chunk_bytes
            own, memory = memory[:size], memory[size:]
            payload, stamp = own, 0
            if len(own) < size:
                payload = np.zeros(size, dtype=np.uint8)
                payload[: len(own)] = own
                if len(own) + _STAMP.itemsize <= size:
                    payload.view(_STAMP)[-1] = stamp = move.stamp
            # A transfer's number tells its layout.
            self.next_number += (index - self.next_number) % len(self.layouts)
            if Leg.BROADCAST.transfer(self.next_number) > U32_MAX:
                raise RuntimeError(
                    "the process group has no numbers for more transfers; valid: a new group"
                )
            values = payload.view(np.float32)
            self._new.append(
                Piece(
                    *(self.next_number, values, _NOTHING, payload, payload, 0.0),
                    done=partial(self._done, own, done),
                    move=move,
                    stamp=stamp,
                )
            )
            self.next_number += 1
            begun += 1
        self._endpoint.wake()
        return begun

    def _done(self, own: Memory, done: Done, part: Part) -> None:
        piece, error = part.own, None
        assert isinstance(piece, Piece)
        if piece.payload is not own:
            own[:] = piece.payload[: len(own)]
        if piece.stamp and piece.payload.view(_STAMP)[-1] != piece.stamp:
            error = InputError(
                f"a collective is of {piece.move.terms} here, and another one on another rank; "
                "valid: one size, type and operation on all ranks"
            )
        done(error)

    def _lose(self, peer: str, reason: str) -> None:
        if "broke the protocol" in reason:
            reason += "; valid: the same collectives, of equal sizes, on all ranks"
        super()._lose(peer, reason)

    def _wait(self) -> None:
        # What has just begun without a gather can go on at once.
        first = next((part for part in self._under_way if part.gathered_s is None), None)
        free = sum(not transfers.over for transfers in self._broadcasts) < self._most_broadcasts
        goes_on = free and first is not None and self._is_gathered(first)
        self._endpoint.poll(0.0 if goes_on else POLL_S)

    def _gather(self, part: Part) -> None:
        piece = part.own
        assert isinstance(piece, Piece)
        if Leg.GATHER not in piece.move.legs:
            return
        transfer = Leg.GATHER.transfer(part.number)
        if self._is_owner:
            size = len(piece.payload)
            free = self._free.setdefault(size, [])
            into = {peer: free.pop() if free else np.zeros(size, np.uint8) for peer in self._peers}
            piece.arriving = into
            handle = self._endpoint.post_receive(transfer, 0.0, into)
        else:
            handle = self._endpoint.post_send(transfer, {SERVER: piece.payload})
        part.gather.awaited.append(handle)

    def _broadcast(self, part: Part) -> None:
        piece = part.own
        assert isinstance(piece, Piece)
        if self._is_owner and piece.move.reduction.op is not None:
            everyone = list(piece.arriving.values())
            free = self._free.setdefault(len(piece.payload), [])
            free += everyone[len(free) :]
            while len(self._free) > _MOST_FREE:
                del self._free[next(iter(self._free))]
            equal = all(memory.view(_STAMP)[-1] == piece.stamp for memory in everyone)
            piece.move.reduction.reduce(
                [*everyone[: self.owner], piece.payload, *everyone[self.owner :]], piece.payload
            )
            if piece.stamp:  # without it, all ranks find the error
                piece.payload.view(_STAMP)[-1] = piece.stamp if equal else 0
        if Leg.BROADCAST not in piece.move.legs:
            return
        transfer = Leg.BROADCAST.transfer(part.number)
        if self._is_owner:
            to = dict.fromkeys(self._peers, piece.payload)
            handle = self._endpoint.post_send(transfer, to)
        else:
            handle = self._endpoint.post_receive(transfer, 0.0, {SERVER: piece.payload})
        part.broadcast.awaited.append(handle)


class Ends(Exchange):
    """This rank's ends of one channel."""

    ends = (CollectiveThread, CollectiveThread)
    _small_have_one = False  # as `begin` does it: each in its turn
    _turn = 0

    def begin(self, move: Move, done: Done) -> int:
        """Returns how often `done` will be called."""
        begun, size, count = 0, len(move.memory), len(self._owners)
        owner, self._turn = move.owner, self._turn + 1
        if owner is None and size < count * LEAST_BYTES:
            owner = self._turn % count
        per_chunk = self._opening.chunk_bytes // ELEMENT_BYTES
        for place, thread in self._threads.items():
            assert isinstance(thread, CollectiveThread)
            part = slice(0, size if owner == place else 0)
            if owner is None:
                part = shard(-(-size // ELEMENT_BYTES), place, count, per_chunk)
                part = slice(part.start * ELEMENT_BYTES, part.stop * ELEMENT_BYTES)
            begun += thread.begin(move, move.memory[part], done)
        return begun


def plan_of(world: int, chunk_bytes: int) -> tuple[int, Plan]:
    """Returns the bytes of a chunk, which divides no element, and the pieces of an exchange."""
    chunk_bytes -= chunk_bytes % _ALIGNED_BYTES
    steps = [count for count in _STEPS if count * chunk_bytes <= _LARGEST_BYTES]
    elements = [world * count * chunk_bytes // ELEMENT_BYTES for count in steps]
    return chunk_bytes, tuple(Bucket(count, "uint8", ()) for count in elements)
