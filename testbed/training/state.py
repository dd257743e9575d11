"""The state of a run: what its processes share, and what each worker trains.

The launcher loads model and data before it forks. Torch computes nothing before the fork.
"""

import copy
import importlib
import itertools
import math
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import nn

from testbed.shared import drop_order, own_code, run_directory
from testbed.training import barriers, datasets, models
from testbed.training.coding import Incoming, Outgoing
from testbed.training.datasets import Dataset, baselines, splits
from testbed.training.datasets.base import digest
from testbed.training.filling import Filling, SenderMemory, Vector
from testbed.training.fillings import FILLINGS, Unread
from testbed.training.phases import AnyPhases, Detector, DetectorParameters
from testbed.training.settings import OPTIMISERS, AnySchedule, Position, Schedule
from testbed.transport import (
    Endpoint,
    EndpointConfig,
    Leg,
    Observer,
    PayloadLayout,
    ProtocolConfig,
    open_endpoint,
)
from testbed.transport.net.addresses import resolve
from testbed.transport.net.carriers import DataSockets, open_data_sockets
from testbed.transport.settings import LeaveOut
from testbed.transport.wire import DATA_PORTS

_BARRIER_SLACK_S = 30.0
_SEGMENTATION = False  # the queues of a lab hold packets
_PHASES: TypeAdapter[DetectorParameters] = TypeAdapter(AnyPhases)
_SPLIT: TypeAdapter[splits.Equal | splits.Dirichlet] = TypeAdapter(splits.AnySplit)
_SCHEDULE: TypeAdapter[Schedule] = TypeAdapter(AnySchedule)


class Learner:
    """The object that a worker trains, by flat float32 vectors; this base class learns nothing."""

    def gradient(self, into: Vector) -> float | None:
        """Write the gradient of the next batch's mean loss; return that loss, or None."""
        return None

    def apply(self, update: Vector, learning_rate: float) -> None:
        """Take one optimiser step with `update` as the gradient."""

    def snapshot(self) -> Callable[[], None]:
        """Remember weights and the optimiser's state; returns what brings them back."""
        return lambda: None

    def evaluate(self) -> float | None:
        return None

    def digest(self) -> str:
        """Hash all that an evaluation depends on; learners of one digest evaluate alike."""
        return ""

    def weights(self, into: Vector) -> None:
        into[:] = 0

    def save(self, path: Path) -> None:
        pass


def build_optimiser(
    name: str, parameters: Sequence[nn.Parameter], *, learning_rate: float, **options: float
) -> torch.optim.Optimizer:
    """Build the optimiser `name`; leave out options that it does not take. ValueError."""
    return OPTIMISERS.build(name, {}, params=parameters, lr=learning_rate, **options)


class Replica(Learner):
    """A model with its optimiser and data; `batches` yields indices without end."""

    def __init__(
        self,
        model: nn.Module,
        *,
        dataset: Dataset,
        batches: Iterator[NDArray[np.int64]],
        optimiser: dict[str, Any],
        device: str = "cpu",
    ) -> None:
        self._device = torch.device(device)
        self._model = model.to(self._device)
        self._dataset = dataset
        self._batches = batches
        self._trained = [tensor for _, tensor in models.trained(self._model)]
        self._optimiser = build_optimiser(parameters=self._trained, **optimiser)

    def gradient(self, into: Vector) -> float:
        chosen = next(self._batches)
        self._model.zero_grad(set_to_none=True)
        inputs = self._dataset.train_inputs[chosen].to(self._device)
        labels = self._dataset.train_labels[chosen].to(self._device)
        loss = self._dataset.task.loss(self._model(inputs), labels)
        loss.backward()
        flatten_gradient(self._trained, into)
        return loss.item()

    def apply(self, update: Vector, learning_rate: float) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        for tensor, part in _parts(self._trained, update):
            tensor.grad = torch.from_numpy(part.copy()).view_as(tensor).to(self._device)
        self._optimiser.step()

    def snapshot(self) -> Callable[[], None]:
        weights = [tensor.detach().clone() for tensor in self._trained]
        optimiser = copy.deepcopy(self._optimiser.state_dict())

        @torch.no_grad()
        def bring_back() -> None:
            for tensor, kept in zip(self._trained, weights, strict=True):
                tensor.copy_(kept)
            self._optimiser.load_state_dict(optimiser)

        return bring_back

    def evaluate(self) -> float:
        return self._dataset.task.evaluate(
            self._model, self._dataset.test_inputs, self._dataset.test_labels
        )

    def digest(self) -> str:
        tensors = itertools.chain(self._model.parameters(), self._model.buffers())
        flat = (tensor.detach().cpu().reshape(-1) for tensor in tensors)
        return digest(*(values.view(torch.uint8).numpy() for values in flat))

    def weights(self, into: Vector) -> None:
        for tensor, part in _parts(self._trained, into):
            part[:] = tensor.detach().cpu().numpy().reshape(-1)

    def save(self, path: Path) -> None:
        torch.save({name: tensor.cpu() for name, tensor in self._model.state_dict().items()}, path)


