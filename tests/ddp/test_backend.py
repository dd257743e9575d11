"""The c10d backend `bounded`: collectives, and DDP and PyTorch's own hooks over it."""

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from testbed.ddp import BoundedLoss, InputError, PeerLost, Settings, backend, meeting
from testbed.ddp.backend import BoundedProcessGroup, register
from testbed.ddp.endpoint_thread import POLL_S
from tests.ddp.ranks import die, drawn, last, launch, model, train, values, weights, wrapped

STEPS = 6


def hooked(hook, group):
    ddp = wrapped(model(), process_group=group)
    if hook == "fp16":
        ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(group, 2, start_powerSGD_iter=2, min_compression_rate=1)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "environment":
        os.environ["BOUNDED_LOSS"] = '{"hook": "powerSGD", "from_step": 2, "backend": "bounded"}'
        ours = BoundedLoss(group=group)
        ddp.register_comm_hook(ours, ours.hook)
    return ddp


def trained(rank, hook, group):
    ddp = hooked(hook, group)
    train(ddp, STEPS, rank)
    return weights(ddp)


def hooks(rank):
    """The weights after training over the backend and over Gloo, by hook."""
    gloo = dist.new_group(backend="gloo")
    ours = {hook: trained(rank, hook, dist.group.WORLD) for hook in ("none", "fp16", "powerSGD")}
    # Over Gloo, PowerSGD's callbacks of three buckets would wait for each other.
    return ours, {hook: trained(rank, hook, gloo) for hook in ("none", "fp16")}


def test_ddp_and_the_hooks_of_pytorch_train_as_over_gloo():
    outcomes = values(launch(hooks, 3, backend="bounded"))
    for ours, gloo in outcomes:
        for hook, after in ours.items():
            assert np.array_equal(after, outcomes[0][0][hook])
        np.testing.assert_allclose(ours["none"], gloo["none"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ours["fp16"], gloo["fp16"], atol=1e-3)
        # It approximates: closer than the training moved the weights, and not the same.
        moved = np.abs(gloo["none"] - weights(model())).max()
        assert 0 < np.abs(ours["powerSGD"] - gloo["none"]).max() < moved


def chosen_outside(rank, options, script):
    """Trains a script's `BoundedLoss`, for which the environment chooses; returns the weights.

    With them, the ports at which this rank's two channels of the backend expect data.
    """
    os.environ["BOUNDED_LOSS"] = json.dumps(options)
    group = dist.new_group(backend=script)
    ddp = wrapped(model(), process_group=group)
    state = BoundedLoss(group=group, timeout_s=60)
    ddp.register_comm_hook(state, state.hook)
    train(ddp, STEPS - 1, rank)
    time.sleep(0.5 * (rank == 1))
    train(ddp, 1, rank, first=STEPS - 1)
    channels = [
        channel
        for group in dist.distributed_c10d._world.pg_map
        if isinstance(group, BoundedProcessGroup)
        for channel in group._channels.values()
    ]
    meetings = [channel._rendezvous for channel in channels]
    ports = [one._fixed_ports[1] for one in meetings if one is not None]
    assert all(channel._settings.timeout_s == 60 for channel in channels)
    assert last(state).carried_by == "process group"
    assert rank == 1 or last(state).wait_s > 0.3  # for rank 1, which came late
    state.close()
    return weights(ddp), ports


@pytest.mark.parametrize(
    ("hook", "script", "channels"),
    [("powerSGD", "gloo", 2), ("powerSGD", "bounded", 2), ("fp16_compress", "gloo", 1)],
)
def test_the_environment_puts_a_hook_of_pytorch_over_it(hook, script, channels):
    with contextlib.ExitStack() as held:
        port = meeting.hold_free_ports(held, "127.0.0.1", 20) + 6
    options: dict[str, Any] = {"hook": hook, "backend": "bounded", "protocol": "none"}
    options |= {"port": port, "timeout_s": 60}
    of_hook = {"rank": 2, "from_step": 2} if hook == "powerSGD" else {}
    outcomes = values(launch(chosen_outside, 3, options=options | of_hook, script=script))
    plain = values(launch(chosen_outside, 3, options={"hook": "gloo"}, script="gloo"))
    for rank, (ours, ports) in enumerate(outcomes):
        assert np.array_equal(ours, outcomes[0][0])
        np.testing.assert_allclose(ours, plain[0][0], atol=0.05 if of_hook else 1e-3)
        # Three ranks of a machine: two data ports each, and then those of the next channel.
        assert ports == [port + 1 + 6 * number + 2 * rank for number in range(channels)]


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8)
UNREDUCED = (torch.bool, torch.complex64)  # these go to Gloo where they are to be reduced


