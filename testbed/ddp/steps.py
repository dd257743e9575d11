"""The steps of an exchange: buckets as they come, their means, and what has failed."""

import atexit
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from testbed.ddp import coming_back, places, plan, report, rounds
from testbed.ddp.coming_back import Place, Readmissions
from testbed.ddp.endpoint_thread import Part
from testbed.ddp.exchange import Exchange
from testbed.ddp.places import Ports, find_ports
from testbed.ddp.rendezvous import STORE, Rendezvous, Return
from testbed.ddp.report import BucketReport, StepReport, bucket_report
from testbed.ddp.residuals import ParameterResiduals, Slots
from testbed.ddp.settings import Settings
from testbed.ddp.torch_hooks import Hook, TorchHook
from testbed.shared.input_error import InputError
from testbed.training.detector import Observation
from testbed.training.filling import mean_into
from testbed.transport import PeerLost
from testbed.transport.wire import U32_MAX

# DDP makes its buckets anew once, after the first step. So the second step's are those that stay.
_KNOWN_AFTER = 2
# So many elements of all ranks' gradients are in memory until the buckets are known.
_GATHERED = 1 << 20


class AnyBucket(Protocol):
    """What is asked of one of DDP's buckets."""

    def buffer(self) -> torch.Tensor: ...

    def parameters(self) -> list[torch.Tensor]: ...


class Scaler(Protocol):
    """What is asked of a `torch.amp.GradScaler`."""

    def get_scale(self) -> float: ...


@dataclass
class _Bucket:
    """One bucket on its way; `report` is there once it has arrived."""

    index: int
    gradient: torch.Tensor
    future: "torch.futures.Future[torch.Tensor]"
    began_s: float
    parts: int = 0
    done: list[Part] = field(default_factory=list)
    report: BucketReport | None = None
    norm: float = 0.0  # of the mean, where someone asks


