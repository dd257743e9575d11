"""Writes what each step has cost and lost, in the format of the lab's own logs.

Where the environment names a folder in LAB_EVENTS and this program in LAB_PROGRAM, each rank writes
`transfers-NAME.jsonl`, by step, leg and peer, and `training-NAME.jsonl`, by step.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from testbed.ddp.part import Part
from testbed.ddp.report import StepReport
from testbed.ddp.side import SERVER, name_of
from testbed.shared.jsonl import JsonLinesWriter
from testbed.transport import TransferReport

FOLDER, NAME = "LAB_EVENTS", "LAB_PROGRAM"
_LEGS = ("gather", "broadcast")
_SUMS = (
    *("chunk_count", "chunks_sent", "chunks_left_out", "bytes_sent", "bytes_received"),
    *("control_bytes", "retransmitted_bytes", "duplicates"),
)

_opened = False


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
        self._files["training"].write({**record, **self._waited_for(said)})

    def _waited_for(self, said: StepReport) -> dict[str, Any]:
        """Which rank this one waited for longest, where it waited for any."""
        bucket = said.slowest
        if bucket is None or bucket.slowest is None:
            return {}
        return {
            "slowest_rank": self._number_of(bucket.slowest),
            "slowest_bucket": bucket.index,
            "slowest_s": bucket.slowest_s,
        }


def _together(reports: list[TransferReport]) -> dict[str, Any]:
    """One record of the transfers with a peer in a leg, which buckets have divided."""
    received = [each.chunks_received for each in reports]
    began_s = min(each.began_s for each in reports)
    ended_s = max(each.ended_s for each in reports)
    return {
        **{key: sum(getattr(each, key) for each in reports) for key in _SUMS},
        "chunks_received": sum(each or 0 for each in received) if None not in received else None,
        "passes": max((each.passes for each in reports if each.passes is not None), default=None),
        "began_s": began_s,
        "ended_s": ended_s,
        "duration_s": ended_s - began_s,
    }


def opened(rank: int, number_of: Callable[[int], int]) -> StepLog:
    """For one exchange: the first one in this process is written of, and no other."""
    global _opened
    folder, name = os.environ.get(FOLDER), os.environ.get(NAME)
    if _opened or not folder or not name:
        return StepLog(None, "", rank, number_of)
    _opened = True
    return StepLog(Path(folder), name, rank, number_of)
