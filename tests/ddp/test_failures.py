"""All ranks name each failure in time, and each difference between them."""

import os
import signal
import threading
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist

from testbed.ddp import BoundedLoss, InputError, PeerLost, meeting
from testbed.ddp.meeting import Rendezvous
from testbed.ddp.settings import Settings
from tests.ddp import ranks
from tests.ddp.ranks import drawn, exchange, last, launch, store_apart, values

SIZES = (50_000, 20_000)
PARAMETERS = [torch.zeros(size) for size in SIZES]


def heard(state, rank, step=0):
    began_s = time.monotonic()
    try:
        exchange(state, drawn(SIZES, rank, step), PARAMETERS)
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began_s
    return None


def ended(rank, culprit, how, at_step, timeout_s, collective="sharded", store_pid=None):
    """Trains until `culprit` ends, after the store if that is to end so; what the others heard."""
    state = BoundedLoss(collective=collective, timeout_s=timeout_s)
    for step in range(1000):
        if rank == culprit and step == at_step:
            if store_pid is not None:
                os.kill(store_pid, how)
                how = signal.SIGKILL
            os.kill(os.getpid(), how)
        if error := heard(state, rank, step):
            return error
        time.sleep(0.01)
    return None


@pytest.mark.parametrize(
    ("culprit", "collective", "how", "at_step", "timeout_s", "within_s"),
    [
        (2, "server", signal.SIGKILL, 5, 20, 18),
        (0, "server", signal.SIGKILL, 5, 20, 18),
        (2, "server", signal.SIGSTOP, 5, 5, 13),
        pytest.param(2, "sharded", signal.SIGSTOP, 5, 5, 13, marks=pytest.mark.long),
        (2, "server", signal.SIGKILL, 0, 3, 15),  # before the buckets are known
    ],
)
def test_a_rank_that_dies_or_stands_still_ends_all_with_its_name(
    culprit, collective, how, at_step, timeout_s, within_s
):
    more = {"collective": collective, "how": how, "at_step": at_step, "timeout_s": timeout_s}
    outcomes = values(launch(ended, 3, killed=[culprit], culprit=culprit, **more))
    assert len(outcomes) == 2
    for kind, text, took_s in outcomes:
        assert (kind, text.partition(":")[0]) == ("PeerLost", f"lost rank {culprit}")
        assert took_s < within_s
        if not at_step:
            assert text.endswith(": did not come to step 0, bucket 0 within 3 s")


def alone(rank):
    """Only rank 1 finds its state unfit, in the first step."""
    state = BoundedLoss(timeout_s=60)
    if rank == 1:
        state.load_state_dict({**state.state_dict(), "residuals": {0: torch.ones(3)}})
    return heard(state, rank)


def test_what_ends_one_rank_before_the_buckets_are_known_is_heard_by_all():
    wrong = "the state that was loaded is of another model: "
    wrong += "parameter 0 has 3 elements there and 50000 here"
    kinds = ["PeerLost", "InputError", "PeerLost"]
    for rank, (kind, text, took_s) in enumerate(values(launch(alone, 3))):
        assert kind == kinds[rank]
        assert text.startswith(wrong if rank == 1 else f"lost rank 1: {wrong}")
        assert took_s < 50


@pytest.mark.parametrize(
    ("how", "at_step", "line"),
    [
        (signal.SIGSTOP, 5, "lost rank 1: "),
        (signal.SIGSTOP, 1, "lost the process group's store: it has not answered for 5 s"),
        (signal.SIGKILL, 1, "lost the process group's store: "),
    ],
    ids=str,
)
def test_a_store_that_falls_silent_lets_nobody_wait_for_ever(how, at_step, line):
    more = {"how": how, "at_step": at_step, "timeout_s": 5}
    with store_apart() as (port, pid):
        # Rank 1 is killed, and with it the store's machine.
        outcomes = launch(ended, 3, killed=[1], culprit=1, store_port=port, store_pid=pid, **more)
    for _, text, took_s in values(outcomes):
        assert text.startswith(line)
        assert took_s < 20


def told_late(rank):
    """Rank 0 knows after a moment that rank 2 has failed; rank 1 only sees rank 0 go."""
    rendezvous = Rendezvous(Settings(timeout_s=10))
    rendezvous.share("start", dict)
    if rank == 0:
        time.sleep(0.2)
        return rendezvous.first_failure(2, "silent")
    return rendezvous.first_failure(0, "the connection was closed")


def test_who_blames_another_waits_a_moment_for_what_is_known():
    assert values(launch(told_late, 2)) == [(2, "silent")] * 2


def refused(rank, settings):
    """Makes a hook, with other settings, or another version, on rank 1."""
    if rank == 1 and (version := settings.pop("version", None)):
        vars(torch)["__version__"] = version
    BoundedLoss(**({"timeout_s": 10} | (settings if rank == 1 else {})))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"protocol": "fixed-low"},
            "protocol: name is 'fixed-low' on rank 1 and 'dblp' on rank 0;",
        ),
        ({"mode": "reliable"}, "mode is 'reliable' on rank 1 and 'bounded' on rank 0; valid: the "),
        ({"version": "1.0"}, "the version of torch is '1.0' on rank 1 and '"),
    ],
    ids=["protocol", "mode", "version"],
)
def test_ranks_that_differ_all_say_how(settings, line):
    outcomes = launch(refused, 2, settings=settings)
    for outcome in outcomes.values():
        assert outcome.kind == "InputError"
        assert outcome.error.startswith(line)
    assert len({outcome.error for outcome in outcomes.values()}) == 1