def _parts(trained: Sequence[nn.Parameter], flat: Vector) -> Iterator[tuple[nn.Parameter, Vector]]:
    place = 0
    for tensor in trained:
        yield tensor, flat[place : place + tensor.numel()]
        place += tensor.numel()


def flatten_gradient(trained: Sequence[nn.Parameter], into: Vector) -> None:
    for tensor, part in _parts(trained, into):
        # A weight that this batch did not use has no gradient.
        part[:] = 0 if tensor.grad is None else tensor.grad.cpu().numpy().reshape(-1)


class PayloadOnly(Learner):
    """Gives random numbers of a model's size as gradients, and learns nothing."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._drawn = False

    def gradient(self, into: Vector) -> None:
        # Drawn once, because their values do not matter and drawing takes longer than sending.
        if not self._drawn:
            self._random.standard_normal(out=into, dtype=np.float32)
            self._drawn = True


class ModelAndData:
    """The model and data that a run's `config.json` describes; each part is made on first use."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._training: dict[str, Any] = config["training"]
        self._seed = int(config["seed"])
        self._pace: dict[str, Any] = self._training.get("pace") or {}
        self._computes = self._pace.get("kind") != "payload-only"

    @cached_property
    def dataset(self) -> Dataset:
        folder = self.config.get("folder")  # data may lie beside the experiment's file
        section = self._training.get("dataset", "digits")
        dataset = datasets.load(section, None if folder is None else Path(folder), self._seed)
        if self._training.get("evaluate_on") == "validation":
            return splits.validating(dataset, self._seed)
        return dataset

    def shares(self, workers: int) -> list[NDArray[np.int64]]:
        split = _SPLIT.validate_python(self._training.get("split", "equal"))
        shares = splits.shares(split, self.dataset.groups, workers, self._seed)
        if self._computes:
            splits.require_batches(shares, self._training["batch_size"], split)
        return shares

    @cached_property
    def layers(self) -> list[tuple[str, tuple[int, ...]]]:
        name = self._training["model"]
        entry = models.MODELS.get(name)
        if not self._computes and entry is not None and entry.published:
            classes, shape = entry.published
        else:
            classes, shape = self.dataset.classes, self.dataset.input_shape
        # A cached map imports nothing; a run that computes must import before its workers fork.
        layers = models.layer_map(
            name, classes=classes, input_shape=shape, cached=not self._computes
        )
        return models.scaled(layers, float(self._pace.get("scale", 1.0)))

    def model(self, rank: int) -> nn.Module:
        model = models.build(
            self._training["model"],
            self._seed,
            classes=self.dataset.classes,
            input_shape=self.dataset.input_shape,
        )
        # For this worker alone, so that dropout differs between replicas.
        own = np.random.SeedSequence([self._seed, 4, rank])
        torch.manual_seed(int(own.generate_state(1)[0]))
        return model

    def load(self) -> None:
        """Load what all processes share: the data, and the packages that the model needs."""
        _ = self.dataset, self.layers
        if self._computes:
            # The first optimiser of a process imports it, which takes a second.
            importlib.import_module("torch._dynamo")

    def facts(self, workers: int) -> dict[str, Any]:
        elements = sum(size for _, size in models.layer_sizes(self.layers))
        return {
            "dataset": self.dataset.facts,
            "share_sizes": [len(share) for share in self.shares(workers)],
            "model": {
                "name": self._training["model"],
                "parameters": elements,
                "payload_bytes": 4 * elements,
                "layers": len(self.layers),
            },
            "baseline": baselines.of(self.dataset) if self._computes else None,
        }


class SharedVectors:
    """Vectors for each worker, in memory that children share, to compare arrived with sent."""

    def __init__(self, workers: Sequence[str], elements: int) -> None:
        def zeros() -> dict[str, Vector]:  # untouched pages take no memory
            return {
                name: np.frombuffer(mmap.mmap(-1, 4 * elements), dtype=np.float32)
                for name in workers
            }

        self.gradients, self.updates, self.weights = zeros(), zeros(), zeros()


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The clock and the connections of a training: this machine's or a simulation's."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    open_endpoint: Callable[[EndpointConfig, DataSockets | None], Endpoint] = open_endpoint
    connect: barriers.Connect = barriers.connect
    contents: bool = True  # whether payloads are computed with; else all buffers may be one
    learner: Callable[[Callable[[], Learner]], Learner] = lambda make: make()


