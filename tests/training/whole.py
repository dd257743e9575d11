"""A whole training on loopback addresses, without a lab: server and workers are real processes."""

import functools
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import torch

from controllers.controller_socket import ControllerClient
from testbed.experiment.schema import Transport
from testbed.run import training_launcher
from testbed.run.training_launcher import ANOTHERS_FAULT, OWN_FAULT
from testbed.shared import failure, jsonl, messages, run_directory
from testbed.shared.messages import ProgressWriter
from testbed.training import coordination, server, worker
from testbed.training.learner import Replica
from testbed.training.model_and_data import ModelAndData
from testbed.training.run_context import RunContext
from testbed.training.settings import Training
from testbed.training.vectors import SharedVectors
from testbed.transport import PeerLost, preset
from tests.transport.loopback import site

RELIABLE = preset("dblp", low=0, high=0)
_TRAINING = {"batch_size": 16}


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
            "training": Training(**{**_TRAINING, **settings}).model_dump(mode="json"),
            "transport": Transport(peer_timeout_s=10).model_dump(mode="json"),
            "impairments": [],
        }
        for name in ("logs", "events"):
            (directory / name).mkdir(exist_ok=True)
        run_directory.write_json(directory / "config.json", config)
        self.context = RunContext(
            config=config,
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
        """The launcher's exit status."""
        context = self.context
        torch.set_num_threads(1)
        context.model_and_data.load()
        _answer_as_controller(context.controller_socket)
        vectors = None
        if context.training["measure_every"]:
            vectors = SharedVectors(context.workers, context.layout.element_count)
        context.coordination_socket.unlink(missing_ok=True)
        listener = coordination.listen(context.coordination_socket)
        progress = ProgressWriter(messages.pair()[0])

        def serve() -> None:
            controller = ControllerClient(context.controller_socket)
            sockets = context.open_sockets("server")
            server.run(context, listener, controller, progress, vectors, sockets)

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
        found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
        return found


def _kill_at_gradient(number: int) -> None:
    """Have this process killed as it computes its gradient of this number."""
    compute, left = Replica.gradient, iter(range(number - 1))

    def gradient(self: Replica, into: Any) -> float:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return compute(self, into)

    Replica.gradient = gradient  # type: ignore[method-assign]


def _answer_as_controller(path: Path) -> None:
    """A controller without impairments."""
    path.unlink(missing_ok=True)
    listener = coordination.listen(path)

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, listener, connection.makefile("rb") as requests:
            for _ in requests:
                connection.sendall(json.dumps({"active": []}).encode() + b"\n")

    threading.Thread(target=answer, daemon=True).start()