def all_forms(rank):
    """Returns what is wrong, of all collectives, for each type and some sizes.

    With it, the number of comparisons, and how long 30 small broadcasts take.
    """
    wrong, compared = [], 0

    def compare(name, ours, expected):
        nonlocal compared
        compared += 1
        if not torch.equal(ours, expected):
            wrong.append((name, ours.dtype, ours.shape))

    for dtype, size in itertools.product((*DTYPES, *UNREDUCED), (0, 1, 6, 30_000)):
        everyone = [(torch.arange(size) * (other + 1) % 7).to(dtype) for other in range(3)]
        shape = (2, -1) if size == 6 else (-1,)
        own = everyone[rank].view(shape)
        rows = [torch.zeros_like(own) for _ in range(3)]
        dist.all_gather(rows, own)
        compare("all_gather", torch.stack(rows), torch.stack(everyone).view(3, *own.shape))
        whole = torch.zeros(3 * size, dtype=dtype)
        dist.all_gather_single(whole, own)
        compare("all_gather_single", whole, torch.cat(everyone))
        passed = own.clone()
        dist.broadcast(passed, 1)
        compare("broadcast", passed, everyone[1].view(shape))
        total = own.clone()
        dist.all_reduce(total)
        compare("all_reduce", total, sum(everyone[1:], everyone[0]).view(shape))
        if dtype in DTYPES:
            of_this = [row + rank for row in everyone]
            part = torch.zeros(size, dtype=dtype)
            dist.reduce_scatter(part, of_this)
            compare("reduce_scatter", part, 3 * everyone[rank] + 3)
            part.zero_()
            dist.reduce_scatter_single(part, torch.cat(of_this))
            compare("reduce_scatter_single", part, 3 * everyone[rank] + 3)
            compare("the input stays", torch.stack(of_this), torch.stack(everyone) + rank)
    for op, expected in (("PRODUCT", 6.0), ("MIN", 1.0), ("MAX", 3.0), ("AVG", 2.0)):
        total = torch.full((5,), rank + 1.0)
        dist.all_reduce(total, getattr(dist.ReduceOp, op))
        compare(op, total, torch.full((5,), expected))
    everyone = [drawn([1_200_007], other)[0] for other in range(3)]  # in several pieces
    total = everyone[rank].clone()
    dist.all_reduce(total)
    compare("in the order of ranks", total, everyone[0] + everyone[1] + everyone[2])
    turned = (torch.arange(12.0) * (rank + 1)).view(3, 4).t()
    dist.all_reduce(turned)
    compare("not contiguous", turned, 6 * torch.arange(12.0).view(3, 4).t())
    with dist._coalescing_manager():
        one, two = torch.ones(2), torch.full((3,), float(rank))
        dist.all_reduce(one)
        dist.all_reduce(two)
    compare("coalesced", torch.cat([one, two]), torch.full((5,), 3.0))
    functional = funcol.all_reduce(torch.full((4,), float(rank)), "sum", [0, 1, 2])
    compare("functional", functional.clone(), torch.full((4,), 3.0))
    began_s = time.monotonic()
    for _ in range(30):
        dist.broadcast(torch.ones(5), 0)
    took_s = time.monotonic() - began_s
    return wrong, compared, took_s


def test_all_forms_types_and_operations():
    for wrong, compared, took_s in values(launch(all_forms, 3, backend="bounded")):
        assert wrong == []
        assert compared == 4 * (4 * len(DTYPES) + 3 * len(DTYPES) + 4 * len(UNREDUCED)) + 8
        assert took_s < 0.9 * 30 * POLL_S  # no broadcast waits for a poll


