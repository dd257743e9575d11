"""What one step's exchange has cost and lost, as this rank saw it."""

from dataclasses import dataclass
from typing import Literal

from testbed.ddp.part import Part


@dataclass(frozen=True, kw_only=True)
class BucketReport:
    """One bucket of a step.

    Attributes:
        index: DDP's number of the bucket.
        elements: how many it has.
        loss: the share of gradients' chunks that were given up, over all transfers to and from
            this rank; 0 where there was none. Means are always complete.
        passes: the most sweeps that a transfer needed; None where the protocol has no passes.
        bytes_sent, bytes_received: on the wire, control messages left out.
        wait_s: from the hook's call until the mean was there.
        late, lost: ranks whose gradient was left out in part or whole because it was late, and
            ranks that are gone; as this rank knows them that averages.
    """

    index: int
    elements: int
    loss: float = 0.0
    passes: int | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    wait_s: float = 0.0
    late: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One step.

    Attributes:
        step: from 0; steps without synchronisation (`no_sync`) are not counted.
        carried_by: `transport`; `process group` while the buckets are not known yet, or where some
            were not those that were known; `nothing` in the mode `local` and with a single rank.
        buckets: in the order in which they came.
        wait_s: from the last bucket's arrival at the hook until all means were there: what the
            backward pass could not hide.
    """

    step: int
    carried_by: Literal["transport", "process group", "nothing"]
    buckets: tuple[BucketReport, ...]
    wait_s: float

    @property
    def bytes_sent(self) -> int:
        return sum(each.bytes_sent for each in self.buckets)

    @property
    def bytes_received(self) -> int:
        return sum(each.bytes_received for each in self.buckets)


def bucket_report(index: int, elements: int, parts: list[Part], wait_s: float) -> BucketReport:
    """From what its parts say."""
    first, second = (
        [report for part in parts for report in part.legs[leg].reports.values()] for leg in (0, 1)
    )
    known = [each for each in first if each.chunks_received is not None]
    total = sum(each.chunk_count for each in known)
    arrived = sum(each.chunks_received or 0 for each in known)
    passes = [each.passes for each in (*first, *second) if each.passes is not None]
    return BucketReport(
        index=index,
        elements=elements,
        loss=1 - arrived / total if total else 0.0,
        passes=max(passes, default=None),
        bytes_sent=sum(each.bytes_sent for each in (*first, *second)),
        bytes_received=sum(each.bytes_received for each in (*first, *second)),
        wait_s=wait_s,
        late=tuple(sorted({rank for part in parts for rank in part.late})),
        lost=tuple(sorted({rank for part in parts for rank in part.lost})),
    )
