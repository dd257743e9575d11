"""The c10d backend `bounded`: collectives over the transport, with equal bits on all ranks.

    import testbed.ddp                         # registers it
    dist.init_process_group("bounded")

It carries all_reduce, broadcast, all_gather and reduce_scatter of tensors on the processor; Gloo
does all else. Each rank owns a part of what is reduced: all others send theirs to it, and it
reduces them in the order of ranks.
"""

import atexit
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future

from testbed.ddp.bounded_loss import at_the_end_of_backward
from testbed.ddp.collectives import BOTH, Ends, Memory, Move, Reduction, plan_of
from testbed.ddp.exchange import Opening
from testbed.ddp.meeting import Rendezvous
from testbed.ddp.settings import BACKEND, Settings, require_equal
from testbed.shared.input_error import InputError, shown
from testbed.transport import Leg

Callback = Callable[["Result"], Any]
Tensors = list[torch.Tensor]
_ALL_GATHER = dist.distributed_c10d.AllgatherOptions
# Which thread issues: "" for those of the script, else that of the callbacks of a channel.
_context = threading.local()


class Result(Future[Any]):
    """The future of a collective. Its channel's thread completes it and runs callbacks, in order.

    They may wait for other collectives, and these are issued in the same order on all ranks: were a
    callback run where it is registered, or by who ends the collective, that would be chance. It is
    where `collect_all` joins futures that are complete: torch runs its callbacks at once.
    """

    def __init__(self, channel: "Channel", outcome: Callable[[], Any]) -> None:
        """`outcome` returns the value or raises; the channel's thread calls it."""
        super().__init__()
        self._channel = channel
        self._outcome: Callable[[], Any] | None = outcome
        channel.later(self.complete)

    def complete(self) -> None:
        """Completes it, unless it is complete: in turn, or before where a callback waits for it."""
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return
        try:
            value = outcome()
        except BaseException as error:  # a SystemExit, too, must not end the thread
            self.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        else:
            self.set_result(value)

    def wait(self) -> Any:
        if threading.current_thread() is self._channel.thread:
            self.complete()  # nobody else would
        return super().wait()

    def then(self, callback: Callback) -> "Result":
        def outcome() -> Any:
            with suppress(Exception):
                self.wait()  # else the callback finds the error itself
            return callback(self)

        child = Result(self._channel, outcome)
        _raise_in_backward(child.wait)
        return child

    def add_done_callback(self, callback: Callback) -> None:
        self.then(callback)


def _raise_in_backward(wait: Callable[[], Any]) -> None:
    """Lets a backward pass raise the error. DDP itself could not tell what is wrong."""
    if torch._C._current_graph_task_id() >= 0:
        at_the_end_of_backward(wait)


class CollectiveWork(dist.Work):
    """One collective on its way."""

    def __init__(self, channel: "Channel", result: Any) -> None:
        super().__init__()
        self.moves: list[Move] = []
        self._channel = channel
        self._result = result
        self._future: Result | None = None
        self._copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._lock = threading.Lock()
        self._left, self._posted = 0, False  # pieces
        self._ended = threading.Event()
        self._error: Exception | None = None

    def add(self, owner: int | None, tensor: torch.Tensor, legs: Any, op: Any = None) -> None:
        """Adds a move; a tensor that is not contiguous gets what stands in its memory last."""
        tensor = tensor.detach()
        plain = tensor.contiguous()
        if plain is not tensor:
            self._copied.append((tensor, plain))
        # After `numpy()` no tensor can be resized any more.
        memory: Memory = np.from_dlpack(plain.reshape(-1).view(torch.uint8)).view(np.uint8)
        self.moves.append(Move(owner, memory, legs, Reduction(op, tensor.dtype)))

    def piece_done(self, error: Exception | None, more: int = -1) -> None:
        with self._lock:
            self._left += more
            self._error = self._error or error
            ended = self._posted and not self._left
        if ended:
            self.end(self._error)

    def posted(self, pieces: int) -> None:
        self._posted = True
        self.piece_done(None, pieces)

    def end(self, error: Exception | None = None) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            try:
                for tensor, plain in self._copied if error is None else ():
                    _copy_back(tensor, plain)
            except Exception as problem:  # of this collective alone
                error = problem
            self._error = error
            self._ended.set()

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
        if self._future is None:
            self._future = Result(self._channel, lambda: self.wait() and self._result)
        if threading.current_thread() is self._channel.thread:
            self._future.complete()  # a callback may wait for it in C++, as `wait_all` does
        return self._future


