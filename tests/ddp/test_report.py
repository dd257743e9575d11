"""Steps are logged and announced as rounds, of our hook and of PyTorch's, in the lab's formats."""

import json
import math
import os
import select
import threading
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from controllers.controller_socket import ControllerClient
from testbed.ddp import report
from testbed.ddp.settings import ENVIRONMENT, HOOKS
from testbed.workload import markers
from tests.ddp.ranks import last, launch, lossy, model, train, values, weights, wrapped

STEPS = 6


class Listener(ControllerClient):
    """Does what the lab does with announcements; `lines` is all of them, in order."""

    def __init__(self, path):
        self.lines: list[str] = []
        self.records: list[dict[str, object]] = []
        self.rounds = markers.Rounds(self, self.records.append)
        self.socket = markers.MarkerSocket(path, self.rounds)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def begin(self, number, leg):
        self.lines.append(f"begin {number} {leg}")
        return []

    def end(self, number, leg):
        self.lines.append(f"end {number} {leg}")
        return []

    def _serve(self):
        while not self._over.is_set():
            for descriptor in select.select(self.socket.descriptors(), [], [], 0.05)[0]:
                self.socket.serve(descriptor)

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self.rounds.finish()
        self.socket.close()
        assert (self.socket.refused, self.socket.first_refused) == (0, "")


def trained(rank, folder, options):
    """Trains in the folder's environment; returns the reports of all steps, and the weights."""
    report._opened = False
    os.environ.update({report.FOLDER: str(folder), report.NAME: f"host-{rank}"})
    os.environ[report.MARKERS] = str(folder / "markers")
    os.environ[ENVIRONMENT] = json.dumps(options)
    net = model()
    ddp = wrapped(net)
    # Ours alone reads the scale.
    scaler = Mock(get_scale=lambda: math.inf) if "hook" in options else None
    state = lossy(rank, scaler=scaler)
    ddp.register_comm_hook(state, state.hook)
    reports: list[Any] = []
    train(ddp, STEPS, rank, after=lambda _: reports.append(last(state)))
    return reports, weights(net)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_waits(rank, reports, folder):
    waits = read(folder / f"training-host-{rank}.jsonl")
    assert [(wait["round"], wait["wait_s"], wait["rank"]) for wait in waits] == [
        (step.step, step.wait_s, rank) for step in reports
    ]
    assert reports[0].slowest is None  # the process group does not say
    for wait, bucket in zip(waits, [step.slowest for step in reports], strict=True):
        slowest = [wait.get(f"slowest_{key}") for key in ("rank", "bucket", "s")]
        if bucket is None:
            assert slowest == [None] * 3
        else:
            assert slowest == [bucket.slowest, bucket.index, bucket.slowest_s]


@pytest.mark.parametrize("collective", ["sharded", "server"])
def test_steps_over_our_transport_are_logged_and_announced_with_legs(tmp_path, collective):
    with Listener(tmp_path / "markers") as listener:
        options = {"collective": collective}
        outcomes = values(launch(trained, 3, folder=tmp_path, options=options))
    assert all(np.array_equal(ours, outcomes[0][1]) for _, ours in outcomes)
    losses = [[bucket.loss for bucket in step.buckets] for step in outcomes[0][0]]
    assert losses[:2] == [[0.0] * len(step) for step in losses[:2]]
    assert 0 < max(map(max, losses)) <= 0.4
    gathered: dict[tuple[int, str, str], list[tuple[int, int]]] = {}
    for rank, (reports, _) in enumerate(outcomes):
        assert_waits(rank, reports, tmp_path)
        transfers = read(tmp_path / f"transfers-host-{rank}.jsonl")
        assert {transfer["host"] for transfer in transfers} == {f"host-{rank}"}
        # Before, the process group averages.
        assert {transfer["round"] for transfer in transfers} == set(range(2, STEPS))
        for step in range(2, STEPS):
            of_step = [transfer for transfer in transfers if transfer["round"] == step]
            for key in ("bytes_sent", "bytes_received"):
                assert sum(transfer[key] for transfer in of_step) == getattr(reports[step], key)
            passes = max(bucket.passes or 0 for bucket in reports[step].buckets)
            assert max(transfer["passes"] or 0 for transfer in of_step) == passes
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
    assert any(step.slowest is not None for reports, _ in outcomes for step in reports[2:])
    # The sender and the receiver say the same of each gradient, some of which is lost.
    assert all(len(both) == 2 and both[0] == both[1] for both in gathered.values())
    assert any(received < count for (count, received), _ in gathered.values())

    assert [record["round"] for record in listener.records] == list(range(STEPS))
    for record in listener.records[:2]:
        assert not {"gather_s", "broadcast_s"} & record.keys()
    for record in listener.records[2:]:
        assert 0 < record["gather_s"] + record["broadcast_s"] <= record["latency_s"]
    of_fourth = ["round", "gather", "gather", "broadcast", "broadcast", "round"]
    assert [line.split()[2] for line in listener.lines if line.split()[1] == "3"] == of_fourth


