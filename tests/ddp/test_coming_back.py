"""A rank that was killed is started again, takes the parameters from a peer, and goes on."""

import copy
import os
import queue
import time
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from testbed.ddp import BoundedLoss, InputError, Return, meeting
from testbed.ddp.exchange import Bucket, Exchange, Opening, opening_of_others
from testbed.ddp.settings import Settings
from testbed.transport import PeerLost
from tests.ddp.ranks import _CONTEXT, _child, die, last, model, train, weights, wrapped

SETTINGS: Any = {"collective": "server", "min_ranks": 2, "timeout_s": 60}
KILLED_AT = 5
STEPS_TOGETHER = 6
END = "the last step"


def trained_by():
    ddp = wrapped(model(), broadcast_buffers=False)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)


def pretend_machines(keys):
    """With keys, as if the ranks were on several machines."""
    if keys:
        meeting.is_loopback = lambda address: False


def staying(rank, folder, port, keys):
    """Rank 2 is killed. Rank 0 lets it in again, and says where the parameters are."""
    pretend_machines(keys)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    ddp, optimiser = trained_by()
    state = BoundedLoss("dblp", **SETTINGS)
    ddp.register_comm_hook(state, state.hook)
    step, end, lost = 0, None, []
    while step != end:
        if (rank, step) == (2, KILLED_AT):
            die()
        train(ddp, 1, rank, first=step, optimiser=optimiser)
        lost.append(last(state).buckets[0].lost)
        step += 1
        if rank == 0 and state.returning and end is None:
            assert state.returning == {2}
            saved = {"model": ddp.module.state_dict(), "optimiser": optimiser.state_dict()}
            torch.save(saved, folder / "now.pt")
            store.set(END, str(step + STEPS_TOGETHER))
            state.readmit(str(folder / "now.pt"))
        if end is None and store.check([END]):
            end = int(store.get(END))
        time.sleep(0.01)
    state.close()
    return weights(ddp), lost


def coming(port, keys, results):
    """Rank 2 again, as a process of its own."""
    pretend_machines(keys)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    ddp, optimiser = trained_by()
    state = BoundedLoss("dblp", **SETTINGS, returns=Return(2, store))
    ddp.register_comm_hook(state, state.hook)
    train(ddp, 2, 2)
    alone = last(state).carried_by
    assert (state._rendezvous.identity is not None) == keys
    saved = torch.load(state.come_back(), weights_only=True)
    ddp.module.load_state_dict(saved["model"])
    optimiser.load_state_dict(saved["optimiser"])
    optimiser.zero_grad()
    end = int(store.get(END))
    train(ddp, STEPS_TOGETHER, 2, first=end - STEPS_TOGETHER, optimiser=optimiser)
    report = last(state)
    state.close()
    results.put((2, (weights(ddp), alone, report.carried_by, report.step == end - 1)))


@pytest.mark.parametrize(
    "keys", [pytest.param(False, marks=pytest.mark.long), True], ids=["no keys", "keys"]
)
def test_a_killed_rank_comes_back_and_all_end_with_the_same_bits(tmp_path, keys):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results = _CONTEXT.Queue()
    more = {"folder": tmp_path, "port": store.port, "keys": keys}
    ranks = [
        _CONTEXT.Process(target=_child, args=(staying, rank, 3, store.port, results, more))
        for rank in range(3)
    ]
    for process in ranks:
        process.start()
    try:
        ranks[2].join(60)
        assert ranks[2].exitcode not in (None, 0)
        ranks.append(_CONTEXT.Process(target=coming, args=(store.port, keys, results)))
        ranks[-1].start()
        outcomes = dict(results.get(timeout=100) for _ in range(3))
    except queue.Empty:
        raise AssertionError("not all ranks have ended") from None
    finally:
        for process in ranks:
            process.kill()
    for rank in (0, 1):
        assert not outcomes[rank].error, outcomes[rank]
    ours, lost = outcomes[0].value
    back, alone, carried_by, same_step = outcomes[2]
    assert np.all(np.isfinite(ours))
    assert np.array_equal(ours, outcomes[1].value[0])
    assert np.array_equal(ours, back)
    assert (alone, carried_by, same_step) == ("nothing", "transport", True)
    away = lost[KILLED_AT:-STEPS_TOGETHER]
    assert lost == [()] * KILLED_AT + [(2,)] * len(away) + [()] * STEPS_TOGETHER
    assert away


