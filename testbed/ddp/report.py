"""The report of each step, its log, and its announcement as a round, for whoever runs the script.

Each rank writes its log into the folder LAB_EVENTS under the name LAB_PROGRAM. Rank 0 announces to
the UNIX socket LAB_MARKERS, as `testbed.workload.markers` says.
"""

import atexit
import math
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from testbed.ddp.endpoint_thread import SERVER, Part, name_of
from testbed.shared.jsonl import JsonLinesWriter
from testbed.transport import TransferReport

Environment = Mapping[str, str]
FOLDER, NAME, MARKERS = "LAB_EVENTS", "LAB_PROGRAM", "LAB_MARKERS"
# A listener that does not answer for so long gets no more events; the training goes on.
_LONGEST_S = 60.0
_AT_EXIT_S = 2.0
_SUMS = (
    *("chunk_count", "chunks_sent", "chunks_left_out", "bytes_sent", "bytes_received"),
    *("control_bytes", "retransmitted_bytes", "duplicates"),
)


@dataclass(frozen=True, kw_only=True)
class BucketReport:
    """One bucket of a step.

    Attributes:
        index: DDP's number of the bucket.
        elements: how many it has.
        loss: the share of gradients' chunks that did not arrive, to and from this rank: what was
            given up, and what the protocol's `keep` does not send.
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
        return max(waits, key=lambda bucket: bucket.slowest_s, default=None)

    @property
    def bytes_sent(self) -> int:
        return sum(bucket.bytes_sent for bucket in self.buckets)

    @property
    def bytes_received(self) -> int:
        return sum(bucket.bytes_received for bucket in self.buckets)

    def __str__(self) -> str:
        """Sums it up in one line."""
        count, loss = len(self.buckets), max((bucket.loss for bucket in self.buckets), default=0.0)
        counted = (
            f"{self.bytes_sent / 1e6:.3g} MB sent, {self.bytes_received / 1e6:.3g} MB received, "
            f"at most {loss:.1%} not sent or lost"
        )
        if self.carried_by == "process group":
            counted = "bytes not counted"
        buckets = f"{count} bucket{'s' * (count != 1)} by {self.carried_by}"
        text = f"step {self.step}: {buckets}, {counted}, {1e3 * self.wait_s:.3g} ms not hidden"
        bucket = self.slowest
        if bucket is None:
            return text
        return f"{text}, {1e3 * bucket.slowest_s:.3g} ms of waiting for rank {bucket.slowest}"


def bucket_report(
    index: int, gradient: torch.Tensor, parts: list[Part], wait_s: float
) -> BucketReport:
    """Makes a bucket's report from its parts; `gradient` is flat."""
    gathers = [report for part in parts for report in part.gather.reports.values()]
    broadcasts = [report for part in parts for report in part.broadcast.reports.values()]
    both = [*gathers, *broadcasts]
    counted = [report for report in gathers if report.chunks_received is not None]
    total = sum(report.chunk_count for report in counted)
    received = sum(report.chunks_received or 0 for report in counted)
    waits_s = _waits_s(parts)
    slowest = max(waits_s, key=lambda rank: waits_s[rank], default=None)
    return BucketReport(
        index=index,
        elements=gradient.numel(),
        loss=1 - received / total if total else 0.0,
        passes=max((report.passes for report in both if report.passes is not None), default=None),
        bytes_sent=sum(report.bytes_sent for report in both),
        bytes_received=sum(report.bytes_received for report in both),
        wait_s=wait_s,
        slowest=slowest,
        slowest_s=0.0 if slowest is None else waits_s[slowest],
        late=tuple(sorted({rank for part in parts for rank in part.late})),
        lost=tuple(sorted({rank for part in parts for rank in part.lost})),
    )


def _waits_s(parts: list[Part]) -> dict[int, float]:
    """Returns for how long this rank waited for each other, where it did."""
    waits_s: dict[int, float] = {}
    owned = [part.gathered_s for part in parts if part.waited_s and part.gathered_s is not None]
    gathered_s = max(owned, default=-math.inf)
    for part in parts:
        of_part = dict(part.waited_s)
        if not part.waited_s:
            # Another one averages. It waited for whom this rank has missed itself.
            (gather,) = part.gather.reports.values()
            (broadcast,) = part.broadcast.reports.values()
            of_part[part.owner] = broadcast.ended_s - max(gather.ended_s, gathered_s)
        for rank, waited_s in of_part.items():
            if waited_s > 0:
                waits_s[rank] = max(waits_s.get(rank, 0.0), waited_s)
    return waits_s


