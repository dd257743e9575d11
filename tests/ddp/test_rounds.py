"""Steps are announced to whoever listens, of our hook and of PyTorch's, and only by rank 0."""

import contextlib
import json
import os
import select
import threading

import numpy as np

from testbed.ddp import BoundedLoss, report
from testbed.ddp.settings import HOOKS
from testbed.workload import markers
from tests.ddp.ranks import launch, model, train, values, weights, wrapped

STEPS = 6


class Listener:
    """What the lab does with announcements; `lines` is what was said, in order."""

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
            for each in select.select(self.socket.descriptors(), [], [], 0.05)[0]:
                self.socket.serve(each)

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self.rounds.finish()
        self.socket.close()


def announced(rank, path, told):
    os.environ[report.MARKERS] = path
    os.environ["BOUNDED_LOSS"] = json.dumps(told)
    net = model()
    ddp = wrapped(net)
    state = BoundedLoss("dblp")
    ddp.register_comm_hook(state, state.hook)
    train(ddp, STEPS, rank)
    return weights(net)


def test_the_variables_are_those_of_the_lab():
    assert report.MARKERS == markers.ENVIRONMENT


def test_without_a_listener_nothing_is_announced(monkeypatch):
    monkeypatch.delenv(report.MARKERS, raising=False)
    monkeypatch.setattr(report, "_opened", False)
    _, announcer = report.open_logs(0, int)
    assert announcer._socket is None


def test_steps_over_our_transport_have_legs_once_the_buckets_are_known(tmp_path):
    with Listener(tmp_path / "markers") as listener:
        path = str(tmp_path / "markers")
        one, two = values(launch(announced, 2, path=path, told={"mode": "reliable"}))
    assert np.array_equal(one, two)
    assert [record["round"] for record in listener.records] == list(range(STEPS))
    assert (listener.socket.refused, listener.socket.first_refused) == (0, "")
    for record in listener.records[:2]:
        assert not {"gather_s", "broadcast_s"} & record.keys()
    for record in listener.records[2:]:
        assert 0 < record["gather_s"] + record["broadcast_s"] <= record["latency_s"]
    of_third = ["round", "gather", "gather", "broadcast", "broadcast", "round"]
    assert [line.split()[2] for line in listener.lines if line.split()[1] == "3"] == of_third


def with_each_hook(rank, folder):
    """In one process, since DDP takes long to begin: weights by hook, and those without one."""
    found = {}
    for hook in HOOKS:
        report._opened = False
        told = {"hook": hook, **({"from_step": 3} if hook == "powerSGD" else {})}
        found[hook] = announced(rank, f"{folder}/{hook}", told)
    net = model()
    train(wrapped(net), STEPS, rank)
    return {**found, "none": weights(net)}


def test_steps_of_pytorchs_hooks_are_rounds_without_legs(tmp_path):
    with contextlib.ExitStack() as open_ones:
        listeners = [open_ones.enter_context(Listener(tmp_path / hook)) for hook in HOOKS]
        one, two = values(launch(with_each_hook, 2, folder=str(tmp_path)))
    lines = [(f"begin {number} round", f"end {number} round") for number in range(STEPS)]
    for hook, listener in zip(HOOKS, listeners, strict=True):
        assert listener.lines == [line for both in lines for line in both]
        assert listener.socket.refused == 0
        assert np.array_equal(one[hook], two[hook])
        far = np.abs(one[hook] - one["none"]).max()
        assert far < 1e-6 if hook == "gloo" else 1e-6 < far < 0.5


def test_parts_that_turn_early_do_not_end_the_gather(tmp_path):
    with Listener(tmp_path / "markers") as listener:
        said = report.Announcer(str(tmp_path / "markers"))
        said.begin(legs=True)
        for _ in range(2):  # the second bucket comes when the first one's leg is over
            said.posted(1)
            said.gathered()
        assert said._leg == "gather"
        said.all_posted()
        assert said._leg == "broadcast"
        said.end()
        said._close()
    assert listener.lines == [
        *("begin 0 round", "begin 0 gather", "end 0 gather"),
        *("begin 0 broadcast", "end 0 broadcast", "end 0 round"),
    ]


def test_a_listener_that_goes_does_not_end_the_training(tmp_path):
    with Listener(tmp_path / "markers"):
        said = report.Announcer(str(tmp_path / "markers"))
        said.begin(legs=False)
    said.end()
    said.begin(legs=False)
    said.end()
    assert said._socket is None
