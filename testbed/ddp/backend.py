"""The c10d backend `bounded`: collectives over the transport, with equal bits on all ranks.

    import testbed.ddp                         # registers it
    dist.init_process_group("bounded")

It carries all_reduce and broadcast of tensors on the processor; Gloo does all else. Each rank owns
a part of what is reduced: all others send theirs to it, and it reduces them in the order of ranks.
"""

import atexit
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.futures import Future

from testbed.ddp.bounded_loss import at_the_end_of_backward
from testbed.ddp.endpoint_thread import SERVER, Contribution, EndpointThread, Part
from testbed.ddp.exchange import Bucket, Exchange, Opening, Plan, shard
from testbed.ddp.meeting import Rendezvous
from testbed.ddp.settings import Settings
from testbed.shared.input_error import InputError
from testbed.transport import EndpointConfig, Leg, PeerLost
from testbed.transport.layout import ELEMENT_BYTES
from testbed.transport.wire import U32_MAX

NAME = "bounded"
Memory = NDArray[np.uint8]  # of a tensor, or of a part of one
Callback = Callable[["Result"], Any]
_BOTH = (Leg.GATHER, Leg.BROADCAST)
# A payload has one of these numbers of chunks. So any tensor goes in few pieces, and without waste.
_STEPS = [1, *sorted(count for power in range(1, 12) for count in (2**power, 3 * 2 ** (power - 1)))]
_LARGEST_BYTES = 8 << 20  # of a piece: an owner holds one of each rank at once
_ALIGNED_BYTES = 16  # the largest element
# Which thread issues: "" for those of the script, else that of the callbacks of a channel.
_context = threading.local()

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
    """How tensors of this type become one."""

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


@dataclass
class Piece(Contribution):
    """A part of a collective, as long as one payload. Either leg may be missing."""

    legs: Sequence[Leg] = _BOTH
    reduction: Reduction | None = None
    arriving: dict[str, Memory] = field(default_factory=dict)  # at the owner, by peer