@torch.inference_mode()  # else nothing may write to a tensor that was made in it
def _copy_back(tensor: torch.Tensor, plain: torch.Tensor) -> None:
    for dimension, stride in enumerate(tensor.stride()):
        if not stride:  # it was expanded: all elements are one
            tensor, plain = (both.narrow(dimension, 0, 1) for both in (tensor, plain))
    tensor.copy_(plain)


class Channel:
    """The collectives that one thread of a group issues: they are in the same order on all ranks.

    Callbacks are another thread, whose collectives have a channel of their own.
    """

    def __init__(self, settings: Settings, name: str, store: dist.Store) -> None:
        """`store` is this channel's alone; its name is unique in a process, and equal on all."""
        self._name = name
        self._settings = settings
        self._store = store
        self._lock = threading.RLock()
        self.issued: list[CollectiveWork] = []  # that have not ended, or not long ago
        self._early: list[CollectiveWork] | None = []  # issued before all ranks have met
        self._rendezvous: Rendezvous | None = None
        self._ends: Ends | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        if settings.group is not None and settings.group.size() > 1:
            self.later(self._open)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def later(self, job: Callable[[], None]) -> None:
        """Lets the channel's own thread do it after all that it was asked to do before.

        Once the channel is closed, it is done at once.
        """
        with self._lock:
            if not self._closed:
                self._jobs.put(job)
                return
        job()

    def _run(self) -> None:
        _context.issuer = self._name
        while (job := self._jobs.get()) is not None:
            job()

    def issue(self, work: CollectiveWork) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self.issued = [earlier for earlier in self.issued if not earlier.is_completed()]
            self.issued.append(work)
            if self._early is None:
                self._post(work)
            else:
                self._early.append(work)
        _raise_in_backward(work.wait)

    def _post(self, work: CollectiveWork) -> None:
        assert self._ends is not None
        try:
            work.posted(sum(self._ends.begin(move, work.piece_done) for move in work.moves))
        except Exception as error:  # as on all ranks: what was issued before goes on
            work.end(error)

    def _open(self) -> None:
        try:
            self._rendezvous = rendezvous = Rendezvous(self._settings, self._store)
            rendezvous.meet()
            chunk_bytes, plan = plan_of(rendezvous.world, rendezvous.chunk_bytes)
            ports = rendezvous.ports(rendezvous.session)
            opening = Opening(rendezvous.addresses, chunk_bytes, rendezvous.session, *ports, plan)
            self._ends = Ends(
                self._settings,
                rendezvous,
                opening,
                on_gathered=lambda: None,
                on_failure=self._fail,
            )
            self._ends.start()
        except Exception as error:
            self._fail(error)
            return
        with self._lock:
            if self._failure is not None:  # it was closed meanwhile
                self._ends.stop()
                return
            early, self._early = self._early or [], None
            for work in early:
                self._post(work)

    def _fail(self, error: Exception) -> None:
        """Ends the channel on all ranks; all that is under way raises the first error."""
        self.end(error if self._rendezvous is None else self._rendezvous.first_error(error))

    def end(self, error: Exception) -> None:
        """All that is under way, or is issued later, raises this error, if it is the first."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            issued, self.issued, self._early = self.issued, [], None
        if self._ends is not None:
            self._ends.stop()
        for work in issued:
            work.end(error)

    def close(self) -> None:
        """Ends it; what others still await arrives."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
        if self._ends is not None:
            self._ends.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        self.end(RuntimeError("this process group is closed"))