class StepLog:
    def __init__(
        self, number_of: Callable[[int], int], rank: int, environment: Environment
    ) -> None:
        folder, self._host = environment.get(FOLDER), environment.get(NAME)
        self._number_of, self._rank = number_of, rank
        self._files: dict[str, JsonLinesWriter] = {}
        for kind in ("transfers", "training") if folder and self._host else ():
            self._files[kind] = JsonLinesWriter(Path(folder or "") / f"{kind}-{self._host}.jsonl")

    def write(self, step: StepReport, parts: Iterable[Part]) -> None:
        if not self._files:
            return
        transfers: dict[tuple[str, str, str], list[TransferReport]] = defaultdict(list)
        for part in parts:
            for leg, handles in (("gather", part.gather), ("broadcast", part.broadcast)):
                for report in handles.reports.values():
                    peer = name_of(part.owner) if report.peer == SERVER else report.peer
                    transfers[leg, report.role, peer].append(report)
        for (leg, role, peer), reports in transfers.items():
            pair = {"leg": leg, "role": role, "host": self._host, "peer": peer}
            self._files["transfers"].write({"round": step.step, **pair, **_together(reports)})
        record = {"round": step.step, "host": self._host, "rank": self._rank, "wait_s": step.wait_s}
        if (bucket := step.slowest) is not None and bucket.slowest is not None:
            record |= {
                "slowest_rank": self._number_of(bucket.slowest),
                "slowest_bucket": bucket.index,
                "slowest_s": bucket.slowest_s,
            }
        self._files["training"].write(record)


def _together(reports: list[TransferReport]) -> dict[str, Any]:
    """Makes one record of the transfers with a peer in a leg, which buckets have divided."""
    received = [report.chunks_received for report in reports]
    passes = [report.passes for report in reports if report.passes is not None]
    began_s = min(report.began_s for report in reports)
    ended_s = max(report.ended_s for report in reports)
    return {
        **{key: sum(getattr(report, key) for report in reports) for key in _SUMS},
        "chunks_received": None if None in received else sum(count or 0 for count in received),
        "passes": max(passes, default=None),
        "began_s": began_s,
        "ended_s": ended_s,
        "duration_s": ended_s - began_s,
    }


class Announcer:
    """Announces the steps of one exchange as rounds; any thread may call, `begin` alone waits."""

    def __init__(self, path: str | None) -> None:
        """`path` is the socket's; None: nobody listens. OSError where nothing is there."""
        self._lock = threading.Lock()
        self._unanswered = 0
        self._socket: socket.socket | None = None
        self._number = -1
        self._leg = ""
        self._gathering = 0  # parts
        self._all_posted = False
        if path is not None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(_LONGEST_S)
            self._socket.connect(path)
            atexit.register(self._close)

    def begin(self, *, legs: bool) -> None:
        """A step's first bucket is there; returns when what belongs to its round is in force."""
        with self._lock:
            self._number += 1
            self._leg = "gather" if legs else ""
            self._all_posted, self._gathering = False, 0
            self._send("begin", "round", self._leg)
            self._await_answers()

    def posted(self, parts: int) -> None:
        """The gather of so many more parts has begun."""
        with self._lock:
            self._gathering += parts

    def gathered(self) -> None:
        with self._lock:
            self._gathering -= 1
            self._change_leg()

    def all_posted(self) -> None:
        with self._lock:
            self._all_posted = True
            self._change_leg()

    def _change_leg(self) -> None:
        if self._leg == "gather" and self._all_posted and not self._gathering:
            self._send("end", "gather")
            self._leg = "broadcast"
            self._send("begin", "broadcast")

    def end(self) -> None:
        with self._lock:
            self._send("end", self._leg, "round")
            self._leg = ""

    def _send(self, word: str, *legs: str) -> None:
        if self._socket is None:
            return
        lines = [f"{word} {self._number} {leg}\n" for leg in legs if leg]
        try:
            self._socket.sendall("".join(lines).encode())
            self._unanswered += len(lines)
        except OSError:
            self._socket = None

    def _await_answers(self) -> None:
        """Waits for the answers to all lines. The listener itself reports what it refuses."""
        while self._socket is not None and self._unanswered:
            try:
                answers = self._socket.recv(4096)
            except OSError:
                answers = b""
            if not answers:
                self._socket = None
            self._unanswered -= answers.count(b"\n")

    def _close(self) -> None:
        """The last round counts only once its end has been answered."""
        with self._lock:
            if self._socket is not None:
                self._socket.settimeout(_AT_EXIT_S)
                self._await_answers()


_opened = False


def open_logs(rank: int, number_of: Callable[[int], int]) -> tuple[StepLog, Announcer]:
    """Opens those of the first exchange in this process; those of others do nothing."""
    global _opened
    environment: Environment = {} if _opened else os.environ
    _opened = True
    number = number_of(rank)
    path = environment.get(MARKERS) if number == 0 else None
    return StepLog(number_of, number, environment), Announcer(path)