def odd_memory(rank):
    """Tensors made in inference mode or expanded, and one to which nothing can be written."""
    with torch.inference_mode():
        dist.all_reduce(turned := (torch.arange(6.0) * rank).view(2, 3).t())
    dist.all_reduce(expanded := torch.full((3, 1), rank + 1.0).expand(3, 4))
    with pytest.MonkeyPatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(backend, "_copy_back", lambda *_: 1 / 0)
        dist.all_reduce(torch.ones(3, 4).t())
    dist.all_reduce(after := torch.ones(2))
    after.resize_(4).resize_(2)  # as hooks of PyTorch do
    return turned.t().flatten().tolist(), expanded.unique().tolist(), after.tolist()


def test_tensors_of_odd_memory_end_no_other_collective():
    outcomes = values(launch(odd_memory, 2, backend="bounded"))
    assert outcomes == [([0.0, 1, 2, 3, 4, 5], [3.0], [2.0, 2.0])] * 2


def to_the_end(rank):
    """A barrier after an asynchronous collective, and the end of the numbers of transfers."""
    work = dist.all_reduce(torch.ones(3_000_000), async_op=True)
    dist.barrier()
    complete = work.is_completed()
    group: Any = dist.group.WORLD
    channel = group._channels[""]
    for end in channel._ends._threads.values():
        end.next_number = 2**31 - 200
    before = dist.all_reduce(ones := torch.ones(2), async_op=True)
    with pytest.raises(RuntimeError, match="no numbers for more transfers; valid: a new group"):
        for _ in range(200):
            dist.all_reduce(torch.ones(2))
    before.wait()
    dist.all_reduce(ones, group=dist.new_group())
    return complete, ones.tolist()


def test_a_barrier_waits_for_this_rank_and_the_end_of_numbers_is_one_clear_line():
    assert values(launch(to_the_end, 2, backend="bounded")) == [(True, [4.0, 4.0])] * 2


def differing(rank):
    """Collectives in which rank 0 differs; returns this rank's error of each, or "done"."""
    dtype, op = (torch.float32, "SUM") if rank else (torch.int32, "MAX")
    lines = []
    for act in (
        lambda: dist.all_reduce(torch.ones(20 if rank else 10)),
        lambda: dist.all_reduce(torch.ones(30_000, dtype=dtype)),
        lambda: dist.reduce_scatter_single(
            torch.ones(2), torch.ones(6), getattr(dist.ReduceOp, op)
        ),
        lambda: dist.broadcast(torch.ones(3, dtype=dtype), 1),
        lambda: dist.broadcast(torch.ones(3), 7),
        lambda: dist.all_reduce(torch.ones(3)),
        lambda: dist.all_reduce(torch.ones(2_000_000 if rank else 10)),
    ):
        try:
            lines.append(str(act() or "done"))
        except Exception as error:
            lines.append(str(error))
    return lines


def test_ranks_that_differ_in_a_collective_get_one_clear_line():
    terms = ["40 bytes of torch.float32, SUM", "120000 bytes of torch.int32, SUM"]
    terms += ["8 bytes of torch.float32, MAX", "12 bytes of torch.int32"]
    others = ["80 bytes of torch.float32, SUM", "120000 bytes of torch.float32, SUM"]
    others += ["8 bytes of torch.float32, SUM"]
    line = "a collective is of {} here, and another one on another rank; valid: one size, type"
    line += " and operation on all ranks"
    root = "ProcessGroupGloo::broadcast: invalid root rank: 7"
    larger = r"transfer \d+ of \d+ bytes instead of \d+ of \d+, in this session; valid: the same"
    for rank, lines in enumerate(values(launch(differing, 3, backend="bounded"))):
        expected = [*map(line.format, others), "done"] if rank else map(line.format, terms)
        assert lines[:6] == [*expected, root, "done"]
        assert re.search(larger, lines[6])


