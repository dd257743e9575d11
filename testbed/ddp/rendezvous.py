"""Ranks find each other through the process group's store, which torchrun has made already.

The store is trusted: who can write to it can pose as any rank. All values in it are JSON.
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
# The pauses between two polls of the store.
_SHORTEST_S, _LONGEST_S = 0.001, 0.1
_MOMENT_S = 0.5
# A store whose machine has fallen silent never answers, and no timeout of its own counts in most
# calls. It may be that of the rank that is lost: then this rank's own reason has to do.
_SILENT_S = 30.0
_REPORT_S = 2.0
T = TypeVar("T")
# Words of the transport for a connection that the other side has ended.
_ENDED = ("closed", "reset", "gave up")
# The number of exchanges of each group in this process. All ranks make theirs in the same order.
_exchanges: Counter[str] = Counter()


@dataclass(frozen=True)
class Return:
    """A rank that was lost and comes back, in a process group of its own.

    Attributes:
        rank: its number in the others' group.
        store: the others', as `TCPStore(MASTER_ADDR, MASTER_PORT, is_master=False)`.
    """

    rank: int
    store: dist.Store


class Rendezvous:
    """One exchange's part of the store."""

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        timeout_s: float | None,
        returns: Return | None = None,
    ) -> None:
        """`timeout_s` is how long to wait for others; None: as long as the group would."""
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError("there is no process group; call init_process_group before")
        group = group if group is not None else dist.group.WORLD
        assert group is not None
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InputError("this rank is not in the process group `group`")
        self.timeout_s = _timeout_of(group) if timeout_s is None else timeout_s
        name = group.group_name
        _exchanges[name] += 1
        prefix = f"bounded-loss/{name}/{_exchanges[name]}"
        store = dist.distributed_c10d._get_process_group_store(group)
        self._store = dist.PrefixStore(prefix, store)
        self._group_is_its_own = returns is not None
        if returns is not None:
            self.rank, store = returns.rank, returns.store
        # A process outside the group knows no more than the store itself.
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        self._outside = dist.PrefixStore(f"{prefix}/return", store)

    def number_of(self, rank: int) -> int:
        """Returns a rank's number in the default process group."""
        if self._group_is_its_own:
            return rank
        return dist.get_global_rank(self.group, rank)

    def leave(self, key: str, value: Any) -> None:
        """Leaves a message for ranks that come back, or for the others as one of these."""
        self._ask(partial(self._outside.set, key, json.dumps(value)))

    def find(self, key: str) -> Any:
        """Returns the message that was left there; None if there is none yet."""
        return self._ask(partial(_value, self._outside, key))

    def share(self, stage: str, facts: Mapping[str, Any], problem: str = "") -> list[Any]:
        """Returns all ranks' facts.

        InputError where a rank has a problem, PeerLost for one that is gone.
        """
        own = json.dumps({"facts": facts, "problem": problem})
        self._ask(partial(self._store.set, f"{stage}/{self.rank}", own))
        until_s = time.monotonic() + self.timeout_s
        replies = []
        for rank in range(self.world):
            pause_s = _SHORTEST_S
            while (reply := self._ask(partial(self._reply, f"{stage}/{rank}"))) is None:
                if time.monotonic() >= until_s:
                    reason = f"did not come to {stage} within {self.timeout_s:g} s"
                    raise PeerLost(f"rank {rank}", reason)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_S)
            replies.append(reply)
        for rank, reply in enumerate(replies):
            if reply["problem"]:
                raise InputError(f"rank {rank}: {reply['problem']}")
        return [reply["facts"] for reply in replies]

    def _reply(self, key: str) -> Any:
        """Returns a rank's reply; None if there is none yet. PeerLost once a rank has failed."""
        reply = _value(self._store, key)
        if reply is None and (failure := _value(self._store, _FAILURE)) is not None:
            raise PeerLost(f"rank {failure['rank']}", str(failure["reason"]))
        return reply

    def first_failure(self, rank: int, reason: str) -> tuple[int, str]:
        """Reports to all why the exchange has ended; returns the first report, within seconds."""
        try:
            return self._ask(partial(self._first, rank, reason), _REPORT_S)
        except Exception:  # the store may have been the one that died
            return rank, reason

    def _first(self, rank: int, reason: str) -> tuple[int, str]:
        # The one who finds a peer dead ends its connections with all others, who would otherwise
        # take it for the dead one: whoever only sees a connection end waits for another report.
        ended = rank != self.rank and any(word in reason for word in _ENDED)
        until_s = time.monotonic() + (_MOMENT_S if ended else 0)
        while not self._store.check([_FAILURE]) and time.monotonic() < until_s:
            time.sleep(_LONGEST_S)
        own = json.dumps({"rank": rank, "reason": reason})
        first = json.loads(self._store.compare_set(_FAILURE, "", own))
        return int(first["rank"]), str(first["reason"])

    def _ask(self, ask: Callable[[], T], within_s: float | None = None) -> T:
        """Asks the store in a thread that may hang for ever; PeerLost when no answer comes."""
        within_s = within_s or min(_SILENT_S, self.timeout_s)
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


def _value(store: dist.Store, key: str) -> Any:
    """Returns what is stored; None if nothing is yet."""
    return json.loads(store.get(key)) if store.check([key]) else None


def _timeout_of(group: dist.ProcessGroup) -> float:
    """Returns the timeout of init_process_group."""
    for device in ("cpu", "cuda"):
        try:
            options = group._get_backend(torch.device(device)).options
            return float(options._timeout.total_seconds())
        except (RuntimeError, AttributeError):
            continue
    return dist.default_pg_timeout.total_seconds()