def test_a_rank_returns_where_the_others_can_do_without_it():
    with pytest.raises(InputError, match="returns: valid with min_ranks, as the others have it"):
        BoundedLoss("dblp", rate_bps=1e6, returns=Return(2, dist.HashStore()))


OPENING = Opening(["127.0.0.1"] * 3, 1440, 1, [], [], (Bucket(5, "torch.float32", (0,)),))


def opening_for(rank, **changes):
    settings = Settings("dblp", interface="lo", **SETTINGS)
    facts = {"terms": settings.terms(), "certificates": None, "opening": asdict(OPENING)} | changes
    rendezvous: Any = SimpleNamespace(rank=rank, timeout_s=1, find=lambda key: copy.deepcopy(facts))
    try:
        return opening_of_others(settings, rendezvous)
    except InputError as error:
        return str(error)


def test_a_rank_that_does_not_fit_is_refused_in_one_line():
    assert opening_for(2) == OPENING
    assert opening_for(3) == "returns: rank 3; valid: 1 to 2"
    other = asdict(OPENING) | {"addresses": 3 * ["127.0.0.2"]}
    assert opening_for(1, opening=other).startswith("returns: rank 1 was at 127.0.0.2 and is at")
    says = opening_for(1, terms={"mode": "local"})
    assert says.startswith(
        "rank 1 is the one that returns: mode is 'bounded' on rank 1 and 'local'"
    )


def test_another_model_does_not_fit():
    OPENING.require_same((Bucket(5, "torch.float32", (0,)),))
    with pytest.raises(InputError, match=r"that returns are \[6\], and the others' \[5\]; valid"):
        OPENING.require_same((Bucket(6, "torch.float32", (0,)),))


def exchange_of(rank, messages):
    """A rank's exchange, which is not started, and whose store is a dictionary."""
    rendezvous: Any = SimpleNamespace(
        rank=rank, world=3, timeout_s=0.2, identity=None, find=messages.get
    )
    rendezvous.leave = messages.__setitem__
    settings = Settings("dblp", rate_bps=1e6, interface="lo", **SETTINGS)
    opening = replace(OPENING, control_ports=[1, 2, 3], data_ports=[4, 5, 6])
    ignored: Any = {"on_gathered": None, "on_failure": None}
    made = Exchange(settings, rendezvous, opening, **ignored)
    # Each return has a certificate of its own.
    rendezvous.identity = SimpleNamespace(certificates={"rank-2": f"number {len(messages)}"})
    return made


def comes_in_vain(messages):
    """Rank 2 returns, and nobody lets it in; returns its request."""
    exchange = exchange_of(2, messages)
    with pytest.raises(PeerLost, match=r"rank 0: it has let nobody in for 0\.2 s"):
        exchange.rejoin(lambda: None)
    exchange.close()  # its threads were never started
    return messages["request/2"]


def test_an_admission_serves_that_return_which_asked_for_it_and_no_other():
    messages: dict[str, Any] = {}
    rank_0 = exchange_of(0, messages)
    owner: Any = rank_0._own
    trusted: list[str] = []
    owner.credentials = SimpleNamespace(trust=trusted.append)
    first = comes_in_vain(messages)
    assert rank_0.returning == set()
    assert trusted == []  # it is not lost as far as rank 0 knows
    owner.away = frozenset({2})
    assert rank_0.returning == rank_0.returning == set()
    assert trusted == [first["certificate"]]
    owner.away, owner.returning = frozenset(), frozenset({2})
    second = comes_in_vain(messages)  # before rank 0 knows that the first one is gone again
    assert rank_0.returning == {2}
    rank_0.readmit(rank_0.returning, 7, "here")
    admission = {"part": 0, "step": 7, "note": "here"}
    assert messages.pop(f"admitted/2/{first['ticket']}") == admission
    assert not any(key.startswith("admitted/") for key in messages)
    owner.away = frozenset({2})
    assert rank_0.returning == set()
    assert trusted == [first["certificate"], second["certificate"]]
    assert messages[f"trusted/2/{second['ticket']}"]


@pytest.mark.parametrize("exchange", [None, SimpleNamespace(readmit=lambda *_: None)])
def test_without_a_returning_rank_nobody_is_readmitted(exchange):
    state: Any = SimpleNamespace(_exchange=exchange, returning=frozenset(), _step=0)
    with pytest.raises(InputError, match="no rank is returning"):
        BoundedLoss.readmit(state)
