"""What a step has cost and lost is written in the format of the lab's own logs, and only there."""

import json
import os
from typing import Any

import pytest

from testbed.ddp import report
from tests.ddp.ranks import last, launch, lossy, model, train, values, wrapped

STEPS = 5


def logged(rank, folder, told):
    """What `last` said after each step: wait, bytes sent and received, passes, who was slow."""
    os.environ.update({report.FOLDER: folder, report.NAME: f"host-{rank}"})
    os.environ["BOUNDED_LOSS"] = json.dumps(told)
    ddp = wrapped(model())
    state = lossy(rank)
    ddp.register_comm_hook(state, state.hook)
    seen: list[Any] = []

    def note(_):
        found = last(state)
        if told.get("hook") is not None:
            sizes = [(each.elements, each.gradient_bytes) for each in found.buckets]
            seen.append((found.wait_s, found.step, found.carried_by, sizes))
        else:
            passes = max((each.passes or 0 for each in found.buckets), default=0)
            slowest = found.slowest
            waited = {
                "slowest_rank": None if slowest is None else slowest.slowest,
                "slowest_bucket": None if slowest is None else slowest.index,
                "slowest_s": None if slowest is None else slowest.slowest_s,
            }
            seen.append((found.wait_s, found.bytes_sent, found.bytes_received, passes, waited))

    train(ddp, STEPS, rank, after=note)
    return seen


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("collective", ["sharded", "server"])
def test_each_rank_writes_what_it_has_seen(tmp_path, collective):
    of_ranks = values(launch(logged, 3, folder=str(tmp_path), told={"collective": collective}))
    gathered: dict[tuple[int, str, str], list[tuple[int, int]]] = {}
    for rank, seen in enumerate(of_ranks):
        waits = lines(tmp_path / f"training-host-{rank}.jsonl")
        assert [(each["round"], each["wait_s"]) for each in waits] == [
            (step, each[0]) for step, each in enumerate(seen)
        ]
        assert {each["rank"] for each in waits} == {rank}
        waited = [{key: each.get(key) for key in seen[0][4]} for each in waits]
        assert waited == [each[4] for each in seen]
        assert waited[0]["slowest_rank"] is None  # the process group does not say
        transfers = lines(tmp_path / f"transfers-host-{rank}.jsonl")
        assert {each["host"] for each in transfers} == {f"host-{rank}"}
        # Before, the process group averages.
        assert {each["round"] for each in transfers} == set(range(2, STEPS))
        for step in range(2, STEPS):
            of_step = [each for each in transfers if each["round"] == step]
            _, sent, received, passes, _ = seen[step]
            assert sum(each["bytes_sent"] for each in of_step) == sent
            assert sum(each["bytes_received"] for each in of_step) == received
            assert max(each["passes"] or 0 for each in of_step) == passes
            peers = 2 if collective == "sharded" or rank == 0 else 1
            assert len(of_step) == peers * (4 if collective == "sharded" else 2)
        for each in transfers:
            if each["leg"] == "broadcast":
                assert each["chunks_received"] in (each["chunk_count"], None)
                continue
            ends = {"sender": (f"rank-{rank}", each["peer"])}
            ends["receiver"] = ends["sender"][::-1]
            both = gathered.setdefault((each["round"], *ends[each["role"]]), [])
            both.append((each["chunk_count"], each["chunks_received"]))
    slowest = [each[4]["slowest_rank"] for seen in of_ranks for each in seen[2:]]
    assert any(each is not None for each in slowest)
    # The sender and the receiver say the same of each gradient, some of which is lost.
    assert all(len(both) == 2 and both[0] == both[1] for both in gathered.values())
    assert any(received < count for (count, received), _ in gathered.values())


def test_of_pytorchs_hooks_the_wait_is_written(tmp_path):
    of_ranks = values(launch(logged, 2, folder=str(tmp_path), told={"hook": "gloo"}))
    elements = sum(each.numel() for each in model().parameters())
    for rank, seen in enumerate(of_ranks):
        waits = lines(tmp_path / f"training-host-{rank}.jsonl")
        assert [(each["round"], each["wait_s"]) for each in waits] == [
            (step, wait_s) for wait_s, step, _, _ in seen
        ]
        for wait_s, _, carried_by, sizes in seen:
            assert wait_s > 0
            assert carried_by == "process group"
            assert sum(count for count, _ in sizes) == elements
            assert all(count * 4 == size for count, size in sizes)
        assert (tmp_path / f"transfers-host-{rank}.jsonl").read_text() == ""


def test_elsewhere_nothing_is_written_and_a_second_exchange_neither(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_opened", False)
    monkeypatch.delenv(report.FOLDER, raising=False)
    assert not report.open_log(0, int)._files
    monkeypatch.setenv(report.FOLDER, str(tmp_path))
    assert not report.open_log(0, int)._files
    monkeypatch.setenv(report.NAME, "server")
    assert report.open_log(0, int)._files
    assert not report.open_log(0, int)._files
