"""What a step has cost and lost is written in the format of the lab's own logs, and only there."""

import json
import os
from typing import Any

import pytest

from testbed.ddp import report
from tests.ddp.ranks import last, launch, lossy, model, train, values, wrapped

STEPS = 5


def logged(rank, folder, told):
    """The reports of all steps of a training."""
    os.environ.update({report.FOLDER: folder, report.NAME: f"host-{rank}"})
    os.environ["BOUNDED_LOSS"] = json.dumps(told)
    ddp = wrapped(model())
    state = lossy(rank)
    ddp.register_comm_hook(state, state.hook)
    reports: list[Any] = []
    train(ddp, STEPS, rank, after=lambda _: reports.append(last(state)))
    return reports


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def waits_of(rank, reports, folder):
    """A rank's log of its waits, which are those of its reports."""
    waits = lines(folder / f"training-host-{rank}.jsonl")
    said = [(wait["round"], wait["wait_s"]) for wait in waits]
    assert said == [(each.step, each.wait_s) for each in reports]
    return waits


@pytest.mark.parametrize("collective", ["sharded", "server"])
def test_each_rank_writes_what_it_has_seen(tmp_path, collective):
    of_ranks = values(launch(logged, 3, folder=str(tmp_path), told={"collective": collective}))
    gathered: dict[tuple[int, str, str], list[tuple[int, int]]] = {}
    for rank, reports in enumerate(of_ranks):
        waits = waits_of(rank, reports, tmp_path)
        assert {wait["rank"] for wait in waits} == {rank}
        assert reports[0].slowest is None  # the process group does not say
        for wait, bucket in zip(waits, [each.slowest for each in reports], strict=True):
            slowest = [wait.get(f"slowest_{key}") for key in ("rank", "bucket", "s")]
            if bucket is None:
                assert slowest == [None] * 3
            else:
                assert slowest == [bucket.slowest, bucket.index, bucket.slowest_s]
        transfers = lines(tmp_path / f"transfers-host-{rank}.jsonl")
        assert {transfer["host"] for transfer in transfers} == {f"host-{rank}"}
        # Before, the process group averages.
        assert {transfer["round"] for transfer in transfers} == set(range(2, STEPS))
        for step in range(2, STEPS):
            of_step = [transfer for transfer in transfers if transfer["round"] == step]
            assert sum(each["bytes_sent"] for each in of_step) == reports[step].bytes_sent
            assert sum(each["bytes_received"] for each in of_step) == reports[step].bytes_received
            passes = max(bucket.passes or 0 for bucket in reports[step].buckets)
            assert max(each["passes"] or 0 for each in of_step) == passes
            peers = 2 if collective == "sharded" or rank == 0 else 1
            assert len(of_step) == peers * (4 if collective == "sharded" else 2)
        for transfer in transfers:
            if transfer["leg"] == "broadcast":
                assert transfer["chunks_received"] in (transfer["chunk_count"], None)
                continue
            ends = {"sender": (f"rank-{rank}", transfer["peer"])}
            ends["receiver"] = ends["sender"][::-1]
            both = gathered.setdefault((transfer["round"], *ends[transfer["role"]]), [])
            both.append((transfer["chunk_count"], transfer["chunks_received"]))
    assert any(each.slowest is not None for reports in of_ranks for each in reports[2:])
    # The sender and the receiver say the same of each gradient, some of which is lost.
    assert all(len(both) == 2 and both[0] == both[1] for both in gathered.values())
    assert any(received < count for (count, received), _ in gathered.values())


def test_of_pytorchs_hooks_the_wait_is_written(tmp_path):
    of_ranks = values(launch(logged, 2, folder=str(tmp_path), told={"hook": "gloo"}))
    elements = sum(parameter.numel() for parameter in model().parameters())
    for rank, reports in enumerate(of_ranks):
        waits_of(rank, reports, tmp_path)
        for each in reports:
            assert each.wait_s > 0
            assert each.carried_by == "process group"
            assert sum(bucket.elements for bucket in each.buckets) == elements
            assert all(4 * bucket.elements == bucket.gradient_bytes for bucket in each.buckets)
        assert (tmp_path / f"transfers-host-{rank}.jsonl").read_text() == ""


def test_elsewhere_nothing_is_written_and_a_second_exchange_neither(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_opened", False)
    monkeypatch.delenv(report.FOLDER, raising=False)

    def is_logged():
        log, _ = report.open_logs(0, int)
        return bool(log._files)

    assert not is_logged()
    monkeypatch.setattr(report, "_opened", False)
    monkeypatch.setenv(report.FOLDER, str(tmp_path))
    assert not is_logged()
    monkeypatch.setattr(report, "_opened", False)
    monkeypatch.setenv(report.NAME, "server")
    assert is_logged()
    assert not is_logged()