def other_buckets(rank):
    state = BoundedLoss(timeout_s=10)
    sizes = (60_000, 10_000) if rank else SIZES
    exchange(state, drawn(sizes, rank), [torch.zeros(size) for size in sizes])


def test_other_buckets_are_named_on_all_ranks():
    outcomes = launch(other_buckets, 2)
    assert {outcome.kind for outcome in outcomes.values()} == {"InputError"}
    (line,) = {outcome.error for outcome in outcomes.values()}
    assert line == (
        "step 0, bucket 0: elements is 60000 on rank 1 and 50000 on rank 0; "
        "valid: the same model and DistributedDataParallel on all ranks"
    )


def test_without_a_process_group_there_is_nobody_to_meet():
    with pytest.raises(InputError, match="there is no process group; call init_process_group"):
        BoundedLoss()


def foreign_state(rank):
    state = BoundedLoss(timeout_s=10)
    with pytest.raises(InputError, match=r"is no state of BoundedLoss; valid: what state_dict"):
        state.load_state_dict({"residuals": {}})
    own = state.state_dict()
    with pytest.raises(InputError, match=r"the state is of rank 5 of 2, and this is rank"):
        state.load_state_dict({**own, "rank": 5})


def test_a_state_of_something_else_or_another_rank_is_refused():
    values(launch(foreign_state, 2))


# What one rank alone finds, and states that could not be left.


def of_a_group(rank):
    """Ranks 0 and 2 exchange, and 2 is killed; what 0 hears."""
    group = dist.new_group([0, 2])
    if rank == 1:
        return None
    state = BoundedLoss(group=group, timeout_s=20)
    for step in range(1000):
        if rank == 2 and step == 5:
            ranks.die()
        if error := heard(state, rank, step):
            return error[1]
    return None


def in_the_process_group(rank):
    """Rank 2 is killed when the process group averages; what the others hear."""
    state = BoundedLoss(timeout_s=20)
    if rank == 2:
        dist.all_gather = lambda *arguments, **more: ranks.die()
    return heard(state, rank)[1]


@pytest.mark.parametrize("work", [of_a_group, in_the_process_group])
def test_a_killed_rank_has_its_own_number_and_name_in_a_group_and_before_the_exchange(work):
    for outcome in values(launch(work, 3, killed=[2])):
        assert outcome is None or outcome.startswith("lost rank 2: ")


def at_once(rank):
    """One rank's options are wrong, then its disk is full, then all is well."""
    lines, began_s = [], time.monotonic()
    for attempt in range(3):
        own = meeting.own_address
        if (rank, attempt) == (1, 1):

            def full(interface):
                raise OSError("no space\nleft")

            meeting.own_address = full
        try:
            rate_bps = -1.0 if (rank, attempt) == (1, 0) else None
            state = BoundedLoss(timeout_s=60, rate_bps=rate_bps)
            lines.append(heard(state, rank))
        except (InputError, PeerLost, OSError) as error:
            lines.append(str(error))
        meeting.own_address = own
    return lines, time.monotonic() - began_s


def test_what_one_rank_finds_wrong_is_known_at_once_and_another_try_meets():
    for rank, (lines, took_s) in enumerate(values(launch(at_once, 2))):
        who = "" if rank == 1 else "lost rank 1: "
        assert lines[0].startswith(f"{who}rate_bps is -1.0; valid: ")
        assert lines[1].replace("\n", " ") == f"{who}no space left"
        assert lines[2] is None
        assert took_s < 30


def opened(rank):
    state = BoundedLoss(timeout_s=60)
    assert all(heard(state, rank, step) is None for step in range(3))
    return state


def interrupted(rank):
    """Ctrl-C reaches rank 0 while it waits for rank 1, which then learns of it."""
    state = opened(rank)
    if rank == 1:
        time.sleep(2)
        return heard(state, rank, 3)[1:]
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        exchange(state, drawn(SIZES, rank, 3), PARAMETERS)
    return heard(state, rank, 3)[1:]


def test_ctrl_c_ends_all_ranks_at_once():
    for text, took_s in values(launch(interrupted, 2)):
        assert "it was ended by KeyboardInterrupt" in text
        assert took_s < 10


def closed_elsewhere(rank):
    """Rank 0 waits for rank 1, which never comes, and another thread closes the state."""
    state = opened(rank)
    if rank == 1:
        time.sleep(3)
        return None
    child = os.fork()
    if not child:  # a copy answers at once, and leaves all to its parent
        text = heard(state, rank)[1]
        state.close()
        os._exit(0 if "another process" in text else 1)
    assert os.waitpid(child, 0)[1] == 0
    threading.Timer(1, state.close).start()
    return heard(state, rank, 3)[1]


def test_close_ends_a_step_that_waits_and_a_forked_copy_takes_none():
    assert values(launch(closed_elsewhere, 2))[0] == "this BoundedLoss is closed"


def stored(rank):
    """Averages two sizes in turn; returns how many keys the store has, and later has."""
    state = BoundedLoss(timeout_s=60)
    store = dist.distributed_c10d._get_default_store()
    counts = []
    for step in range(24):
        state.average(torch.zeros(1000 + step % 2))
        counts.append(store.num_keys())
    # Another thread waits at the store meanwhile, for what never comes.
    wait = partial(store.wait, ["never"], timedelta(seconds=30))
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.2)
    BoundedLoss(timeout_s=5)
    return counts[11], counts[23], last(state).carried_by


def test_buckets_that_change_for_ever_fill_no_store_and_a_busy_store_is_not_lost():
    for first, second, carried_by in values(launch(stored, 2)):
        assert second <= first + 2
        assert carried_by == "process group"
