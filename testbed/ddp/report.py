"""What one step's exchange has cost and lost, as this rank saw it."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from testbed.ddp.part import Part


@dataclass(frozen=True, kw_only=True)
class BucketReport:
    """One bucket of a step.

    Attributes:
        index: DDP's number of the bucket.
        elements: how many it has.
        gradient_bytes: what they occupy as DDP has them.
        loss: the share of gradients' chunks that were given up, over all transfers to and from
            this rank; 0 where there was none. Means are always complete.
        passes: the most sweeps that a transfer needed; None where the protocol has no passes.
        bytes_sent, bytes_received: of our transport on the wire, control messages left out; 0 for
            what the process group carries.
        wait_s: from the hook's call until the mean was there.
        slowest: the rank that this one waited for longest; None where it waited for nobody. Where
            it averages, that is whose gradient came last; of the others' means it counts what they
            took beyond that.
        slowest_s: for how long: the gradient's time after the first one, or the mean's.
        late, lost: ranks whose gradient was left out in part or whole because it was late, and
            ranks that are gone; as this rank knows them that averages.
    """

    index: int
    elements: int
    gradient_bytes: int
    loss: float = 0.0
    passes: int | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    wait_s: float = 0.0
    slowest: int | None = None
    slowest_s: float = 0.0
    late: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One step.

    Attributes:
        step: from 0; steps without synchronisation (`no_sync`) are not counted.
        carried_by: `transport`; `process group` while the buckets are not known yet, or where some
            were not those that were known, and with PyTorch's hooks; `nothing` in the mode `local`,
            with a single rank, and before a rank has come back.
        buckets: in the order in which they came.
        wait_s: from the last bucket's arrival at the hook until all means were there: what the
            backward pass could not hide.
    """

    step: int
    carried_by: Literal["transport", "process group", "nothing"]
    buckets: tuple[BucketReport, ...]
    wait_s: float

    @property
    def slowest(self) -> BucketReport | None:
        """The bucket in which a rank was waited for longest; None where nobody was."""
        waits = [each for each in self.buckets if each.slowest is not None]
        return max(waits, key=lambda each: each.slowest_s, default=None)

    @property
    def bytes_sent(self) -> int:
        return sum(each.bytes_sent for each in self.buckets)

    @property
    def bytes_received(self) -> int:
        return sum(each.bytes_received for each in self.buckets)


def bucket_report(
    index: int, gradient: torch.Tensor, parts: list[Part], wait_s: float
) -> BucketReport:
    """From what its parts say; `gradient` is flat."""
    first, second = (
        [report for part in parts for report in part.legs[leg].reports.values()] for leg in (0, 1)
    )
    known = [each for each in first if each.chunks_received is not None]
    total = sum(each.chunk_count for each in known)
    arrived = sum(each.chunks_received or 0 for each in known)
    waits = _waits(parts)
    slowest = max(waits, key=lambda rank: waits[rank], default=None)
    passes = [each.passes for each in (*first, *second) if each.passes is not None]
    return BucketReport(
        index=index,
        elements=gradient.numel(),
        gradient_bytes=gradient.nbytes,
        loss=1 - arrived / total if total else 0.0,
        passes=max(passes, default=None),
        bytes_sent=sum(each.bytes_sent for each in (*first, *second)),
        bytes_received=sum(each.bytes_received for each in (*first, *second)),
        wait_s=wait_s,
        slowest=slowest,
        slowest_s=0.0 if slowest is None else waits[slowest],
        late=tuple(sorted({rank for part in parts for rank in part.late})),
        lost=tuple(sorted({rank for part in parts for rank in part.lost})),
    )


def _waits(parts: list[Part]) -> dict[int, float]:
    """By rank, for how long this one waited for it, where it did."""
    waits: dict[int, float] = {}
    turned_s = max((part.turned_s for part in parts if part.waited_s), default=-math.inf)
    for part in parts:
        found = dict(part.waited_s)
        if not part.waited_s:
            # Another one averages. It waited for whom this rank has missed itself.
            (first,) = part.legs[0].reports.values()
            (mean,) = part.legs[1].reports.values()
            found[part.owner] = mean.ended_s - max(first.ended_s, turned_s)
        for rank, waited_s in found.items():
            if waited_s > 0:
                waits[rank] = max(waits.get(rank, 0.0), waited_s)
    return waits