class Steps:
    """Averages the buckets of one step after the other; see `BoundedLoss` for what is public."""

    def __init__(
        self,
        settings: Settings,
        instead: Callable[[dist.ProcessGroup], Hook] | None,
        group: dist.ProcessGroup | None,
        returns: Return | None,
        scaler: Scaler | None,
    ) -> None:
        """Meets the other ranks; raises as `BoundedLoss` does. `instead` makes another hook."""
        self._detector = settings.detector
        self.critical = self._detector is None or bool(self._detector.critical)
        self.last: StepReport | None = None
        self.scale = 1.0
        self._residual_scale = 1.0  # of the step in which the residuals of the exchange were made
        self._scaler = scaler
        self._settings = settings
        self._rendezvous = Rendezvous(group, settings.timeout_s, returns)
        self._readmissions: Readmissions | None = None  # for ranks that come back
        self._place: Place | None = None  # of one of these
        if returns is not None:
            self._place = coming_back.place_of(self._rendezvous, settings)
        if (settings.min_ranks or 0) > self._rendezvous.world:
            valid = f"up to {self._rendezvous.world}, the number of ranks"
            raise InputError(f"min_ranks is {settings.min_ranks}; valid: {valid}")
        self._rounds = rounds.announced(returns.rank if returns is not None else dist.get_rank())
        self._log = report.open_log(self._rendezvous.rank, self._rendezvous.number_of)
        self._instead: TorchHook | None = None
        if instead is not None:
            assert self._rendezvous.group is not None
            self._instead = TorchHook(instead(self._rendezvous.group), self._rounds, self._log)
        self._slots = Slots()
        self._residuals = ParameterResiduals(self._slots)
        self._pinned: dict[int, torch.Tensor] = {}
        self._exchange: Exchange | None = None
        self._opened = 0
        self._step = 0
        self._seen: list[plan.Bucket] = []
        self._buckets: list[_Bucket] = []
        self._known = 0  # steps since the buckets have been the same, or may be
        self._plan: plan.Plan = ()  # the buckets of the step before
        self._waited_s = 0.0  # in this step, with nothing left to compute
        self._failing = False
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._places: places.Places | None = None
        if not self._idle:
            self._places = places.find(settings, self._rendezvous)
            atexit.register(self.close)

    @property
    def _idle(self) -> bool:
        """Whether our transport carries nothing, ever."""
        nothing = self._settings.mode == "local" or self._rendezvous.world == 1
        away = self._place is not None and self._exchange is None
        return nothing or away or self._instead is not None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What fails here fails on all ranks, and raises what has failed first."""
        try:
            yield
        except Exception as error:
            self._fail(error)
            with self._changed:  # another thread may have been first
                self._changed.wait_for(lambda: self._failure is not None)
            assert self._failure is not None
            raise self._failure from None

    def _take(self, bucket: AnyBucket) -> _Bucket:
        if self._failure is not None:
            raise self._failure
        gradient = bucket.buffer()
        plan.require_plain(gradient)
        devices: list[int | str | torch.device] = [gradient.device] if gradient.is_cuda else []
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices or None)
        taken = _Bucket(len(self._seen), gradient, future, time.monotonic())
        slots = self._slots.of(bucket.parameters())
        self._seen.append(plan.Bucket(gradient.numel(), str(gradient.dtype), slots))
        self._buckets.append(taken)
        idle = self._idle
        if self._place is not None and self._exchange is None and self._known >= _KNOWN_AFTER:
            raise InputError(
                f"this rank returns, and has taken {_KNOWN_AFTER} steps by itself; valid: "
                "come_back() before the next"
            )
        if not idle and taken.index == 0 and self._known >= _KNOWN_AFTER and self._exchange is None:
            self._open()
        if taken.index == 0:
            self._look_at_scale()
            self._rounds.begin(legs=self._exchange is not None)
        if idle:
            self._arrived(taken)
        else:
            values = self._in_host_memory(taken.index, gradient)
            self._residuals.add_to(values, slots, self.scale)
            if self._is_known(taken.index):
                self._send(taken, values)
            else:
                self._complete_mean(taken, values)
        return taken

    def _in_host_memory(self, index: int, gradient: torch.Tensor) -> NDArray[np.float32]:
        """A bucket's gradient; a GPU's stays as it is until its mean is written there."""
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

    def _look_at_scale(self) -> None:
        """Brings what is owed to the scale of this step's gradients."""
        if self._scaler is not None:
            self.scale = float(self._scaler.get_scale())
        if not 0 < self.scale < math.inf:
            raise InputError(f"scale is {self.scale}; valid: above 0 and finite")
        if self.scale != self._residual_scale and self._exchange is not None:
            for residual in self._exchange.residuals:
                residual.scale(self.scale / self._residual_scale)
        self._residual_scale = self.scale

    def _is_known(self, index: int) -> bool:
        """Whether this step's buckets are, up to this one, those of the exchange."""
        exchange = self._exchange
        return exchange is not None and exchange.plan[: index + 1] == tuple(self._seen)

    def _open(self) -> None:
        assert self._places is not None
        facts = {"the number of buckets": len(self._plan)}
        stage = f"the opening of the exchange before step {self._step}"
        plan.require_equal(stage, self._rendezvous.share(stage, facts))
        self._opened += 1
        session = (self._places.session + self._opened * self._rendezvous.world) & U32_MAX
        ports = find_ports(self._settings, self._rendezvous, self._places, session)
        self._exchange = self._started(self._places, session, ports)
        if self._settings.min_ranks is not None and self._exchange.own is not None:
            place = Place(self._places, session, ports, self._plan)
            self._readmissions = Readmissions(
                self._rendezvous, self._settings, place, self._exchange.own
            )

    def _started(self, at: places.Places, session: int, ports: Ports) -> Exchange:
        exchange = Exchange(
            self._settings,
            self._rendezvous,
            at,
            buckets=self._plan,
            session=session,
            ports=ports,
            on_failure=lambda owner, error: self._fail(error, owner),
        )
        exchange.start()
        return exchange

    # Ranks that come back.

    @property
    def returning(self) -> frozenset[int]:
        """Ranks that were lost and are there again. Rank 0 alone sees them, between two steps."""
        return frozenset() if self._readmissions is None else self._readmissions.returning

    def readmit(self, note: str = "") -> None:
        """Rank 0: lets those that are `returning` take part from the next step, which waits.

        `note` is what their `come_back` returns, such as where they find the parameters as they are
        now. InputError where nobody is returning.
        """
        if self._readmissions is None:
            raise InputError(
                "readmit: valid at rank 0, with min_ranks, after the first three steps"
            )
        self._readmissions.readmit(self._step, note)

    def come_back(self) -> str:
        """A rank that returns: joins the others, and waits until rank 0 lets it take part.

        Before, it takes two steps by itself, in which DDP chooses its buckets. Afterwards its
        parameters must be those that rank 0 had when it said the note that this returns. InputError
        where it does not fit the others, PeerLost where rank 0 does not come.
        """
        with self._guarded():
            if self._place is None or self._exchange is not None or self._known < _KNOWN_AFTER:
                raise InputError(
                    f"come_back: valid once, after {_KNOWN_AFTER} steps of a rank that returns"
                )
            self._place.require_same(self._plan)
            self._places = self._place.at
            atexit.register(self.close)
            ticket = coming_back.ask(self._rendezvous, self._place)
            answer = partial(
                coming_back.answer, self._rendezvous, ticket, failure=lambda: self._failure
            )
            if self._places.identity is not None:
                answer("trusted")
            self._exchange = self._started(self._place.at, self._place.session, self._place.ports)
            admission = answer("admitted")
            self._exchange.go_on_at(admission["part"])
            self._step = admission["step"]
            return str(admission["note"])

    def _send(self, taken: _Bucket, values: NDArray[np.float32]) -> None:
        """Gives a bucket's parts to the ends of the exchange."""
        assert self._exchange is not None
        parts = list(self._exchange.parts(taken.index))
        if not parts:  # it has no elements
            self._arrived(taken)
            return
        taken.parts = len(parts)
        self._rounds.posted(len(parts))
        tolerance = self._settings.first_leg(self.critical)
        for thread, _, part in parts:
            done = partial(self._part_done, taken, values)
            thread.post(values[part], tolerance, done, turned=self._rounds.turned)

    def _part_done(self, taken: _Bucket, values: NDArray[np.float32], part: Part) -> None:
        """Hears of a part's mean, which stands in the values, in the thread of its end."""
        with self._changed:
            taken.done.append(part)
            taken.parts -= 1
            if taken.parts:
                return
        self._mean_of(taken, values)

    def _complete_mean(self, taken: _Bucket, values: NDArray[np.float32]) -> None:
        """Averages through the process group, in the order of ranks, as the exchange does."""
        stage = f"step {self._step}, bucket {taken.index}"
        plan.require_equal(stage, self._rendezvous.share(stage, self._seen[-1].facts()))
        world = self._rendezvous.world
        # In blocks: the memory for all ranks' gradients does not grow with the bucket.
        for block in torch.from_numpy(values).split(_GATHERED // world or 1):
            mine = block.to(taken.gradient.device)
            everyone = [torch.empty_like(mine) for _ in range(world)]
            dist.all_gather(everyone, mine, group=self._rendezvous.group)
            mean_into([each.cpu().numpy() for each in everyone], block.numpy())
        self._mean_of(taken, values)

    def _mean_of(self, taken: _Bucket, values: NDArray[np.float32]) -> None:
        """Puts a bucket's mean into its gradient's place."""
        if self._detector is not None:
            taken.norm = float(np.linalg.norm(values))
        if taken.gradient.is_cuda or taken.gradient.dtype != torch.float32:
            taken.gradient.copy_(torch.from_numpy(values))
        self._arrived(taken)

    def _arrived(self, taken: _Bucket) -> None:
        """A bucket's mean is in its gradient's place."""
        wait_s = time.monotonic() - taken.began_s
        report = bucket_report(taken.index, taken.gradient, taken.done, wait_s)
        taken.future.set_result(taken.gradient)
        with self._changed:
            taken.report = report
            self._changed.notify_all()

    def _await(self, buckets: Sequence[_Bucket]) -> None:
        """Returns when these have their means; raises what has failed instead."""
        began_s = time.monotonic()
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or all(bucket.report for bucket in buckets)
            )
            if self._failure is not None:
                raise self._failure
        self._waited_s += time.monotonic() - began_s

    def _end_step(self) -> None:
        """Waits for all buckets: DDP would do so next, and could not tell why one did not come."""
        self._rounds.all_posted()
        self._await(self._buckets)
        self._rounds.end()
        self._settle()
        self._plan = tuple(self._seen)
        exchanged = self._exchange is not None and self._exchange.plan == self._plan
        self.last = StepReport(
            step=self._step,
            carried_by=("nothing" if self._idle else "transport" if exchanged else "process group"),
            buckets=tuple(bucket.report for bucket in self._buckets if bucket.report is not None),
            wait_s=self._waited_s,
        )
        self._log.write(self.last, [part for bucket in self._buckets for part in bucket.done])
        self._waited_s = 0.0
        if self._detector is not None and not self._idle:
            norm = math.hypot(*(bucket.norm for bucket in self._buckets))
            self._detector.observe(Observation.of_norm(self._step, norm))
            self.critical = bool(self._detector.critical)
        self._known += 1
        if self._exchange is not None and not exchanged:  # the buckets have changed
            self._residuals = self._all_residuals()
            self._exchange.close()
            self._exchange = None
            self._known = 1
        self._seen, self._buckets = [], []
        self._step += 1

    def _settle(self) -> None:
        """A step whose mean is not finite is skipped, so what is owed stays as it was before."""
        kept = [self._residuals, *(self._exchange.residuals if self._exchange is not None else ())]
        if any(each.unsettled for each in kept):
            applied = all(_is_finite(bucket.future.wait()) for bucket in self._buckets)
            for each in kept:
                each.settle(applied=applied)

    def _fail(self, error: Exception, owner: int | None = None) -> None:
        """Ends the exchange on all ranks, and lets the hook raise what has failed first."""
        with self._changed:
            if self._failing:
                return
            self._failing = True
        rank, reason = self._rendezvous.rank, str(error)
        if isinstance(error, PeerLost):
            number = re.search(r"\d+", error.peer)
            rank = int(number[0]) if number is not None else owner if owner is not None else rank
            reason = error.reason
        told_rank, told_reason = rank, reason
        if self._settings.min_ranks is None:  # else one that is gone says nothing for the others
            told_rank, told_reason = self._rendezvous.first_failure(rank, reason)
        # What this rank finds wrong itself says more than that another was first to say so.
        lost = isinstance(error, PeerLost) and error.peer != STORE
        failure = PeerLost(f"rank {told_rank}", told_reason) if lost else error
        with self._changed:
            self._failure = failure
            self._changed.notify_all()
        if self._exchange is not None:
            self._exchange.stop()

    def _all_residuals(self) -> ParameterResiduals:
        owed = self._residuals.copy()
        if self._exchange is not None:
            for index, bucket in enumerate(self._exchange.plan):
                owed.keep(bucket.slots, self._exchange.residual(index), self._residual_scale)
        return owed

    def close(self) -> None:
        """Ends the exchange; what was said before still arrives. At exit it is called by itself."""
        atexit.unregister(self.close)
        if self._exchange is not None:
            self._exchange.close()
        if self._places is not None:
            self._places.close()
        self._failing = True
        self._failure = self._failure or RuntimeError("this BoundedLoss is closed")


def _is_finite(mean: torch.Tensor) -> bool:
    # The sum alone would do, but it may overflow. It needs no memory.
    return bool(mean.sum(dtype=torch.float32).isfinite() or mean.isfinite().all())
