"""Whole trainings on loopback addresses, without a lab: what they come to, also when a worker dies.

Server and workers are real processes.
"""

import functools
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from testbed.experiment.schema import Transport
from testbed.run import training_launcher
from testbed.run.training_launcher import ANOTHERS_FAULT, OWN_FAULT
from testbed.shared import failure, jsonl, messages, run_directory
from testbed.shared.messages import ProgressWriter
from testbed.training import barriers, server, worker
from testbed.training.settings import Training
from testbed.training.state import ModelAndData, Replica, RunContext
from testbed.transport import PeerLost, preset
from tests.training.single_process import single_process_weights
from tests.transport.loopback import site

RELIABLE = preset("dblp", low=0, high=0)
WITHOUT_IMPAIRMENTS: Any = SimpleNamespace(
    begin=lambda *_: [], end=lambda *_: [], finish=lambda: None, close=lambda: None
)


class Whole:
    """One run; `deaths` tells in which of its gradients (from 1) a worker dies."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.deaths: dict[str, int] = {}
        protocol = settings.pop("protocol", RELIABLE)
        place = site(workers=settings.pop("workers", 3))
        filling = settings.pop("filling", "zero")
        config = {
            "rounds": settings.pop("rounds", 8),
            "seed": 1,
            "phases": {"detector": "never-critical"},
            "protocol": protocol.describe(),
            "filling": {"gather": filling, "broadcast": filling},
            "training": Training(**{"batch_size": 16, **settings}).model_dump(mode="json"),
            "transport": Transport(peer_timeout_s=10).model_dump(mode="json"),
            "impairments": [],
        }
        for name in ("logs", "events"):
            (directory / name).mkdir(exist_ok=True)
        run_directory.write_json(directory / "config.json", config)
        self.context = RunContext(
            directory=directory,
            addresses={"server": place.server_address, **place.addresses},
            fair_shares_bps=dict.fromkeys(place.addresses, 2e8),
            fair_queues_bytes=dict.fromkeys(place.addresses, 1_000_000.0),
            controller_socket=directory / "controller.sock",
            coordination_socket=directory / "coordination.sock",
            session=1,
            model_and_data=ModelAndData(config),
        )

    def run(self) -> int:
        context = self.context
        torch.set_num_threads(1)
        context.model_and_data.load()
        vectors = context.new_vectors()
        context.coordination_socket.unlink(missing_ok=True)
        listener = barriers.listen(context.coordination_socket)
        progress = ProgressWriter(messages.pair()[0])

        def serve() -> None:
            sockets = context.open_sockets("server")
            server.run(context, listener, WITHOUT_IMPAIRMENTS, progress, vectors, sockets)

        def work(name: str) -> None:
            if name in self.deaths:
                _kill_at_gradient(self.deaths[name])
            worker.run(context, name, vectors, context.open_sockets(name))

        children = {self._fork("server", serve): "server"}
        listener.close()
        for name in context.workers:
            children[self._fork(name, functools.partial(work, name))] = name
        try:
            return training_launcher.wait_for(
                children, self.directory, outlive=context.survives_workers
            )
        finally:
            for pid in children:  # those that it killed, or did not wait for
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _fork(self, name: str, live: Any) -> int:
        child = os.fork()
        if child:
            return child
        status = OWN_FAULT
        try:
            os.environ[failure.REASON_FILE] = str(training_launcher.reason_of(self.directory, name))
            live()
            status = 0
        except (ConnectionError, TimeoutError, PeerLost) as error:
            failure.record(error, name)
            status = ANOTHERS_FAULT
        except BaseException as error:
            failure.record(error, name)
        finally:
            os._exit(status)

    def events(self, name: str) -> list[dict[str, Any]]:
        return jsonl.read(self.directory / "events" / f"{name}.jsonl")

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        path = self.directory / f"weights-{name}.pt"
        tensors: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
        return tensors


def _kill_at_gradient(number: int) -> None:
    """Have this process killed as it computes its gradient of this number."""
    compute, left = Replica.gradient, iter(range(number - 1))

    def gradient(self: Replica, into: Any) -> float:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return compute(self, into)

    Replica.gradient = gradient  # type: ignore[method-assign]


ALL = ["worker-1", "worker-2", "worker-3"]


def gathered(whole):
    ranks: dict[int, list[int]] = {}
    for event in whole.events("transfers-server"):
        if event["leg"] == "gather":
            ranks.setdefault(event["round"], []).append(ALL.index(event["peer"]))
    return [sorted(ranks[number]) for number in sorted(ranks)]


def assert_weights(whole, names, parts):
    settings = {"workers": 3, "seed": 1, "batch_size": 16, "learning_rate": 0.05, "momentum": 0.9}
    expected = single_process_weights(rounds=len(parts), parts=parts, **settings)
    for name in names:
        weights = whole.weights(name)
        assert weights.keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.equal(weights[key], tensor), (name, key)


@pytest.mark.parametrize("protocol", [RELIABLE, preset("tcp")], ids=["udp", "tcp"])
def test_gradients_are_added_in_rank_order_whichever_came_first(tmp_path, protocol):
    whole = Whole(tmp_path, protocol=protocol, rounds=10)
    assert whole.run() == 0
    assert_weights(whole, ALL, [[0, 1, 2]] * 10)


def test_replicas_of_quantised_gradients_are_equal_in_the_end(tmp_path):
    settings: dict[str, Any] = {"filling": "error-feedback", "rounds": 6}
    whole = Whole(tmp_path, protocol=preset("one-bit"), **settings)
    assert whole.run() == 0
    begun, first = whole.context.model_and_data.model(0), whole.weights("worker-1")
    for name in ("worker-2", "worker-3"):
        other = whole.weights(name)
        assert all(torch.equal(first[key], other[key]) for key in first)
    assert all(not torch.equal(first[key], weight) for key, weight in begun.named_parameters())


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [(RELIABLE, {"filling": "error-feedback"}), (preset("tcp"), {})],
    ids=["udp", "tcp"],
)
def test_the_others_go_on_without_a_worker_that_dies(tmp_path, protocol, settings):
    whole = Whole(tmp_path, protocol=protocol, rounds=8, on_worker_loss="continue", **settings)
    whole.deaths["worker-2"] = 3
    assert whole.run() == 0
    log = whole.events("rounds")
    assert [row["round"] for row in log] == list(range(8))
    parts = [[0, 1, 2]] * 2 + [[0, 2]] * 6
    assert gathered(whole) == parts
    assert [bool(row["workers_lost"]) for row in log] == [False] * 2 + [True] * 6
    lost = (tmp_path / "logs" / run_directory.LOST_WORKERS).read_text()
    assert lost == "worker-2: killed by SIGKILL\n"
    assert_weights(whole, ["worker-1", "worker-3"], parts)
    assert not (tmp_path / "weights-worker-2.pt").exists()


def test_measurements_go_on_without_a_lost_worker(tmp_path):
    settings: dict[str, Any] = {"measure_every": 1, "optimiser": "adam"}
    arm = preset("dblp", low=0.2, high=0.2, order="shuffled")
    whole = Whole(tmp_path, protocol=arm, rounds=8, on_worker_loss="continue", **settings)
    whole.deaths["worker-2"] = 3
    assert whole.run() == 0
    for event in whole.events("effects"):
        assert ("worker-2" in event["applied"]) is (event["round"] < 2)
    assert {event["round"] for event in whole.events("congestion-worker-1")} <= set(range(8))


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_replicas_are_equal_bit_for_bit_though_each_lacks_something_else(tmp_path, optimiser):
    # Without loss the end of each order is given up; where workers stop differs by their timing.
    arm = preset("bounded-energy", share=0.4, floor=0.02)
    whole = Whole(tmp_path, protocol=arm, rounds=12, filling="common-feedback", optimiser=optimiser)
    assert whole.run() == 0
    legs = [leg for leg in whole.events("transfers-worker-1") if leg["leg"] == "broadcast"]
    assert any(leg["chunks_received"] < leg["chunk_count"] for leg in legs)
    first, *others = (whole.weights(f"worker-{number}") for number in (1, 2, 3))
    for other in others:
        assert all(torch.equal(first[key], other[key]) for key in first)
