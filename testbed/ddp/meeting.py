"""Where ranks find each other: the process group's store, which torchrun has made already.

The store is trusted: who can write to it can pose as any rank. Nothing in it is code: all values
are JSON.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from testbed.shared.input_error import InputError
from testbed.transport import PeerLost

_FAILURE = "failure"
_SHORTEST_S = 0.05
_MOMENT_S = 0.5
# Words of the transport for a connection that the other side has ended.
_ENDED = ("closed", "reset", "gave up")
# How many each group has had in this process. All ranks make theirs in the same order.
_met: Counter[str] = Counter()


class Meeting:
    """The part of the store of one exchange.

    Attributes:
        rank, world: this process in the group, and the number of all.
        timeout_s: how long others are waited for.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float | None) -> None:
        """`timeout_s` is how long others are waited for; None: as long as the group would.

        InputError without a process group.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError("there is no process group; call init_process_group before")
        self.group = group if group is not None else dist.group.WORLD
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise InputError("this rank is not in the process group that was given")
        assert self.group is not None
        self.timeout_s = _timeout_of(self.group) if timeout_s is None else timeout_s
        name = self.group.group_name
        _met[name] += 1
        store = dist.distributed_c10d._get_process_group_store(self.group)
        self._store = dist.PrefixStore(f"bounded-loss/{name}/{_met[name]}", store)

    def share(self, stage: str, facts: Mapping[str, Any], problem: str = "") -> list[Any]:
        """Gives the others this rank's facts, and returns those of all, by rank.

        Raises InputError, which names the rank, where one has a problem and cannot take part, and
        PeerLost for one that does not come in time.
        """
        self._store.set(_key(stage, self.rank), json.dumps({"facts": facts, "problem": problem}))
        until_s = time.monotonic() + self.timeout_s
        told = []
        for rank in range(self.world):
            left_s = max(_SHORTEST_S, until_s - time.monotonic())
            try:
                self._store.wait([_key(stage, rank)], timedelta(seconds=left_s))
            except RuntimeError:
                raise PeerLost(
                    f"rank {rank}", f"did not come to {stage} within {self.timeout_s:g} s"
                ) from None
            told.append(json.loads(self._store.get(_key(stage, rank))))
        for rank, each in enumerate(told):
            if each["problem"]:
                raise InputError(f"rank {rank}: {each['problem']}")
        return [each["facts"] for each in told]

    def first_failure(self, rank: int, reason: str) -> tuple[int, str]:
        """Tells all why the exchange has ended; returns what was told first.

        The one who finds a peer dead ends its connections with all others, who would otherwise
        take it for the dead one. So whoever only sees a connection end waits a moment for what is
        known.
        """
        mine = json.dumps({"rank": rank, "reason": reason})
        try:
            ended = rank != self.rank and any(word in reason for word in _ENDED)
            until_s = time.monotonic() + (_MOMENT_S if ended else 0)
            while not self._store.check([_FAILURE]) and time.monotonic() < until_s:
                time.sleep(_SHORTEST_S)
            told = json.loads(self._store.compare_set(_FAILURE, "", mine))
            return int(told["rank"]), str(told["reason"])
        except Exception:  # the store may have been the one that died
            return rank, reason


def _timeout_of(group: dist.ProcessGroup) -> float:
    """What was given to init_process_group, or is its default."""
    for device in ("cpu", "cuda"):
        try:
            options = group._get_backend(torch.device(device)).options
            return float(options._timeout.total_seconds())
        except (RuntimeError, AttributeError):
            continue
    return dist.default_pg_timeout.total_seconds()


def _key(stage: str, rank: int) -> str:
    return f"{stage}/{rank}"
