"""Rounds of payloads over a star in virtual time: server and workers that do nothing else."""

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.simulate.endpoint import World
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.peer import Arrivals, Way
from testbed.simulate.tasks import Tasks
from testbed.transport import EndpointConfig, PayloadLayout, ProtocolConfig, TransferReport, preset

CHUNK_BYTES = 1456


@dataclass(frozen=True, kw_only=True)
class Round:
    gather_s: float
    broadcast_s: float
    gathered: dict[str, TransferReport]
    broadcast: dict[str, TransferReport]


class Star:
    """A server and workers, each on its own link to one switch.

    Attributes:
        simulation: the clock.
        links: by sender and receiver.
        rounds: those that are over.
        buffers: what each worker has received last.
    """

    def __init__(
        self,
        *,
        workers: int,
        chunks: float,
        protocol: str | ProtocolConfig = "none",
        tolerance: float = 0.0,
        rate_bps: float = 1e9,
        delay_s: float = 1e-3,
        queue_bytes: float = 1.5e6,
        loss: float = 0.0,
        contents: bool = False,
        ahead: bool = True,
        **of_world: Any,
    ) -> None:
        """The last of `chunks` may be a part. Without `ahead` each batch of a sender, and each
        arrival, is an event of its own."""
        self.simulation = Simulation()
        self.names = [f"worker-{number}" for number in range(1, workers + 1)]
        self.rounds: list[Round] = []
        self.tolerance = tolerance
        self._protocol = preset(protocol) if isinstance(protocol, str) else protocol
        codec = self._protocol.codec
        per_chunk = PayloadLayout([("one", 1)], CHUNK_BYTES, codec).elements_per_chunk
        self.layout = PayloadLayout([("weights", round(chunks * per_chunk))], CHUNK_BYTES, codec)
        self._contents = contents
        self._share = rate_bps / workers, queue_bytes / workers
        self._any = self.layout.new_buffer()
        self.buffers = {name: self._buffer() for name in self.names}
        self.links: dict[tuple[str, str], Link] = {}
        options: dict[str, Any] = {
            "rate_bps": rate_bps,
            "delay_s": delay_s,
            "queue_bytes": queue_bytes,
        }
        for name in [*self.names, "server"]:
            for ends in ((name, "switch"), ("switch", name)):
                seed = len(self.links)
                self.links[ends] = Link(self.simulation, loss=loss, seed=seed, **options)
        ways = {
            name: (self._way(name, "switch", "server"), self._way("server", "switch", name))
            for name in self.names
        }
        self._tasks = Tasks(self.simulation)
        self._world = World(
            self.simulation,
            self._tasks,
            ways,
            {name: Arrivals(self.simulation) for name in ["server", *self.names]},
            contents=contents,
            ahead=ahead,
            **of_world,
        )

    def _way(self, *nodes: str) -> Way:
        return Way([self.links[ends] for ends in itertools.pairwise(nodes)])

    def _buffer(self) -> np.ndarray:
        return self.layout.new_buffer() if self._contents else self._any

    def payload(self, number: int) -> np.ndarray:
        """The server's of round `number`, or any."""
        if not self._contents:
            return self._any
        buffer = self.layout.new_buffer()
        random = np.random.default_rng(number)
        values = random.standard_normal(self.layout.element_count).astype(np.float32)
        self.layout.write(values, buffer)
        return buffer

    def run(self, rounds: int, until_s: float = float("inf")) -> list[Round]:
        """Runs so many rounds, or until then; returns them."""
        self._tasks.start("server", functools.partial(self._serve, rounds))
        for name in self.names:
            self._tasks.start(name, functools.partial(self._work, name, rounds))
        try:
            self.simulation.run(
                until_s=until_s, done=lambda: len(self.rounds) == rounds, limit=10**9
            )
        finally:
            self._tasks.cancel()
        return self.rounds

    def _config(self, name: str) -> EndpointConfig:
        is_server = name == "server"
        peers = dict.fromkeys(self.names, "10.0.0.2") if is_server else {"server": "10.0.0.1"}
        rate_bps, queue_bytes = self._share
        return EndpointConfig(
            session=1,
            name=name,
            bind_address="10.0.0.1",
            peers=peers,
            is_server=is_server,
            protocol=self._protocol,
            layout=self.layout,
            rate_bps=0.98 * rate_bps,
            queue_bytes=queue_bytes,
            insecure=True,
        )

    def _serve(self, rounds: int) -> None:
        into = {name: self._buffer() for name in self.names}
        with self._world.open_endpoint(self._config("server")) as endpoint:
            for number in range(rounds):
                began_s = self.simulation.now_s
                gathered = endpoint.receive(2 * number, self.tolerance, into)
                turned_s = self.simulation.now_s
                payload = self.payload(number)
                broadcast = endpoint.send(2 * number + 1, dict.fromkeys(self.names, payload))
                self.rounds.append(
                    Round(
                        gather_s=turned_s - began_s,
                        broadcast_s=self.simulation.now_s - turned_s,
                        gathered=gathered,
                        broadcast=broadcast,
                    )
                )

    def _work(self, name: str, rounds: int) -> None:
        with self._world.open_endpoint(self._config(name)) as endpoint:
            for number in range(rounds):
                endpoint.send(2 * number, {"server": self.payload(10**6)})
                endpoint.receive(2 * number + 1, self.tolerance, {"server": self.buffers[name]})