class CollectiveThread(EndpointThread):
    """An end of the collectives of one owner: of that itself, or of another rank."""

    def __init__(self, config: EndpointConfig, settings: Settings, **more: Any) -> None:
        super().__init__(config, settings, **more)
        self._peers = list(config.peers)  # of an owner: the other ranks, in order
        self._is_owner = config.is_server
        self._free: dict[int, list[Memory]] = {}  # by length; new memory costs as much as a copy

    def begin(
        self,
        memory: Memory,
        legs: Sequence[Leg],
        reduction: Reduction | None,
        done: Callable[[], None],
    ) -> int:
        """Begins with this memory, which takes the result; returns how often `done` is called."""
        begun, chunk_bytes = 0, self.layouts[0].chunk_bytes
        while len(memory):
            chunks = -(-len(memory) // chunk_bytes)
            fitting = [layout.chunk_count <= chunks for layout in self.layouts]
            index = len(fitting) - 1 - fitting[::-1].index(True)
            size = self.layouts[index].chunk_count * chunk_bytes
            own, memory = memory[:size], memory[size:]
            payload = own
            if len(own) < size:
                payload = np.zeros(size, dtype=np.uint8)
                payload[: len(own)] = own
            # A transfer's number tells its layout.
            self.next_number += (index - self.next_number) % len(self.layouts)
            values = payload.view(np.float32)
            self._new.append(
                Piece(
                    *(self.next_number, slice(0, len(own)), values, payload, 0.0),
                    done=partial(self._done, own, done),
                    legs=legs,
                    reduction=reduction,
                )
            )
            self.next_number += 1
            begun += 1
        self._endpoint.wake()
        return begun

    def _done(self, own: Memory, done: Callable[[], None], part: Part) -> None:
        assert part.own is not None
        if part.own.payload is not own:
            own[:] = part.own.payload[: len(own)]
        done()

    def _gather(self, part: Part) -> None:
        piece = part.own
        assert isinstance(piece, Piece)
        if Leg.GATHER not in piece.legs:
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
        if self._is_owner and piece.reduction is not None:
            everyone = list(piece.arriving.values())
            self._free[len(piece.payload)] += everyone
            piece.reduction.reduce(
                [*everyone[: self.owner], piece.payload, *everyone[self.owner :]], piece.payload
            )
        if Leg.BROADCAST not in piece.legs:
            return
        transfer = Leg.BROADCAST.transfer(part.number)
        if self._is_owner:
            to = dict.fromkeys(self._peers, piece.payload)
            handle = self._endpoint.post_send(transfer, to)
        else:
            handle = self._endpoint.post_receive(transfer, 0.0, {SERVER: piece.payload})
        part.broadcast.awaited.append(handle)


@dataclass(frozen=True)
class Move:
    """What a collective does with one memory, which its owner, or one for each part, reduces."""

    owner: int | None  # None: each rank owns a part
    memory: Memory
    legs: Sequence[Leg]
    reduction: Reduction | None = None


class Ends(Exchange):
    """This rank's ends of one channel."""

    ends = (CollectiveThread, CollectiveThread)

    def begin(self, move: Move, done: Callable[[], None]) -> int:
        """Returns how often `done` will be called."""
        begun, elements = 0, -(-len(move.memory) // ELEMENT_BYTES)
        for owner, thread in self._threads.items():
            assert isinstance(thread, CollectiveThread)
            memory = move.memory[:0] if move.owner not in (None, owner) else move.memory
            if move.owner is None:
                chunk_bytes = self._opening.chunk_bytes
                part = shard(elements, owner, len(self._owners), chunk_bytes)
                memory = memory[part.start * ELEMENT_BYTES : part.stop * ELEMENT_BYTES]
            begun += thread.begin(memory, move.legs, move.reduction, done)
        return begun


class Result(Future[Any]):
    """The future of a collective. Python's callbacks run in the thread of its channel, in order.

    They may wait for other collectives, and these are issued in the same order on all ranks: were a
    callback run where it is registered, or by who ends the collective, that would be chance.
    """

    def __init__(self, channel: "Channel") -> None:
        super().__init__()
        self._channel = channel

    def then(self, callback: Callback) -> "Result":
        child = Result(self._channel)

        def run() -> None:
            with suppress(Exception):
                self.wait()  # else the callback finds the error itself
            try:
                child.set_result(callback(self))
            except Exception as error:
                child.set_exception(error)

        self._channel.later(run)
        child.raise_in_backward()
        return child

    def add_done_callback(self, callback: Callback) -> None:
        self.then(callback)

    def raise_in_backward(self) -> None:
        """Lets a backward pass raise the error. DDP itself could not tell what is wrong."""
        if torch._C._current_graph_task_id() >= 0:
            at_the_end_of_backward(self.wait)


class CollectiveWork(dist.Work):
    """One collective on its way."""

    def __init__(self, channel: "Channel", result: Any) -> None:
        super().__init__()
        self.moves: list[Move] = []
        self._result = result
        self._future = Result(channel)
        self._copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._lock = threading.Lock()
        self._left, self._posted = 0, False  # pieces
        self._ended = threading.Event()
        self._error: Exception | None = None

    def memory_of(self, tensor: torch.Tensor) -> Memory:
        """Returns a tensor's memory; one that is not contiguous gets what stands there last."""
        plain = tensor.detach()
        if not tensor.is_contiguous():
            plain = plain.contiguous()
            self._copied.append((tensor.detach(), plain))
        memory: Memory = plain.reshape(-1).view(torch.uint8).numpy()
        return memory

    def piece_done(self) -> None:
        with self._lock:
            self._left -= 1
            ended = self._posted and not self._left
        if ended:
            self.end()

    def posted(self, pieces: int) -> None:
        with self._lock:
            self._left, self._posted = self._left + pieces, True
            ended = not self._left
        if ended:
            self.end()

    def end(self, error: Exception | None = None) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._error = error
            for tensor, plain in self._copied if error is None else ():
                tensor.copy_(plain)
            self._ended.set()
        if error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(error)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns when it is complete; raises PeerLost where a rank has failed."""
        if not self._ended.wait(timeout.total_seconds() or None):
            raise RuntimeError(f"the collective has not ended within {timeout.total_seconds():g} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self._ended.is_set() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> Any:
        return self._result

    def get_future(self) -> Result:
        return self._future


class Channel:
    """The collectives that one thread of a group issues: they are in the same order on all ranks.

    Callbacks are another thread, whose collectives have a channel of their own.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        self._name = name
        self._settings = settings
        self._lock = threading.RLock()
        self._issued: list[CollectiveWork] = []  # that have not ended, or not long ago
        self._early: list[CollectiveWork] | None = []  # issued before all ranks have met
        self._rendezvous: Rendezvous | None = None
        self._ends: Ends | None = None
        self._failure: Exception | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.later(self._open)
        threading.Thread(target=self._run, name=f"bounded-{name}", daemon=True).start()

    def later(self, job: Callable[[], None]) -> None:
        """Lets the channel's own thread do it after all that it was asked to do before."""
        self._jobs.put(job)

    def _run(self) -> None:
        _context.issuer = self._name
        while (job := self._jobs.get()) is not None:
            job()

    def issue(self, work: CollectiveWork) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._issued = [earlier for earlier in self._issued if not earlier.is_completed()]
            self._issued.append(work)
            if self._early is None:
                self._post(work)
            else:
                self._early.append(work)
        work.get_future().raise_in_backward()

    def _post(self, work: CollectiveWork) -> None:
        assert self._ends is not None
        work.posted(sum(self._ends.begin(move, work.piece_done) for move in work.moves))

    def _open(self) -> None:
        try:
            self._rendezvous = rendezvous = Rendezvous(self._settings, self._name)
            rendezvous.meet()
            chunk_bytes = rendezvous.chunk_bytes // _ALIGNED_BYTES * _ALIGNED_BYTES
            steps = [count for count in _STEPS if count * chunk_bytes <= _LARGEST_BYTES]
            elements = [rendezvous.world * count * chunk_bytes // ELEMENT_BYTES for count in steps]
            plan: Plan = tuple(Bucket(count, "", ()) for count in elements)
            session = rendezvous.session & U32_MAX
            addresses, ports = rendezvous.addresses, rendezvous.ports(session)
            opening = Opening(addresses, chunk_bytes, session, *ports, plan)
            self._ends = Ends(
                self._settings,
                rendezvous,
                opening,
                on_gathered=lambda: None,
                on_failure=lambda owner, error: self._fail(error, owner),
            )
            self._ends.start()
        except Exception as error:
            self._fail(error)
            return
        with self._lock:
            early, self._early = self._early or [], None
            for work in early:
                self._post(work)

    def _fail(self, error: Exception, owner: int | None = None) -> None:
        """Ends the channel on all ranks; all that is under way raises the first error."""
        if isinstance(error, PeerLost) and self._rendezvous is not None:
            blamed = self._rendezvous.blamed(error, owner)
            rank, reason = self._rendezvous.first_failure(*blamed)
            error = PeerLost(f"rank {rank}", reason)
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            issued, self._issued, self._early = self._issued, [], None
        if self._ends is not None:
            self._ends.stop()
        for work in issued:
            work.end(error)

    def close(self) -> None:
        """Ends it; what others still await arrives."""
        self._jobs.put(None)
        if self._ends is not None:
            self._ends.close()
        if self._rendezvous is not None and self._rendezvous.identity is not None:
            self._rendezvous.identity.close()
        self._fail(RuntimeError("this process group is closed"))


class BoundedProcessGroup(dist.ProcessGroup):
    """A process group whose channels open when they are first used. Gloo does what they do not."""

    def __init__(self, options: Any, settings: Settings | None) -> None:
        """`options`: torch's `DistributedBackendOptions`; `settings`: what `pg_options` was."""
        super().__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        if not isinstance(settings, Settings | None):
            raise InputError(f"pg_options is {type(settings).__name__}; valid: Settings, or None")
        gloo = dist.ProcessGroup.BackendType.GLOO
        size = options.group_size
        self._gloo: Any = dist.ProcessGroupGloo(
            options.store, options.group_rank, size, timeout=options.timeout
        )
        self._register_backend(torch.device("cpu"), gloo, self._gloo)
        self._set_default_backend(gloo)
        self._settings = replace(settings or Settings(), group=self, mode="reliable")
        self._channels: dict[str, Channel] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def _work(self, result: Any) -> CollectiveWork:
        return CollectiveWork(self._channel, result)

    @property
    def _channel(self) -> Channel:
        """The channel of the thread that calls."""
        issuer = getattr(_context, "issuer", "")
        with self._lock:
            if issuer not in self._channels:
                self._channels[issuer] = Channel(self._settings, f"{issuer}/{self.group_name}")
            return self._channels[issuer]

    def _issue(self, work: CollectiveWork) -> CollectiveWork:
        if self.size() == 1:
            work.end()
        else:
            self._channel.issue(work)
        return work

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        opts = opts or dist.AllreduceOptions()
        reductions = [Reduction(opts.reduceOp.op, tensor.dtype) for tensor in tensors]
        if not (_are_ours(tensors) and all(reduction.is_ours for reduction in reductions)):
            return self._gloo.allreduce(tensors, opts)
        work = self._work(tensors)
        for tensor, reduction in zip(tensors, reductions, strict=True):
            work.moves.append(Move(None, work.memory_of(tensor), _BOTH, reduction))
        return self._issue(work)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        opts = opts or dist.BroadcastOptions()
        if not _are_ours(tensors):
            return self._gloo.broadcast(tensors, opts)
        work = self._work(tensors)
        for tensor in tensors:
            work.moves.append(Move(opts.rootRank, work.memory_of(tensor), [Leg.BROADCAST]))
        return self._issue(work)

    def close(self) -> None:
        atexit.unregister(self.close)
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()

    def shutdown(self) -> None:
        """`destroy_process_group` calls it."""
        self.close()
        super().shutdown()


def _are_ours(tensors: Sequence[torch.Tensor]) -> bool:
    return all(
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        for tensor in tensors
    )


def register() -> None:
    """Makes the backend known to torch; RuntimeError where another one has its name."""
    if NAME.upper() in dist.Backend._plugins:
        raise RuntimeError(f"another package has registered a c10d backend {NAME!r} before ours")
    dist.Backend.register_backend(NAME, BoundedProcessGroup, extended_api=True, devices=["cpu"])
