"""What a worker that comes back is given: the whole state of another, over real endpoints."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn

from testbed.shared import failure
from testbed.training import coordination, datasets, taking_back
from testbed.training.coordination import CoordinationError, Coordinator, Follower
from testbed.training.learner import Replica
from testbed.transport import Leg, PeerLost, open_endpoint, preset
from tests.training.test_learner import ADAM, SGD
from tests.transport.loopback import in_thread, site

MOMENTUM = SGD | {"momentum": 0.9}
both = pytest.mark.parametrize(
    "protocol",
    [preset("fixed-low", tolerance=0), preset("tcp")],
    ids=lambda protocol: protocol.carrier,
)


class Scene:
    """A server, and workers of which one has died and come back; each side is a thread."""

    def __init__(self, folder, protocol, workers=2):
        self.path = folder / "c.sock"
        self.site = site(protocol, workers=workers, survive_peers=True)
        self.names = list(self.site.addresses)
        self.listener = coordination.listen(self.path)

    def serve(self, *, then):
        """Once all are there: take back whoever waits, until somebody came, then `then`."""

        def live():
            with open_endpoint(self.site.server()) as endpoint:
                coordinator = Coordinator(
                    self.listener, self.names, 10, keep_going=True, take_back=True
                )
                coordinator.release("begin")
                while not (taken := self.take_back(coordinator, endpoint)):
                    time.sleep(0.01)
                return taken, then(coordinator, endpoint, 9 + taken.exchanges)

        return in_thread(live)

    def take_back(self, coordinator, endpoint):
        return taking_back.take_back(
            coordinator, endpoint, self.site.layout, number=4, exchange=9, patience_s=10
        )

    def follower(self, index):
        return Follower(self.path, f"worker-{index}", 10)

    def worker(self, index, live):
        """Take part from the beginning: `live(endpoint, follower)`."""

        def run():
            with open_endpoint(self.site.worker(index)) as endpoint:
                follower = self.follower(index)
                follower.wait("begin")
                return live(endpoint, follower)

        return in_thread(run)

    def give(self, state):
        """A worker that gives its state when it is asked to, and then waits for the next round."""

        def live(endpoint, follower):
            order = follower.wait("give")
            taking_back.give(follower, endpoint, self.site.layout, state, order["exchange"])
            return self.next_round(endpoint, follower)

        return live

    def come_back(self, index):
        """What a new process of a worker does: its state, its round, and what the server sends."""

        def live():
            follower = self.follower(index)
            follower.wait_at_the_door()
            with open_endpoint(self.site.worker(index)) as endpoint:
                state, number = taking_back.take(follower, endpoint, self.site.layout)
                follower.reach("idle")
                return state, number, self.next_round(endpoint, follower)

        return in_thread(live)

    def next_round(self, endpoint, follower):
        exchange = follower.wait("compute")["exchange"]
        buffer = self.site.layout.new_buffer()
        endpoint.receive(Leg.BROADCAST.transfer(exchange), 0, {"server": buffer})
        return buffer

    def one_round(self, coordinator, endpoint, exchange):
        """The server's side of `next_round`."""
        coordinator.release("compute", exchange=exchange)
        payload = np.full_like(self.site.layout.new_buffer(), 7)
        sent = endpoint.send(
            Leg.BROADCAST.transfer(exchange), dict.fromkeys(coordinator.present, payload)
        )
        return sorted(sent)


def die(endpoint, follower):
    follower._line.close()


@both
def test_a_state_of_several_payloads_comes_whole_and_the_next_round_has_all(tmp_path, protocol):
    scene = Scene(tmp_path, protocol, workers=3)
    random = np.random.default_rng(1)
    tensor = torch.from_numpy(random.standard_normal(250_000).astype(np.float32))
    state = {"learner": {"weights": tensor, "step": 3}, "trained_s": 1.25}
    server = scene.serve(then=scene.one_round)
    first = scene.worker(1, scene.give(state))
    dead = scene.worker(2, die)
    third = scene.worker(3, scene.next_round)
    dead.result(timeout=30)
    back = scene.come_back(2)
    taken, sent = server.result(timeout=30)
    assert taken.workers == ["worker-2"]
    assert taken.giver == "worker-1"
    assert taken.state_bytes > 1_000_000
    assert taken.exchanges == 3  # of 400 004 bytes
    got, number, buffer = back.result(timeout=30)
    assert number == 4
    assert torch.equal(got["learner"]["weights"], tensor)
    assert got["learner"]["step"] == 3
    assert got["trained_s"] == 1.25
    assert sent == ["worker-1", "worker-2", "worker-3"]
    for each in (buffer, first.result(timeout=30), third.result(timeout=30)):
        assert (each[: scene.site.layout.payload_bytes] == 7).all()


def test_when_the_giver_dies_the_next_one_gives(tmp_path):
    scene = Scene(tmp_path, preset("fixed-low", tolerance=0), workers=3)

    def begin_to_give(endpoint, follower):
        follower.wait("give")
        follower.reach("giving", bytes=1_000_000)

    server = scene.serve(then=scene.one_round)
    giver = scene.worker(1, begin_to_give)
    dead = scene.worker(2, die)
    scene.worker(3, scene.give({"whose": "worker-3's"}))
    dead.result(timeout=30)
    back = scene.come_back(2)
    taken, sent = server.result(timeout=30)
    giver.result(timeout=30)
    assert taken.giver == "worker-3"
    assert back.result(timeout=30)[0] == {"whose": "worker-3's"}
    assert sent == ["worker-2", "worker-3"]


