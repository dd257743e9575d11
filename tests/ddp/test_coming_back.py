"""A rank that was killed is started again, takes the parameters from a peer, and goes on."""

import copy
import os
import queue
import time
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from testbed.ddp import BoundedLoss, InputError, Return
from testbed.ddp.exchange import Bucket, Opening, opening_of_others
from testbed.ddp.settings import Settings
from tests.ddp.ranks import _CONTEXT, _child, die, last, model, train, weights, wrapped

SETTINGS: Any = {"collective": "server", "min_ranks": 2, "timeout_s": 60}
KILLED_AT = 5
STEPS_TOGETHER = 6
END = "the last step"


def trained_by():
    ddp = wrapped(model(), broadcast_buffers=False)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)


def staying(rank, folder, port):
    """Rank 2 is killed. Rank 0 lets it in again, and says where the parameters are."""
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


def coming(port, results):
    """Rank 2 again, as a process of its own."""
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
    saved = torch.load(state.come_back(), weights_only=True)
    ddp.module.load_state_dict(saved["model"])
    optimiser.load_state_dict(saved["optimiser"])
    optimiser.zero_grad()
    end = int(store.get(END))
    train(ddp, STEPS_TOGETHER, 2, first=end - STEPS_TOGETHER, optimiser=optimiser)
    report = last(state)
    state.close()
    results.put((2, (weights(ddp), alone, report.carried_by, report.step == end - 1)))


def test_a_killed_rank_comes_back_and_all_end_with_the_same_bits(tmp_path):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results = _CONTEXT.Queue()
    more = {"folder": tmp_path, "port": store.port}
    ranks = [
        _CONTEXT.Process(target=_child, args=(staying, rank, 3, store.port, results, more))
        for rank in range(3)
    ]
    for process in ranks:
        process.start()
    try:
        ranks[2].join(60)
        assert ranks[2].exitcode not in (None, 0)
        ranks.append(_CONTEXT.Process(target=coming, args=(store.port, results)))
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
    """The others' opening as a rank finds it, or what is wrong with these changes."""
    settings = Settings("dblp", interface="lo", **SETTINGS)
    facts = {"terms": settings.terms(), "keys": False, "opening": asdict(OPENING)} | changes
    rendezvous: Any = SimpleNamespace(rank=rank, timeout_s=1, find=lambda key: copy.deepcopy(facts))
    try:
        return opening_of_others(settings, rendezvous)
    except InputError as error:
        return str(error)


def test_a_rank_that_does_not_fit_is_refused_in_one_line():
    assert opening_for(2) == OPENING
    assert opening_for(3) == "returns: rank 3; valid: 1 to 2"
    assert opening_for(1, keys=True).startswith("returns: the others know no key of a rank that")
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