class BoundedProcessGroup(dist.ProcessGroup):
    """A process group whose channels open when they are first used. Gloo does what they do not."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        settings: Settings | None = None,
        name: str = "",
    ) -> None:
        """Torch need not know it. The store is this group's alone; `name` tells it from others."""
        super().__init__(rank, size)  # type: ignore[call-arg]
        if not isinstance(settings, Settings | None):
            raise InputError(f"pg_options is {shown(settings)}; valid: Settings, or None")
        settings = settings or Settings()
        seconds = settings.timeout_s or timeout.total_seconds()
        self._settings = replace(settings, group=self, timeout_s=seconds)
        self._settings.mode, self._settings.collective = "reliable", "sharded"
        self._settings.late_share, self._settings.min_ranks = 0.0, None
        # Collectives are exact: nothing of a protocol that compresses holds for them. And a burst
        # stops control over kernel TCP for 200 ms.
        config = self._settings.protocol_config
        control: Any = "datagrams" if config.carrier == "udp" else "tcp"
        whole = replace(config, keep=1.0, codec="float32", control=control)
        self._settings.protocol_config = whole
        # A store may outlive a group, and torch gives the next one the same name. All ranks of one
        # have come before any makes another.
        made = (store.add("bounded", 1) - 1) // size
        store = dist.PrefixStore(f"bounded/{made}", store)
        self._store, self._name = store, name
        facts = Rendezvous(self._settings, store).share(
            "the process group", lambda: {"the group's size": size}
        )
        require_equal(facts)
        gloo = dist.ProcessGroup.BackendType.GLOO
        backend = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        self._others: Any = dist.ProcessGroup(store, rank, size)
        for group in (self, self._others):
            group._register_backend(torch.device("cpu"), gloo, backend)
            group._set_default_backend(gloo)
        self._channels: dict[str, Channel] = {}
        self._closed = False
        self._lock = threading.Lock()
        atexit.register(self.close)

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    def _work(self, result: Any) -> CollectiveWork:
        return CollectiveWork(self._channel, result)

    @property
    def _channel(self) -> Channel:
        """The channel of the thread that calls."""
        issuer = getattr(_context, "issuer", "")
        with self._lock:
            if self._closed:
                raise RuntimeError("this process group is closed")
            if issuer not in self._channels:
                store = dist.PrefixStore(f"bounded/{issuer}", self._store)
                name = f"{issuer}>{self._name}"
                self._channels[issuer] = Channel(self._settings, name, store)
            return self._channels[issuer]

    def _issue(self, work: CollectiveWork) -> CollectiveWork:
        if self.size() == 1:
            work.end()
        else:
            self._channel.issue(work)
        return work

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:  # type: ignore[override]
        opts = opts or dist.AllreduceOptions()
        if not _are_ours(tensors, opts):
            return self._others.allreduce(tensors, opts)
        work = self._work(tensors)
        for tensor in tensors:
            work.add(None, tensor, BOTH, opts.reduceOp.op)
        return self._issue(work)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        if not _are_ours(tensors, opts or dist.AllreduceOptions()):
            return self._others.allreduce_coalesced(tensors, opts)
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:  # type: ignore[override]
        opts = opts or dist.BroadcastOptions()
        root = opts.rootRank
        if not (_are_ours(tensors) and 0 <= root < self.size()):  # Gloo says what is wrong
            return self._others.broadcast(tensors, opts)
        work = self._work(tensors)
        for tensor in tensors:
            work.add(root, tensor, [Leg.BROADCAST])
        return self._issue(work)

    def allgather(  # type: ignore[override]
        self, outputs: list[Tensors], inputs: Tensors, opts: Any = None
    ) -> Any:
        if not all(map(_fit, outputs, inputs)):
            return self._others.allgather(outputs, inputs, opts or _ALL_GATHER())
        work = self._work(outputs)
        for row, own in zip(outputs, inputs, strict=True):
            mine = row[self.rank()].detach()
            mine.copy_(own.reshape(mine.shape))
            for owner, tensor in enumerate(row):
                work.add(owner, tensor, [Leg.BROADCAST])
        return self._issue(work)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        opts = opts or _ALL_GATHER()
        rows = [self._rows(output) for output in outputs]
        if not all(map(_fit, rows, inputs)):
            return self._others.all_gather_single_coalesced(outputs, inputs, opts)
        return self.allgather(rows, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Any:
        if not _fit(self._rows(output), own):
            return self._others.all_gather_single(output, own, opts or _ALL_GATHER())
        return self.all_gather_single_coalesced([output], [own], opts)

    def reduce_scatter(  # type: ignore[override]
        self, outputs: Tensors, inputs: list[Tensors], opts: Any = None
    ) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        if not (all(map(_fit, inputs, outputs)) and _are_ours(outputs, opts)):
            return self._others.reduce_scatter(outputs, inputs, opts)
        work = self._work(outputs)
        for output, row in zip(outputs, inputs, strict=True):
            output.detach().copy_(row[self.rank()].reshape(output.shape))
            for owner, tensor in enumerate(row):
                place = output if owner == self.rank() else tensor.contiguous()
                work.add(owner, place, [Leg.GATHER], opts.reduceOp.op)
        return self._issue(work)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        rows = [self._rows(tensor) for tensor in inputs]
        if not (all(map(_fit, rows, outputs)) and _are_ours(outputs, opts)):
            return self._others.reduce_scatter_single_coalesced(outputs, inputs, opts)
        return self.reduce_scatter(outputs, rows, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, own: torch.Tensor, opts: Any = None
    ) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        if not (_fit(self._rows(own), output) and _are_ours([output], opts)):
            return self._others.reduce_scatter_single(output, own, opts)
        return self.reduce_scatter_single_coalesced([output], [own], opts)

    def barrier(self, opts: Any = None) -> Any:
        """Waits at once for all that this rank has issued; Gloo's would wait for it later."""
        for channel in list(self._channels.values()):
            for work in list(channel.issued):
                if not work.is_completed():
                    work.wait()
        return self._others.barrier(opts or dist.BarrierOptions())

    # Other names of the same, as older versions of torch have them.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def _rows(self, tensor: torch.Tensor) -> Tensors:
        """Returns the parts of the ranks; nothing where it cannot be divided."""
        if not tensor.is_contiguous() or tensor.numel() % self.size():
            return []
        return list(tensor.detach().view(self.size(), -1).unbind())

    def abort(self) -> None:
        """Ends it at once: what is under way raises."""
        for channel in list(self._channels.values()):
            channel.end(RuntimeError("this process group was aborted"))
        self.close()

    def close(self) -> None:
        """Ends it; what other ranks still await of this one arrives."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed, channels = True, list(self._channels.values())
        for channel in channels:
            channel.close()

    def shutdown(self) -> None:
        """`destroy_process_group` calls it."""
        self.close()
        super().shutdown()


def _are_ours(tensors: Sequence[torch.Tensor], reduced: Any = None) -> bool:
    """Says whether the transport can carry them all, and reduce them as these options say."""
    return all(
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and (reduced is None or Reduction(reduced.reduceOp.op, tensor.dtype).is_ours)
        for tensor in tensors
    )


def _fit(row: Sequence[torch.Tensor], own: torch.Tensor) -> bool:
    """Says whether they are ours and alike; else Gloo says what is wrong, if anything is."""
    alike = (tensor.numel() == own.numel() and tensor.dtype == own.dtype for tensor in row)
    return bool(row) and _are_ours([*row, own]) and all(alike)


def _create(options: Any, settings: Settings | None) -> BoundedProcessGroup:
    """Torch calls it with its `DistributedBackendOptions` and the `pg_options`."""
    rank, size = options.group_rank, options.group_size
    store, timeout, name = options.store, options.timeout, options.group_id
    return BoundedProcessGroup(store, rank, size, timeout, settings, name)


def register() -> None:
    """Makes the backend known to torch; RuntimeError where another one has its name."""
    if BACKEND.upper() in dist.Backend._plugins:
        raise RuntimeError(f"a c10d backend {BACKEND!r} is registered already, by another package")
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
