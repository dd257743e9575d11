"""The steps of an exchange: buckets as they come, their means, and what has failed."""

import atexit
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from testbed.ddp.endpoint_thread import Part
from testbed.ddp.exchange import Bucket, Exchange, Opening, Plan, opening_of_others
from testbed.ddp.meeting import Rendezvous
from testbed.ddp.report import BucketReport, StepReport, bucket_report, open_logs
from testbed.ddp.settings import BACKEND, Settings
from testbed.shared.input_error import InputError, shown
from testbed.training.detector import Observation
from testbed.training.filling import mean_into
from testbed.transport.wire import U32_MAX

# DDP makes its buckets anew once, after the first step. So the second step's are those that stay.
KNOWN_AFTER = 2
# So many elements of all ranks' gradients are in memory until the buckets are known.
_GATHERED = 1 << 20
# When the process group has failed, all ranks that live say so within this time.
_ROLL_CALL_S = 5.0
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


# No larger element is kept: sums of them over ranks and steps stay finite.
_LARGEST = 2.0**112
_STATE_KEYS = {"residuals", "rank", "world"}


class Residuals:
    """Error feedback: the part of a rank's gradients that no mean contains yet; always finite.

    It is kept by parameter, as if gradients were not scaled, so it outlives buckets, scales and
    processes. A step that the optimiser skips changes nothing.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._sizes: list[int] = []
        self._values: dict[int, NDArray[np.float32]] = {}

    def slots(self, sizes: Mapping[Any, int]) -> tuple[int, ...]:
        """Numbers parameters of these sizes in the order in which they are first seen."""
        for parameter, size in sizes.items():
            if parameter not in self._numbers:
                self._numbers[parameter] = len(self._sizes)
                self._sizes.append(size)
        return tuple(self._numbers[parameter] for parameter in sizes)

    def holds(self, slots: Sequence[int]) -> bool:
        return any(slot in self._values for slot in slots)

    def _divided(
        self, bucket: NDArray[np.float32], slots: Sequence[int]
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        begin = 0
        for slot in slots:
            end = begin + self._sizes[slot]
            yield slot, bucket[begin:end]
            begin = end

    def add_to(self, gradient: NDArray[np.float32], slots: Sequence[int], scale: float) -> None:
        """Adds the residuals of a bucket's parameters to its gradient, which is scaled."""
        for slot, part in self._divided(gradient, slots):
            residual = self._values.get(slot)
            if residual is None:
                continue
            if len(residual) != len(part):
                raise InputError(
                    f"the state that was loaded is of another model: parameter {slot} has "
                    f"{len(residual)} elements there and {len(part)} here"
                )
            part += residual if scale == 1 else _scale(residual.copy(), scale)

    def replace(self, lost: NDArray[np.float32], slots: Sequence[int], scale: float) -> None:
        """Takes over the array `lost`: the bucket's mean contains what was kept before."""
        for slot, part in self._divided(lost, slots):
            before = self._values.pop(slot, None)
            if not part.any():
                continue
            large = None
            if not (part.max() <= _LARGEST and part.min() >= -_LARGEST):  # without temporaries
                large = ~(np.abs(part) <= _LARGEST)  # or not a number
                part[large] = 0
            _scale(part, 1 / scale)
            if large is not None and before is not None:
                part[large] = before[large]
            self._values[slot] = part

    def state(self, rank: int, world: int) -> dict[str, Any]:
        """Returns it for a checkpoint, which shares this one's memory."""
        residuals = {slot: torch.from_numpy(value) for slot, value in self._values.items()}
        return {"residuals": residuals, "rank": rank, "world": world}

    def load(self, state: Mapping[str, Any], rank: int, world: int) -> None:
        """Takes the result of `state`, in place of all that is kept."""
        if not isinstance(state, Mapping) or set(state) - {"phase", "step"} != _STATE_KEYS:
            raise InputError(
                f"{shown(state)} is no state of BoundedLoss; valid: what state_dict() returned"
            )
        if (state["rank"], state["world"]) != (rank, world):
            raise InputError(
                f"the state is of rank {state['rank']} of {state['world']}, and this is rank "
                f"{rank} of {world}; valid: each rank's own"
            )
        self._values = {
            int(slot): value.detach().to("cpu", torch.float32).numpy().copy().reshape(-1)
            for slot, value in state["residuals"].items()
        }


