"""What one step's exchange has cost and lost, as this rank saw it, and its log.

Where the environment names a folder in LAB_EVENTS and this program in LAB_PROGRAM, each rank writes
`transfers-NAME.jsonl` and `training-NAME.jsonl` there, as the lab does.
"""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from testbed.ddp.endpoint_thread import SERVER, Part, name_of
from testbed.shared.jsonl import JsonLinesWriter
from testbed.transport import TransferReport

FOLDER, NAME = "LAB_EVENTS", "LAB_PROGRAM"
_LEGS = ("gather", "broadcast")
_SUMS = (
    *("chunk_count", "chunks_sent", "chunks_left_out", "bytes_sent", "bytes_received"),
    *("control_bytes", "retransmitted_bytes", "duplicates"),
)

_opened = False


@dataclass(frozen=True, kw_only=True)
class BucketReport:
    """One bucket of a step.

    Attributes:
        index: DDP's number of the bucket.
        elements: how many it has.
        gradient_bytes: what they occupy as DDP has them.
        loss: the share of gradients' chunks that were given up, to and from this rank.
        passes: the most sweeps that a transfer needed; None where the protocol has no passes.
        bytes_sent, bytes_received: of our transport on the wire, without control messages.
        wait_s: from the hook's call until the mean was there.
        slowest: the rank that this one waited for longest; None: for nobody.
        slowest_s: for how long: the gradient's time after the first one, or the mean's.
        late, lost: as the rank knows that averages: whose gradient was left out in part or whole,
            and who is gone.
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
        carried_by: `transport`; `process group` while the buckets are not known, and with PyTorch's
            hooks; `nothing` in the mode `local`, with a single rank, and before a rank is back.
        buckets: in the order in which they came.
        wait_s: from the last bucket until all means: what the backward pass could not hide.
    """

    step: int
    carried_by: Literal["transport", "process group", "nothing"]
    buckets: tuple[BucketReport, ...]
    wait_s: float

    @property
    def slowest(self) -> BucketReport | None:
        """The bucket in which a rank was waited for longest; None where nobody was."""
        waits = [bucket for bucket in self.buckets if bucket.slowest is not None]
        return max(waits, key=lambda each: each.slowest_s, default=None)

    @property
    def bytes_sent(self) -> int:
        return sum(bucket.bytes_sent for bucket in self.buckets)

    @property
    def bytes_received(self) -> int:
        return sum(bucket.bytes_received for bucket in self.buckets)


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


class StepLog:
    """The steps of one exchange, counted from 0."""

    def __init__(
        self, folder: Path | None, name: str, rank: int, number_of: Callable[[int], int]
    ) -> None:
        """No folder: nothing is written; `number_of` says what a rank is called outside."""
        self._host, self._rank, self._number_of = name, number_of(rank), number_of
        self._files: dict[str, JsonLinesWriter] = {}
        if folder is not None:
            for kind in ("transfers", "training"):
                self._files[kind] = JsonLinesWriter(folder / f"{kind}-{name}.jsonl")

    def write(self, said: StepReport, parts: Iterable[Part]) -> None:
        """A step is over, with these parts of all of its buckets."""
        if not self._files:
            return
        found: dict[tuple[str, str, str], list[TransferReport]] = defaultdict(list)
        for part in parts:
            for name, leg in zip(_LEGS, part.legs, strict=True):
                for report in leg.reports.values():
                    peer = name_of(part.owner) if report.peer == SERVER else report.peer
                    found[name, report.role, peer].append(report)
        for (leg_name, role, peer), reports in found.items():
            whose = {"leg": leg_name, "role": role, "host": self._host, "peer": peer}
            self._files["transfers"].write({"round": said.step, **whose, **_together(reports)})
        record = {"round": said.step, "host": self._host, "rank": self._rank, "wait_s": said.wait_s}
        if (bucket := said.slowest) is not None and bucket.slowest is not None:
            record |= {
                "slowest_rank": self._number_of(bucket.slowest),
                "slowest_bucket": bucket.index,
                "slowest_s": bucket.slowest_s,
            }
        self._files["training"].write(record)


def _together(reports: list[TransferReport]) -> dict[str, Any]:
    """One record of the transfers with a peer in a leg, which buckets have divided."""
    received = [report.chunks_received for report in reports]
    began_s = min(report.began_s for report in reports)
    ended_s = max(report.ended_s for report in reports)
    return {
        **{key: sum(getattr(report, key) for report in reports) for key in _SUMS},
        "chunks_received": sum(each or 0 for each in received) if None not in received else None,
        "passes": max(
            (report.passes for report in reports if report.passes is not None), default=None
        ),
        "began_s": began_s,
        "ended_s": ended_s,
        "duration_s": ended_s - began_s,
    }


def open_log(rank: int, number_of: Callable[[int], int]) -> StepLog:
    """For one exchange: the first one in this process is written of, and no other."""
    global _opened
    folder, name = os.environ.get(FOLDER), os.environ.get(NAME)
    if _opened or not folder or not name:
        return StepLog(None, "", rank, number_of)
    _opened = True
    return StepLog(Path(folder), name, rank, number_of)