def trained_with_each(rank, folder):
    """In one process, since DDP takes long to begin: what each hook gives, and none."""
    outcomes = {}
    for hook in HOOKS:
        options = {"hook": hook, **({"from_step": 3} if hook == "powerSGD" else {})}
        outcomes[hook] = trained(rank, folder / hook, options)
    net = model()
    train(wrapped(net), STEPS, rank)
    return outcomes, weights(net)


def test_steps_of_pytorchs_hooks_are_rounds_without_legs(tmp_path):
    listeners = {}
    with ExitStack() as open_ones:
        for hook in HOOKS:
            (tmp_path / hook).mkdir()
            listeners[hook] = open_ones.enter_context(Listener(tmp_path / hook / "markers"))
        outcomes = values(launch(trained_with_each, 2, folder=tmp_path))
    lines = [(f"begin {number} round", f"end {number} round") for number in range(STEPS)]
    elements = sum(parameter.numel() for parameter in model().parameters())
    (one, plain), (two, _) = outcomes
    for hook, listener in listeners.items():
        assert listener.lines == [line for both in lines for line in both]
        assert np.array_equal(one[hook][1], two[hook][1])
        far = np.abs(one[hook][1] - plain).max()
        assert far < 1e-6 if hook == "gloo" else 1e-6 < far < 0.5
        for rank, (reports, _) in enumerate((one[hook], two[hook])):
            assert_waits(rank, reports, tmp_path / hook)
            assert (tmp_path / hook / f"transfers-host-{rank}.jsonl").read_text() == ""
            for step in reports:
                assert step.wait_s > 0
                assert step.carried_by == "process group"
                assert sum(bucket.elements for bucket in step.buckets) == elements


def test_elsewhere_nothing_is_logged_and_a_second_exchange_neither(tmp_path, monkeypatch):
    def opened(first=True):
        monkeypatch.setattr(report, "_opened", not first)
        log, announcer = report.open_logs(0, int)
        return bool(log._files), announcer._socket is not None

    for name in (report.FOLDER, report.NAME, report.MARKERS):
        monkeypatch.delenv(name, raising=False)
    assert report.MARKERS == markers.ENVIRONMENT
    assert opened() == (False, False)
    monkeypatch.setenv(report.FOLDER, str(tmp_path))
    assert opened() == (False, False)
    monkeypatch.setenv(report.NAME, "server")
    assert opened() == (True, False)
    assert opened(first=False) == (False, False)


def test_parts_that_are_gathered_early_do_not_end_the_gather(tmp_path):
    with Listener(tmp_path / "markers") as listener:
        announcer = report.Announcer(str(tmp_path / "markers"))
        announcer.begin(legs=True)
        for _ in range(2):  # the second bucket comes when the first one's leg is over
            announcer.posted(1)
            announcer.gathered()
        assert announcer._leg == "gather"
        announcer.all_posted()
        assert announcer._leg == "broadcast"
        announcer.end()
        announcer._close()
    assert listener.lines == [
        *("begin 0 round", "begin 0 gather", "end 0 gather"),
        *("begin 0 broadcast", "end 0 broadcast", "end 0 round"),
    ]


def test_a_listener_that_goes_does_not_end_the_training(tmp_path):
    with Listener(tmp_path / "markers"):
        announcer = report.Announcer(str(tmp_path / "markers"))
        announcer.begin(legs=False)
    announcer.end()
    announcer.begin(legs=False)
    announcer.end()
    assert announcer._socket is None