def groups_and_others(rank):
    """Subgroups, a group of one, and what Gloo does."""
    outer = dist.new_group([0, 2])
    alone = [dist.new_group([other]) for other in range(3)][rank]
    by_group = []
    if rank != 1:
        total = torch.full((3,), rank + 1.0)
        dist.all_reduce(total, group=outer)
        facts: list[Any] = [None, None]
        dist.all_gather_object(facts, {"rank": rank}, group=outer)
        by_group = [*total.tolist(), *(fact["rank"] for fact in facts)]
    mean = torch.full((2,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG, group=alone)
    dist.barrier()
    passed = torch.full((2,), float(rank))
    if rank == 0:
        dist.send(passed, 1)
    elif rank == 1:
        dist.recv(passed, 0)
    return by_group, mean.tolist(), passed.tolist()


def test_subgroups_have_sessions_of_their_own_and_gloo_does_the_rest():
    zero, one, two = values(launch(groups_and_others, 3, backend="bounded"))
    assert zero[0] == two[0] == [4.0, 4.0, 4.0, 0, 2]
    assert [zero[1], one[1], two[1]] == [[0.0] * 2, [1.0] * 2, [2.0] * 2]
    assert one[2] == [0.0, 0.0]


def late_callbacks(rank):
    """Callbacks that all_reduce; rank 1 registers them after the works have ended."""
    works = [dist.all_reduce(torch.full((9,), 10.0**at), async_op=True) for at in range(3)]
    if rank == 1:
        for work in works:
            work.wait()
    caller, callers = threading.get_ident(), []

    def callback(future):
        callers.append(threading.get_ident())
        again = dist.all_reduce(future.value()[0].clone(), async_op=True).get_future().wait()[0]
        return again + 1

    futures = [work.get_future().then(callback).then(lambda f: f.value() + 1) for work in works]
    plain = torch.ones(2)
    dist.all_reduce(plain)  # while they are under way
    results = [future.wait()[0].item() for future in futures]
    return results, plain.tolist(), caller in callers


def test_callbacks_may_all_reduce_and_stay_in_order_whenever_they_are_registered():
    expected = ([9 * 10.0**at + 2 for at in range(3)], [3.0, 3.0], False)
    assert values(launch(late_callbacks, 3, backend="bounded")) == [expected] * 3


def waiting_callbacks(rank):
    """Callbacks that wait: in a C++ chain, for others of their channel; and one that exits."""
    later: list[Any] = []
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
    one, two = (work.get_future() for work in works[:2])

    def chained(_future):
        dist.all_reduce(total := torch.ones(2))
        return total.tolist()

    joined = torch.futures.collect_all([one, two]).then(chained)
    within = one.then(lambda _: two.then(lambda _: later[0].wait() + 1).wait())
    all_here = one.then(lambda _: torch.futures.wait_all([work.get_future() for work in works]))
    exits = within.then(lambda _: sys.exit("now"))
    later.append(two.then(lambda _: 5))
    with pytest.raises(RuntimeError, match="SystemExit"):
        exits.wait()
    assert len(all_here.wait()) == 3
    return joined.wait(), within.wait(), one.then(lambda _: "goes on").wait()


def test_callbacks_may_wait_for_each_other_and_none_ends_its_thread():
    outcomes = launch(waiting_callbacks, 2, backend="bounded", within_s=30)
    assert values(outcomes) == [([2.0, 2.0], 6, "goes on")] * 2


def killed_at_work(rank, hook):
    """Rank 1 dies after some steps; returns what the others raise, and within how many seconds."""
    group = dist.group.WORLD
    ddp = hooked(hook, group)
    train(ddp, 3, rank)
    if rank == 1:
        die()
    began_s = time.monotonic()
    lines = []
    for act in (lambda: train(ddp, 1, rank), lambda: dist.all_reduce(torch.ones(3))):
        with pytest.raises(PeerLost) as caught:
            act()
        lines.append(str(caught.value))
    return lines, time.monotonic() - began_s


@pytest.mark.parametrize("hook", ["none", "fp16", "powerSGD", "environment"])
def test_a_rank_that_dies_is_named(hook):
    for lines, took_s in values(
        launch(killed_at_work, 3, backend="bounded", killed={1}, hook=hook)
    ):
        assert all("lost rank 1: the" in line and "was closed" in line for line in lines)
        assert took_s < 30


def unequal(rank):
    store = dist.PrefixStore("unequal", dist.distributed_c10d._get_default_store())
    with pytest.raises((InputError, PeerLost)) as caught:
        BoundedProcessGroup(store, rank, 2 + rank, timedelta(seconds=2))
    return str(caught.value)


def test_other_world_sizes_are_named():
    zero, one = values(launch(unequal, 2))
    assert zero == "the group's size is 3 on rank 1 and 2 on rank 0; valid: the same on all ranks"
    assert one == "lost rank 2: did not come to the process group within 2 s"


def aborted(rank):
    group = dist.distributed_c10d._get_default_group()
    dist.all_reduce(torch.ones(3))
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)  # rank 1 never comes to it
        group.abort()
        with pytest.raises(RuntimeError, match="this process group was aborted"):
            work.wait()
    dist.destroy_process_group()
    with pytest.raises(InputError, match="pg_options is 3; valid: Settings, or None"):
        dist.init_process_group(
            "bounded", store=dist.HashStore(), rank=0, world_size=1, pg_options=3
        )


