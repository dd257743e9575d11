"""Where ranks find each other: the process group's store, which torchrun has made already.

The store is trusted: who can write to it can pose as any rank. Nothing in it is code: all values
are JSON.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from testbed.shared.input_error import InputError
from testbed.transport import PeerLost

# The peer that is lost where no rank can be named.
STORE = "the process group's store"
_FAILURE = "failure"
# Between two looks for a rank that has not come.
_SHORTEST_S, _LONGEST_S = 0.001, 0.1
_MOMENT_S = 0.5
# A store whose machine has fallen silent never answers, and no timeout of its own counts in most
# calls. It may be that of the rank that is lost: then this rank's own reason has to do.
_SILENT_S = 30.0
_TELL_S = 2.0
T = TypeVar("T")
# Words of the transport for a connection that the other side has ended.
_ENDED = ("closed", "reset", "gave up")
# How many each group has had in this process. All ranks make theirs in the same order.
_met: Counter[str] = Counter()


@dataclass(frozen=True)
class Return:
    """What a rank that was lost says when it comes back, in a process group of its own.

    Attributes:
        rank: which it was.
        store: the others', as `TCPStore(MASTER_ADDR, MASTER_PORT, is_master=False)`.
    """

    rank: int
    store: dist.Store


class Rendezvous:
    """The part of the store of one exchange."""

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        timeout_s: float | None,
        returns: Return | None = None,
    ) -> None:
        """`timeout_s` is how long others are waited for; None: as long as the group would."""
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
        prefix = f"bounded-loss/{name}/{_met[name]}"
        store = dist.distributed_c10d._get_process_group_store(self.group)
        self._store = dist.PrefixStore(prefix, store)
        self._group_is_its_own = returns is not None
        if returns is not None:
            self.rank, store = returns.rank, returns.store
        # A process outside the group knows no more than the store itself.
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        self._outside = dist.PrefixStore(f"{prefix}/return", store)

    def number_of(self, rank: int) -> int:
        """What a rank of the group is called in the default one."""
        if self._group_is_its_own:
            return rank
        assert self.group is not None
        return dist.get_global_rank(self.group, rank)

    def leave(self, key: str, value: Any) -> None:
        """Says something to ranks that come back, or to the others as one of these."""
        leave = partial(self._outside.set, key, json.dumps(value))
        self._asked(leave, min(_SILENT_S, self.timeout_s))

    def found(self, key: str) -> Any:
        """What somebody has left there; None if nobody has yet."""

        def look() -> Any:
            there = self._outside.check([key])
            return json.loads(self._outside.get(key)) if there else None

        return self._asked(look, min(_SILENT_S, self.timeout_s))

    def share(self, stage: str, facts: Mapping[str, Any], problem: str = "") -> list[Any]:
        """All ranks' facts; InputError where one has a problem, PeerLost for one that is gone."""
        mine = json.dumps({"facts": facts, "problem": problem})
        silent_s = min(_SILENT_S, self.timeout_s)
        self._asked(partial(self._store.set, f"{stage}/{self.rank}", mine), silent_s)
        until_s = time.monotonic() + self.timeout_s
        told = []
        for rank in range(self.world):
            pause_s = _SHORTEST_S
            while (each := self._asked(partial(self._told, f"{stage}/{rank}"), silent_s)) is None:
                if time.monotonic() >= until_s:
                    reason = f"did not come to {stage} within {self.timeout_s:g} s"
                    raise PeerLost(f"rank {rank}", reason)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_S)
            told.append(each)
        for rank, each in enumerate(told):
            if each["problem"]:
                raise InputError(f"rank {rank}: {each['problem']}")
        return [each["facts"] for each in told]

    def first_failure(self, rank: int, reason: str) -> tuple[int, str]:
        """Tells all why the exchange has ended; returns what was told first, within seconds."""
        try:
            return self._asked(partial(self._first, rank, reason), _TELL_S)
        except Exception:  # the store may have been the one that died
            return rank, reason

    def _first(self, rank: int, reason: str) -> tuple[int, str]:
        # The one who finds a peer dead ends its connections with all others, who would otherwise
        # take it for the dead one: whoever only sees a connection end waits for what is known.
        ended = rank != self.rank and any(word in reason for word in _ENDED)
        until_s = time.monotonic() + (_MOMENT_S if ended else 0)
        while not self._store.check([_FAILURE]) and time.monotonic() < until_s:
            time.sleep(_LONGEST_S)
        mine = json.dumps({"rank": rank, "reason": reason})
        told = json.loads(self._store.compare_set(_FAILURE, "", mine))
        return int(told["rank"]), str(told["reason"])

    def _told(self, key: str) -> Any:
        """What stands there; None if nothing does yet. PeerLost once a rank has failed."""
        if self._store.check([key]):
            return json.loads(self._store.get(key))
        if self._store.check([_FAILURE]):
            told = json.loads(self._store.get(_FAILURE))
            raise PeerLost(f"rank {told['rank']}", str(told["reason"]))
        return None

    def _asked(self, ask: Callable[[], T], within_s: float) -> T:
        """Asks the store in a thread that may hang for ever; PeerLost when no answer comes."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=run, name="bounded-loss-store", daemon=True).start()
        try:
            return answer.result(within_s)
        except TimeoutError:
            raise PeerLost(STORE, f"it has not answered for {within_s:g} s") from None
        except RuntimeError as error:
            raise PeerLost(STORE, str(error).partition("\n")[0]) from None


def _timeout_of(group: dist.ProcessGroup) -> float:
    """What was given to init_process_group, or is its default."""
    for device in ("cpu", "cuda"):
        try:
            options = group._get_backend(torch.device(device)).options
            return float(options._timeout.total_seconds())
        except (RuntimeError, AttributeError):
            continue
    return dist.default_pg_timeout.total_seconds()