def _scale(values: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    """Multiplies and clips the values, in their place."""
    with np.errstate(over="ignore"):
        values *= np.float32(min(factor, _LARGEST))
    return np.clip(values, -_LARGEST, _LARGEST, out=values)


@dataclass
class _Bucket:
    """One bucket on its way; `report` is there once it has its mean."""

    index: int
    plan: Bucket
    gradient: torch.Tensor
    future: "torch.futures.Future[torch.Tensor]"
    began_s: float
    parts_left: int = 0
    done: list[Part] = field(default_factory=list)
    report: BucketReport | None = None
    lost: NDArray[np.float32] | None = None  # what its mean lacks of this rank's
    norm: float = 0.0  # of the mean, for a detector


class Steps(Settings):
    """Averages the buckets of one step after the other; see `BoundedLoss` for what is public."""

    def __post_init__(self) -> None:
        """Meets the other ranks; raises as `BoundedLoss` does."""
        try:
            super().__post_init__()
        except InputError as error:
            with suppress(Exception):  # the others need not wait for this rank
                Rendezvous(self).first_error(error)
            raise
        self._process = os.getpid()
        self._failing = False
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._exchange: Exchange | None = None
        self._rendezvous = Rendezvous(self)
        with self._guarded():
            self._prepare()

    def _prepare(self) -> None:
        self.critical = self.detector is None or bool(self.detector.critical)
        self.last: StepReport | None = None
        self.scale = 1.0
        self._opening: Opening | None = None  # the others', for a rank that returns
        if self.returns is not None:
            self._opening = opening_of_others(self, self._rendezvous)
        if (self.min_ranks or 0) > self._rendezvous.world:
            valid = f"up to {self._rendezvous.world}, the number of ranks"
            raise InputError(f"min_ranks is {self.min_ranks}; valid: {valid}")
        rendezvous = self._rendezvous
        self._log, self._announcer = open_logs(rendezvous.rank, rendezvous.number_of)
        make = self.make_torch_hook
        self._torch_hook = None if make is None else make(self._group_of_torch_hook())
        self._residuals = Residuals()
        self._pinned: dict[int, torch.Tensor] = {}
        self._opened = 0
        self._step = 0
        self._steps_before = 0  # of the training that a checkpoint resumes
        self._buckets: list[_Bucket] = []
        self._plan: Plan = ()  # of the step before
        self._known = 0  # steps since the buckets have been the same, or may be
        self._waited_s = 0.0  # in this step, with nothing left to compute
        if not self._idle:
            self._rendezvous.meet()
            atexit.register(self.close)

    def _group_of_torch_hook(self) -> dist.ProcessGroup:
        """Returns the script's, or one of the same ranks that the transport carries."""
        group = self._rendezvous.group
        if not self.over_backend or dist.get_backend(group) == BACKEND:
            return group
        options = {option.name: getattr(self, option.name) for option in fields(Settings)}
        settings = Settings(**{**options, "timeout_s": self._rendezvous.timeout_s})
        ranks = dist.get_process_group_ranks(group)
        made = dist.new_group(
            ranks, backend=BACKEND, pg_options=settings, use_local_synchronization=True
        )
        assert isinstance(made, dist.ProcessGroup)
        return made

    @property
    def _idle(self) -> bool:
        alone = self.mode == "local" or self._rendezvous.world == 1
        return alone or self._torch_hook is not None or self._is_away

    @property
    def _is_away(self) -> bool:
        """This rank returns, and has not joined the others yet."""
        return self._opening is not None and self._exchange is None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """An error here ends the exchange on all ranks, and the first one is raised."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):  # such as Ctrl-C
                self._fail(RuntimeError(f"it was ended by {type(error).__name__}"))
                raise
            self._fail(error)
            with self._changed:  # another thread may have been first
                self._changed.wait_for(lambda: self._failure is not None)
            assert self._failure is not None
            raise self._failure from None

    def _fail(self, error: Exception) -> None:
        """Ends the exchange on all ranks, and lets the hook raise the first error."""
        with self._changed:
            if self._failing:
                return
            self._failing = True
        first = error
        try:
            first = self._rendezvous.first_error(error)
        finally:
            with self._changed:
                self._failure = first
                self._changed.notify_all()
            if self._exchange is not None:
                self._exchange.stop()

    # A bucket comes.

    def _take(
        self,
        gradient: torch.Tensor,
        sizes: Mapping[Any, int],
        bucket: dist.GradBucket | None = None,
    ) -> _Bucket:
        """Takes a bucket with the elements of these parameters; one of DDP's if it is one."""
        if self._failure is not None:
            raise self._failure
        if os.getpid() != self._process:
            raise RuntimeError("this BoundedLoss is of another process, which was forked")
        if self._torch_hook is None:
            require_plain(gradient)
        devices: list[int | str | torch.device] = [gradient.device] if gradient.is_cuda else []
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices or None)
        slots = self._residuals.slots(sizes)
        plan = Bucket(gradient.numel(), str(gradient.dtype), slots)
        taken = _Bucket(len(self._buckets), plan, gradient, future, time.monotonic())
        self._buckets.append(taken)
        if taken.index == 0:
            self._begin_step()
        if self._torch_hook is not None:
            assert bucket is not None
            taken.future = self._torch_hook(bucket)
        elif self._idle:
            self._arrived(taken)
        else:
            values = self._in_host_memory(taken.index, gradient)
            self._residuals.add_to(values, slots, self.scale)
            if self._is_known:
                self._post(taken, values)
            else:
                self._average_completely(taken, values)
        return taken

    def _begin_step(self) -> None:
        if self._known >= KNOWN_AFTER:
            if self._is_away:
                raise InputError(
                    f"this rank returns, and has taken {KNOWN_AFTER} steps by itself; valid: "
                    "come_back() before the next"
                )
            if not self._idle and self._exchange is None:
                self._open()
        if self._torch_hook is None:
            if self.scaler is not None:
                self.scale = float(self.scaler.get_scale())
            if not 0 < self.scale < math.inf:
                raise InputError(f"scale is {self.scale}; valid: above 0 and finite")
        self._announcer.begin(legs=self._exchange is not None)

    def _open(self) -> None:
        """Opens the exchange of the buckets that have come in the step before."""
        rendezvous = self._rendezvous
        stage = f"the opening of the exchange before step {self._step}"
        self._require_equal(stage, {"the number of buckets": len(self._plan)})
        self._opened += 1
        session = (rendezvous.session + self._opened * rendezvous.world) & U32_MAX
        addresses, ports = rendezvous.addresses, rendezvous.ports(session)
        opening = Opening(addresses, rendezvous.chunk_bytes, session, *ports, self._plan)
        self._exchange = self._exchange_of(opening)
        self._exchange.start()

    def _exchange_of(self, opening: Opening) -> Exchange:
        return Exchange(
            self,
            self._rendezvous,
            opening,
            on_gathered=self._announcer.gathered,
            on_failure=self._fail,
        )

    def _require_equal(self, stage: str, facts: dict[str, Any]) -> None:
        """InputError, the same line on all ranks, where their buckets differ."""
        valid = "the same model and DistributedDataParallel on all ranks"
        shared = self._rendezvous.share(stage, lambda: facts)
        self._rendezvous.require_equal(shared, stage=f"{stage}: ", valid=valid)

    def _in_host_memory(self, index: int, gradient: torch.Tensor) -> NDArray[np.float32]:
        """Returns a bucket's gradient; a GPU's stays as it is until its mean is written there."""
        if not gradient.is_cuda:
            return gradient.detach().to("cpu", torch.float32).numpy()
        # Pinned and kept: into other memory the driver copies in small pieces, and new memory must
        # be zeroed first.
        place = self._pinned.get(index)
        if place is None or place.numel() != gradient.numel():
            place = torch.empty(gradient.numel(), dtype=torch.float32, pin_memory=True)
            self._pinned[index] = place
        # It returns when the gradient has been written by its stream, and read.
        return place.copy_(gradient.detach()).numpy()

    @property
    def _seen(self) -> Plan:
        """The buckets of this step, as far as they have come."""
        return tuple(bucket.plan for bucket in self._buckets)

    @property
    def _is_known(self) -> bool:
        """This step's buckets are, as far as they have come, those of the exchange."""
        exchange, seen = self._exchange, self._seen
        return exchange is not None and exchange.plan[: len(seen)] == seen

    # Its mean is made.

    def _post(self, taken: _Bucket, values: NDArray[np.float32]) -> None:
        """Gives a bucket's parts to the ends of the exchange."""
        assert self._exchange is not None
        spans = list(self._exchange.spans(taken.index))
        if not spans:  # it has no elements
            self._arrived(taken)
            return
        taken.parts_left = len(spans)
        self._announcer.posted(len(spans))
        tolerance = self.gather_tolerance(self.critical)
        lost = taken.lost = np.zeros(len(values), dtype=np.float32)  # costs nothing until written
        for thread, span in spans:
            done = partial(self._part_done, taken, values)
            thread.post(values[span], lost[span], tolerance, done)

    def _part_done(self, taken: _Bucket, values: NDArray[np.float32], part: Part) -> None:
        """A part's mean stands in the values; called in the thread of its end."""
        with self._changed:
            taken.done.append(part)
            taken.parts_left -= 1
            if taken.parts_left:
                return
        self._write_mean(taken, values)

    def _average_completely(self, taken: _Bucket, values: NDArray[np.float32]) -> None:
        """Averages through the process group, in the order of ranks, as the exchange does."""
        stage = f"step {self._step}, bucket {taken.index}"
        self._require_equal(stage, asdict(taken.plan))
        world, timeout = self._rendezvous.world, timedelta(seconds=self._rendezvous.timeout_s)
        # In blocks: the memory for all ranks' gradients does not grow with the bucket.
        for block in torch.from_numpy(values).split(_GATHERED // world or 1):
            own = block.to(taken.gradient.device)
            everyone = [torch.empty_like(own) for _ in range(world)]
            work = dist.all_gather(everyone, own, group=self._rendezvous.group, async_op=True)
            try:
                work.wait(timeout)
            except RuntimeError:  # it names no rank
                self._rendezvous.share(f"the end of {stage}", dict, within_s=_ROLL_CALL_S)
                raise
            mean_into([gradient.cpu().numpy() for gradient in everyone], block.numpy())
        self._write_mean(taken, values)

    def _write_mean(self, taken: _Bucket, values: NDArray[np.float32]) -> None:
        """Puts a bucket's mean into its gradient's place."""
        if self.detector is not None:
            taken.norm = float(np.linalg.norm(values))
        if taken.gradient.is_cuda or taken.gradient.dtype != torch.float32:
            taken.gradient.copy_(torch.from_numpy(values))
        self._arrived(taken)

    def _arrived(self, taken: _Bucket) -> None:
        wait_s = time.monotonic() - taken.began_s
        if self._torch_hook is None:
            taken.future.set_result(taken.gradient)
        with self._changed:
            taken.report = bucket_report(taken.index, taken.gradient, taken.done, wait_s)
            self._changed.notify_all()

    def _await(self, buckets: Sequence[_Bucket], since_s: float | None = None) -> None:
        """Returns when these have their means; raises the first error instead."""
        began_s = time.monotonic() if since_s is None else since_s
        for bucket in buckets if self._torch_hook is not None else ():
            bucket.future.wait()
            self._arrived(bucket)
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or all(bucket.report for bucket in buckets)
            )
            if self._failure is not None:
                raise self._failure
        self._waited_s += time.monotonic() - began_s

    # The step ends.

    def _end_step(self, since_s: float | None = None) -> None:
        """Waits for all buckets: DDP would do so next, and could not tell why one did not come."""
        self._announcer.all_posted()
        self._await(self._buckets, since_s)
        self._announcer.end()
        if not self._idle:
            self._keep_residuals()
        before, self._plan = self._plan, self._seen
        exchanged = self._exchange is not None and self._exchange.plan == self._plan
        by_group = self._torch_hook is not None or not self._idle
        self.last = StepReport(
            step=self._step,
            carried_by="transport" if exchanged else "process group" if by_group else "nothing",
            buckets=tuple(bucket.report for bucket in self._buckets if bucket.report is not None),
            wait_s=self._waited_s,
        )
        self._log.write(self.last, [part for bucket in self._buckets for part in bucket.done])
        self._waited_s = 0.0
        if self.detector is not None and not self._idle:
            norm = math.hypot(*(bucket.norm for bucket in self._buckets)) / self.scale
            if math.isfinite(norm) or self.scaler is None:  # else the scaler skips this step
                step = self._steps_before + self._step
                # The square root of x * x is x: the norm arrives as it was.
                gradient = np.array([norm], dtype=np.float32)
                self.detector.observe(Observation(round_number=step, gradient=gradient))
                self.critical = bool(self.detector.critical)
        # Once an exchange had other buckets, these stay only if they come twice.
        self._known = 1 if self._opened and self._plan != before else self._known + 1
        if self._exchange is not None and not exchanged:
            self._exchange.close()
            self._exchange = None
        for bucket in self._buckets:
            bucket.done.clear()  # parts lead back to their bucket, and hold what was lost
        self._buckets = []
        self._step += 1

    def _keep_residuals(self) -> None:
        """Keeps what was lost. A step whose mean is not finite is skipped, and changes nothing."""
        changed = [
            bucket
            for bucket in self._buckets
            if self._residuals.holds(bucket.plan.slots) or any(part.lossy for part in bucket.done)
        ]
        if changed and all(_is_finite(bucket.future.wait()) for bucket in self._buckets):
            for bucket in changed:
                lost = bucket.lost
                if lost is None:
                    lost = np.zeros(bucket.plan.elements, dtype=np.float32)
                for part in bucket.done:
                    part.write_lost()
                self._residuals.replace(lost, bucket.plan.slots, self.scale)

    # Ranks that come back.

    @property
    def returning(self) -> frozenset[int]:
        """Ranks that were lost and are there again. Rank 0 alone sees them, between two steps."""
        return frozenset() if self._exchange is None else self._exchange.returning

    def readmit(self, note: str = "") -> None:
        """Rank 0: lets those that are `returning` take part from the next step, which waits.

        Their `come_back` returns the note: where they find the parameters as they are now.
        """
        ranks = self.returning
        if self._exchange is None or not ranks:
            raise InputError(
                "readmit: no rank is returning; valid: at rank 0, where `returning` names one"
            )
        self._exchange.readmit(ranks, self._step, note)

    def come_back(self) -> str:
        """A rank that returns: joins the others, and waits until rank 0 lets it take part.

        Before, it takes two steps by itself, so DDP chooses its buckets. It returns rank 0's note.
        """
        with self._guarded():
            if self._opening is None or not self._is_away or self._known < KNOWN_AFTER:
                raise InputError(
                    f"come_back: valid once, after {KNOWN_AFTER} steps of a rank that returns"
                )
            self._opening.require_same(self._plan)
            atexit.register(self.close)
            self._exchange = self._exchange_of(self._opening)
            self._step, note = self._exchange.rejoin(lambda: self._failure)
            return note

    def close(self) -> None:
        """Ends the exchange; what was sent before still arrives. At exit it is called by itself."""
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            return
        if self._exchange is not None:
            self._exchange.close()
        self._rendezvous.close()
        with self._changed:
            self._failing = True
            self._failure = self._failure or RuntimeError("this BoundedLoss is closed")
            self._changed.notify_all()


def require_plain(gradient: torch.Tensor) -> None:
    """InputError for a gradient that cannot be sent as a row of numbers."""
    if gradient.layout is not torch.strided:
        problem = f"is sparse ({gradient.layout})"
    elif not gradient.is_contiguous():
        problem = "is not contiguous"
    elif gradient.dtype not in _DTYPES:
        problem = f"has elements of {gradient.dtype}"
    else:
        return
    valid = "dense, contiguous float32, float64, float16 or bfloat16"
    raise InputError(f"a bucket's gradient {problem}; valid: {valid}")


def _is_finite(mean: torch.Tensor) -> bool:
    # The sum alone would do, but it may overflow. It needs no memory.
    return bool(mean.sum(dtype=torch.float32).isfinite() or mean.isfinite().all())