@dataclass(kw_only=True)
class RunContext:
    addresses: dict[str, str]  # of all hosts, the server first
    model_and_data: ModelAndData
    directory: Path = Path()
    fair_shares_bps: dict[str, float] = field(default_factory=dict)
    fair_queues_bytes: dict[str, float] = field(default_factory=dict)
    controller_socket: Path = Path()
    coordination_socket: Path = Path()
    session: int = 0
    surroundings: Surroundings = Surroundings()

    @classmethod
    def without_network(cls, config: dict[str, Any], hosts: Sequence[str]) -> "RunContext":
        """Make the context of the learning alone, in one process."""
        return cls(addresses=dict.fromkeys(hosts, ""), model_and_data=ModelAndData(config))

    def __post_init__(self) -> None:
        self.config = config = self.model_and_data.config
        self.rounds, self.seed = int(config["rounds"]), int(config["seed"])
        self.training: dict[str, Any] = config["training"]
        self.workers = [name for name in self.addresses if name != "server"]  # in rank order
        self.ranks = {name: rank for rank, name in enumerate(self.workers)}
        self.survives_workers = bool(self.training["on_worker_loss"] == "continue")

    @cached_property
    def protocol(self) -> ProtocolConfig:
        return ProtocolConfig(**self.config["protocol"])

    def filling(self, leg: Leg) -> Filling:
        if not self.surroundings.contents:
            return Unread()
        return FILLINGS.create(self.config["filling"][leg.name.lower()])

    @cached_property
    def shares(self) -> list[NDArray[np.int64]]:
        return self.model_and_data.shares(len(self.workers))

    @cached_property
    def rounds_per_epoch(self) -> int:
        """Rounds in which the smallest share, which may be empty, is seen once."""
        return max(1, min(map(len, self.shares)) // int(self.training["batch_size"]))

    @cached_property
    def layout(self) -> PayloadLayout:
        chunk_bytes = self.config["transport"]["chunk_bytes"]
        layers = models.layer_sizes(self.model_and_data.layers)
        # Learning alone, without a network, has no protocol.
        codec = self.config.get("protocol", {}).get("codec", "float32")
        return PayloadLayout(layers, chunk_bytes, codec)

    def new_values(self) -> NDArray[np.uint8]:
        """Make a buffer for values, of `layout.plain`."""
        return self.layout.plain.new_buffer() if self.surroundings.contents else self._any_values

    @cached_property
    def _any_values(self) -> NDArray[np.uint8]:
        return self.layout.plain.new_buffer()

    def incoming(self) -> Incoming:
        """Make a buffer for what arrives from one sender."""
        values = self.new_values()
        if self.layout is self.layout.plain:
            return Incoming(self.layout, values, values)
        if self.surroundings.contents:
            return Incoming(self.layout, self.layout.new_buffer(), values)
        return Incoming(self.layout, self._unread, self._unread)

    @cached_property
    def _unread(self) -> NDArray[np.uint8]:
        return self.layout.new_buffer()

    def outgoing(self, memory: SenderMemory, host: str) -> Outgoing:
        """Make what sends a host's payloads."""
        unread = None if self.surroundings.contents else self._unread
        return Outgoing(memory, self.layout, seed=self.seed_of(host), unread=unread)

    def seed_of(self, host: str) -> int:
        """Return the seed of a host's own draws."""
        own = np.random.SeedSequence([self.seed, list(self.addresses).index(host)])
        return int(own.generate_state(1)[0])

    def new_vectors(self) -> SharedVectors | None:
        """Memory for measuring the effects of loss; None where that is off."""
        if not self.training["measure_every"]:
            return None
        return SharedVectors(self.workers, self.layout.element_count)

    def write_facts(self) -> None:
        """Write `training.json`: what is trained, and by whom on how much."""
        facts = self.model_and_data.facts(len(self.workers))
        path = self.directory / "training.json"
        run_directory.write_json(path, {"schema": run_directory.SCHEMA, **facts})

    @property
    def logged_layout(self) -> PayloadLayout | None:
        return self.layout if self.training["measure_every"] else None

    @property
    def metric(self) -> str:
        return self.model_and_data.dataset.task.metric

    def learner(self, name: str) -> Learner:
        rank = self.ranks[name]
        training = self.training
        if not self.surroundings.contents:
            return Learner()
        if training["pace"]["kind"] == "payload-only":
            return PayloadOnly(self.seed + rank)

        def replica() -> Learner:
            shares, keys = self.shares[rank], ("learning_rate", "momentum", "weight_decay")
            return Replica(
                self.model_and_data.model(rank),
                dataset=self.model_and_data.dataset,
                batches=splits.batches(shares, training["batch_size"], self.seed, rank),
                optimiser={"name": training["optimiser"], **{key: training[key] for key in keys}},
                device=training["device"],
            )

        return self.surroundings.learner(replica)

    def detector(self) -> Detector:
        parameters: DetectorParameters = _PHASES.validate_python(self.config["phases"])
        detector = parameters.create(self.rounds_per_epoch)
        if not isinstance(detector, Detector):
            raise own_code.unfit(parameters, "create", detector, "a Detector")
        return detector

    def learning_rate(self, round_number: int) -> float:
        at = Position(
            round_number=round_number, rounds=self.rounds, rounds_per_epoch=self.rounds_per_epoch
        )
        factor = self._schedule.factor(at)
        if not (isinstance(factor, Real) and 0 <= float(factor) < math.inf):
            raise own_code.unfit(self._schedule, "_factor", factor, "a number of 0 or more")
        return float(self.training["learning_rate"]) * float(factor)

    @cached_property
    def _schedule(self) -> Any:
        return _SCHEDULE.validate_python(self.training["schedule"])

    def evaluates_after(self, round_number: int) -> bool:
        return self._every("evaluate_every", round_number)

    def measures_after(self, round_number: int) -> bool:
        return self._every("measure_every", round_number)

    def _every(self, key: str, number: int) -> bool:
        every = int(self.training[key])
        return every > 0 and (number % every == 0 or number == self.rounds - 1)

    @property
    def barrier_timeout_s(self) -> float:
        """The time that a barrier may take; the transport reports a dead peer earlier."""
        return float(self.config["transport"]["peer_timeout_s"]) + _BARRIER_SLACK_S

    def open_sockets(self, host: str) -> DataSockets:
        """Open what the endpoint of a host needs root's powers for; runs nothing of the user's."""
        protocol, is_server = self.config["protocol"], host == "server"
        peers = self._peers(host)
        return open_data_sockets(
            carrier=protocol["carrier"],
            local=resolve(self.addresses[host], what=host),
            peers={name: resolve(address, what=name) for name, address in peers.items()},
            ports={name: DATA_PORTS[0] + is_server * place for place, name in enumerate(peers)},
            is_server=is_server,
            chunk_bytes=self.config["transport"]["chunk_bytes"],
            segmentation=_SEGMENTATION,
            congestion_control=protocol["congestion_control"],
        )

    def _peers(self, host: str) -> dict[str, str]:
        names = self.workers if host == "server" else ["server"]
        return {name: self.addresses[name] for name in names}

    def endpoint(self, host: str, observer: Observer | None = None) -> EndpointConfig:
        # All workers send to the server at once, and it sends to all at the smallest share.
        is_server = host == "server"
        shares_bps, queues_bytes = self.fair_shares_bps, self.fair_queues_bytes
        share_bps = min(shares_bps.values()) if is_server else shares_bps[host]
        queue_bytes = min(queues_bytes.values()) if is_server else queues_bytes[host]
        transport = self.config["transport"]
        return EndpointConfig(
            session=self.session,
            name=host,
            bind_address=self.addresses[host],
            peers=self._peers(host),
            is_server=is_server,
            protocol=self.protocol,
            layout=self.layout,
            rate_bps=math.floor(share_bps * transport["pace"]),
            quantum_s=transport["quantum_s"],
            queue_bytes=queue_bytes,
            seed=self.seed_of(host),
            peer_timeout_s=transport["peer_timeout_s"],
            survive_peers=is_server and self.survives_workers,
            segmentation=_SEGMENTATION,
            insecure=True,  # nobody else is in a lab
            observer=observer,
            leave_out=self._leave_out(host),
        )

    def _leave_out(self, host: str) -> LeaveOut | None:
        """Draws the datagrams that impairments let vanish at this sender."""
        folder = self.controller_socket.parent
        orders = drop_order.orders(folder, host, self.config["impairments"])
        if not orders:
            return None

        def leave_out(count: int) -> NDArray[np.bool_] | None:
            drawn = [gone for order in orders if (gone := order.draw(count)) is not None]
            return np.logical_or.reduce(drawn) if drawn else None

        return leave_out