def test_one_that_dies_again_while_it_takes_holds_nobody_up(tmp_path):
    scene = Scene(tmp_path, preset("fixed-low", tolerance=0))

    def come_back_and_die():
        follower = scene.follower(2)
        follower.wait_at_the_door()
        with open_endpoint(scene.site.worker(2)):
            follower.reach("joined")
            follower.wait("take")
        follower._line.close()

    server = scene.serve(then=scene.one_round)
    first = scene.worker(1, scene.give({"weights": torch.zeros(300_000)}))
    scene.worker(2, die).result(timeout=30)
    in_thread(come_back_and_die)
    taken, sent = server.result(timeout=30)
    assert taken.workers == []
    assert taken.exchanges == 4
    assert sent == ["worker-1"]
    first.result(timeout=30)


class Normalised(nn.Module):
    """With statistics, which are no weights."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8))
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 10))

    def forward(self, inputs):
        return self.head(self.body(inputs))


def replica(optimiser, rank):
    torch.manual_seed(3)
    model = Normalised()
    torch.manual_seed(rank)
    data = datasets.load("digits")
    batches = datasets.batches(np.arange(200) + 200 * rank, 8, 3, rank)
    return Replica(model, dataset=data, batches=batches, optimiser=optimiser)


def train(*replicas, rounds):
    """Rounds as the server has them: each applies the mean gradient."""
    size = sum(each.numel() for each in replicas[0]._trained)
    for _ in range(rounds):
        gradients = [np.empty(size, dtype=np.float32) for _ in replicas]
        for each, gradient in zip(replicas, gradients, strict=True):
            each.gradient(gradient)
        for each in replicas:
            each.apply(np.mean(gradients, axis=0), 0.01)


@pytest.mark.parametrize("optimiser", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_a_shared_state_makes_an_equal_replica_with_its_own_data_and_chances(optimiser):
    torch.set_num_threads(1)
    whole = [replica(optimiser, rank) for rank in range(2)]
    train(*whole, rounds=5)
    drawn = next(whole[1]._batches)
    back = replica(optimiser, 1)
    before = torch.get_rng_state()
    state = taking_back._decode(taking_back._encode(whole[0].shared_state()))
    back.restore(state, 5)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(next(back._batches), drawn)
    for name, tensor in whole[0]._model.state_dict().items():  # with the statistics
        assert torch.equal(back._model.state_dict()[name], tensor), name
    train(whole[0], back, rounds=3)
    ours, theirs = dict(back._model.named_parameters()), dict(whole[0]._model.named_parameters())
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


# A dead server.


def at_a_barrier(endpoint, follower, layout):
    follower.wait("compute")


def at_the_door(endpoint, follower, layout):
    follower.wait_at_the_door()


def sending(endpoint, follower, layout):
    endpoint.send(Leg.GATHER.transfer(0), {"server": layout.new_buffer()})


def awaiting_the_phase(endpoint, follower, layout):
    endpoint.await_announcement()


def receiving(endpoint, follower, layout):
    endpoint.receive(Leg.BROADCAST.transfer(0), 0, {"server": layout.new_buffer()})


@pytest.mark.parametrize(
    ("busy", "words"),
    [
        (at_a_barrier, "server: closed its connection"),
        (at_the_door, "server: closed its connection"),
        (sending, "lost server: "),
        (awaiting_the_phase, "lost server: "),
        (receiving, "lost server: "),
    ],
)
def test_a_dead_server_ends_a_worker_with_one_clear_line(tmp_path, busy, words):
    scene = Scene(tmp_path, preset("fixed-low", tolerance=0), workers=1)
    child = os.fork()
    if not child:  # the server: does nothing at all once the worker is there
        try:
            with open_endpoint(scene.site.server()):
                coordinator = Coordinator(scene.listener, scene.names, 10)
                (tmp_path / "serving").touch()
                signal.pause()
                del coordinator
        finally:
            os._exit(1)
    try:
        scene.listener.close()
        with open_endpoint(scene.site.worker(1)) as endpoint:
            follower = scene.follower(1)
            while not (tmp_path / "serving").exists():
                time.sleep(0.01)
            working = in_thread(busy, endpoint, follower, scene.site.layout)
            time.sleep(0.2)
            assert not working.done(), working.exception()
            os.kill(child, signal.SIGKILL)
            with pytest.raises((CoordinationError, PeerLost)) as caught:
                working.result(timeout=30)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    said = failure.in_words(caught.value)
    assert said.startswith(words)
    assert "\n" not in said
    if isinstance(caught.value, PeerLost):
        assert caught.value.reason in ("the connection was closed", "the connection was reset")


@pytest.mark.parametrize("said", [{}, {"bytes": "all"}, {"bytes": 0}, {"bytes": 1 << 50}])
def test_a_giver_that_names_no_sensible_size_is_lost_instead_of_ending_the_server(said):
    with pytest.raises(CoordinationError, match="worker-1: a state of"):
        taking_back._size("worker-1", said)