def test_a_group_can_be_aborted_and_options_are_checked():
    values(launch(aborted, 2, backend="bounded"))


def made_anew(rank):
    """Two groups after each other over one store, as torchrun's; returns the sums of each."""
    store = dist.distributed_c10d._get_process_group_store(
        dist.distributed_c10d._get_default_group()
    )
    sums, late = [], []
    for _ in range(2):
        work = dist.all_reduce(ones := torch.ones(3), async_op=True)
        work.wait()
        sums.append(ones[0].item())
        dist.destroy_process_group()
        late.append(work.get_future().then(lambda future: "called").wait())
        dist.init_process_group("bounded", store=store, rank=rank, world_size=2)
    return sums, late


def test_a_group_that_is_made_anew_meets_anew_and_callbacks_come_after_a_close():
    both = [2.0, 2.0], ["called", "called"]
    assert values(launch(made_anew, 2, backend="bounded")) == [both, both]


def test_the_name_is_registered_once():
    with pytest.raises(RuntimeError, match="a c10d backend 'bounded' is registered already"):
        register()


def test_a_missing_torch_is_one_clear_line():
    code = "import sys; sys.modules['torch'] = None; import testbed.ddp"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: testbed.ddp needs torch, which is not installed; valid: pip install '.[ddp]'"
    )


def over_datagrams(rank):
    """A group whose datagrams are lost; returns how often results are wrong, and who reduced."""
    draws, asked = np.random.default_rng(rank), []

    def leave_out(count):
        asked.append(count)
        return draws.random(count) < 0.2

    # A protocol that compresses: the hook would be given less than all, and collectives are not.
    settings = Settings("compressed", rate_bps=1e9, chunk_bytes=1440, leave_out=leave_out)
    group = dist.new_group(backend="bounded", pg_options=settings)
    wrong, owners = 0, []
    numbers: dict[int, int] = {}
    for size in (10, 10, 10, 100_000):
        everyone = [drawn([size], other)[0] for other in range(3)]
        total, own = everyone[rank].clone(), everyone[rank].clone()
        dist.all_reduce(total, group=group)
        wrong += not torch.equal(total, everyone[0] + everyone[1] + everyone[2])
        ends = group._channels[""]._ends._threads
        owners += [place for place, end in ends.items() if end.next_number > numbers.get(place, 0)]
        dist.broadcast(own, 2, group=group)
        wrong += not torch.equal(own, everyone[2])
        numbers = {place: end.next_number for place, end in ends.items()}
    assert group._settings.protocol_config.control == "datagrams"  # a burst stops kernel TCP
    return wrong, sum(asked) > 0, owners


def test_what_is_lost_on_the_way_is_sent_again_and_a_small_tensor_has_one_owner():
    expected = (0, True, [1, 0, 2, 0, 1, 2])  # each in turn; a large one has all
    assert values(launch(over_datagrams, 3, backend="bounded")) == [expected] * 3


def with_fsdp(rank):
    mesh = init_device_mesh("cpu", (3,))
    net = model()
    for module in (net[0], net[2], net):
        fully_shard(module, mesh=mesh)
    train(net, 3, rank)
    flat = [parameter.full_tensor().detach().reshape(-1) for parameter in net.parameters()]
    plain = wrapped(model())
    train(plain, 3, rank)
    return torch.cat(flat).numpy(), weights(plain)


def test_fsdp_trains_as_ddp_does():
    outcomes = values(launch(with_fsdp, 3, backend="bounded"))
    for sharded, whole in outcomes:
        assert np.array_equal(sharded, outcomes[0][0])
        np.testing.assert_allclose(sharded, whole, rtol=1e-5, atol=1e-6)
