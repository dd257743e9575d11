"""Runs in virtual time: the training's own server and workers on the simulator's network."""

from __future__ import annotations

import functools
import gc
import itertools
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

import topologies
from controllers import impairments
from controllers.controller_socket import ControllerClient
from testbed.experiment import Run
from testbed.lab import paths
from testbed.run import manifest, runner, simulated_impairments
from testbed.run.runner import OnProgress, Outcome, directory_of
from testbed.run.simulated_network import SimulatedNetwork, describe
from testbed.shared import failure, jsonl, own_code, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.messages import ProgressWriter
from testbed.shared.run_directory import RunDirectory
from testbed.simulate import kernel_tcp
from testbed.simulate.endpoint import World
from testbed.simulate.engine import Simulation
from testbed.simulate.tasks import Lateness, Listener, Tasks
from testbed.training import server, worker
from testbed.training.filling import Vector
from testbed.training.state import Learner, ModelAndData, RunContext, Surroundings
from testbed.transport.order import ORDERS
from testbed.verdict.gates import Gate, judge, reasons

_MOST_EVENTS = 10**12
_GC_THRESHOLDS = (50_000, 20, 20)
_SESSION = 1  # nobody else is on the network
_DETECTORS_WITHOUT_GRADIENTS = ("schedule", "always-critical", "never-critical")


@contextmanager
def torch_as_in_a_lab() -> Iterator[None]:
    """Use one thread and deterministic algorithms, as in the processes of a run."""
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(is_deterministic)
        torch.set_rng_state(random)


class OwnRandomNumbers(Learner):
    """A learner with random numbers of its own, so that it computes to the last bit as in a lab."""

    def __init__(
        self, make: Callable[[], Learner], *, evaluated: dict[str, float | None] | None = None
    ) -> None:
        """`evaluated`, shared by a run's learners, has the latest model's digest and evaluation."""
        self._evaluated = {} if evaluated is None else evaluated
        self._random = torch.get_rng_state()
        with self._own():
            self._learner = make()

    @contextmanager
    def _own(self) -> Iterator[None]:
        others = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(others)

    def gradient(self, into: Vector) -> float | None:
        with self._own():
            return self._learner.gradient(into)

    def apply(self, update: Vector, learning_rate: float) -> None:
        with self._own():
            self._learner.apply(update, learning_rate)

    def snapshot(self) -> Callable[[], None]:
        return self._learner.snapshot()

    def evaluate(self) -> float | None:
        """Evaluate, but for a replica that equals the one before."""
        model, random = self.digest(), self._random
        if model and model in self._evaluated:
            return self._evaluated[model]
        with self._own():
            value = self._learner.evaluate()
        self._evaluated.clear()
        if torch.equal(random, self._random):  # else it drew, and another draws other numbers
            self._evaluated[model] = value
        return value

    def digest(self) -> str:
        return self._learner.digest()

    def weights(self, into: Vector) -> None:
        self._learner.weights(into)

    def save(self, path: Path) -> None:
        self._learner.save(path)


def refuse(run: Run) -> None:
    config, file = run.config(), f"{run.source or run.experiment.name}"
    for key, value, valid in _lacking(config, run):
        raise InputError(f"{file}: {key}: {value} is not simulated; valid: {valid}")
    for number, entry in enumerate(config["impairments"]):
        if wrong := simulated_impairments.lacking(entry, carrier=config["protocol"]["carrier"]):
            raise InputError(f"{file}: impairments.{number}: {wrong}")


def remarks(runs: Sequence[Run]) -> list[str]:
    """The cautions about these runs, which are not refused."""
    arms = sorted({run.arm for run in runs if run.protocol.carrier == "tcp"})
    remarks = [f"{arm}: kernel TCP by a model, see docs/how-to/simulate.md" for arm in arms]
    different = {repr(run.experiment.topology): run.experiment.topology for run in runs}
    links = itertools.chain.from_iterable(describe(one).links for one in different.values())
    if any(link.ecn_threshold_bytes is not None for link in links):
        remarks.append("ecn_threshold_bytes: marks nothing, since nothing here sends with ECN")
    return remarks


def _has_key(key: str, section: Any) -> bool:
    if isinstance(section, Mapping):
        return key in section or any(_has_key(key, part) for part in section.values())
    return isinstance(section, list) and any(_has_key(key, part) for part in section)


def _lacking(config: Mapping[str, Any], run: Run) -> list[tuple[str, str, str]]:
    """Keys that ask for what is lacking, their values, and what would be valid."""
    if not run.experiment.trains:
        return [("workload", "a workload of programs", "the built-in training")]
    lacking, protocol, supported = [], config["protocol"], kernel_tcp.KERNEL_CONTROLS
    control = protocol["congestion_control"]
    if protocol["carrier"] == "tcp" and control not in supported:
        valid = f"{', '.join(supported)}, or other arms, with --arms A,B"
        key = f"arms.{run.name_in_file}.congestion_control"
        lacking.append((key, f"kernel TCP's {control!r}", valid))
    if config["training"]["pace"]["kind"] == "real":
        # What this machine needs says nothing of a host that is simulated: the user decides.
        key = "simulation.compute_s, the seconds in which a worker computes an iteration"
        lacking.append(("training.pace.kind", "'real'", f"real with {key}, paced, payload-only"))
    if _has_key("priority_queue_bytes", config["topology"]):  # left out of scopes without one
        lacking.append(("topology.priority_queue_bytes", "a second queue", "none"))
    return lacking


def execute(results: Path, run: Run, on_progress: OnProgress) -> Outcome:
    place = directory_of(results, run)
    if place.verdict() == "ok":
        return Outcome(run, place.path, "ok", "", executed=False)
    carry_out(place, run.config(), on_progress)
    return runner.outcome(run, place)


def carry_out(place: RunDirectory, config: Mapping[str, Any], on_progress: OnProgress) -> None:
    with place.open({**config, "capture": []}) as directory:
        began_at, began_s = run_directory.now(), time.monotonic()
        verdict: run_directory.Verdict = "ok"
        reason, gates = "", list[Gate]()
        try:
            gates = simulate(directory, on_progress)
            reason = reasons(gates)
            verdict = "invalid" if any(gate.stops for gate in gates) else "ok"
        except KeyboardInterrupt:
            verdict, reason = "interrupted", "interrupted by Ctrl-C or a signal"
            raise
        except Exception as error:
            verdict, reason = "failed", failure.in_words(error)
            if not isinstance(error, InputError):
                (directory / "logs" / "simulation.log").write_text(traceback.format_exc())
                reason += "; see logs/simulation.log"
        finally:
            run_directory.write_status(
                directory,
                verdict,
                reason,
                began_at=began_at,
                wall_s=time.monotonic() - began_s,
                gates=[gate.as_json() for gate in gates],
            )


def simulate(directory: Path, on_progress: OnProgress) -> list[Gate]:
    """Train to the end in virtual time, write what happened below `directory`; judge it."""
    config = run_directory.read_json(directory / "config.json")
    own_code.expect(config.get("code", {}))
    simulation = Simulation()
    topology = topologies.parse(config["topology"])
    info = describe(topology)
    entries = map(impairments.read, config["impairments"])
    virtual = config.get("simulation", {})
    network = SimulatedNetwork(
        simulation,
        info,
        seed=config["seed"],
        delays_change=any({"delay_s", "jitter_s"} & set(it.changes_middle) for it in entries),
        spray=virtual.get("spray", False),
    )
    names, workers = topology.host_names(), topology.host_names()[1:]
    facts = manifest.of_machine() | {"simulated": True, "seed": config["seed"]}
    facts["code"] = config.get("code", {})
    if config["protocol"]["carrier"] == "tcp":
        network.hold_back_senders()
        facts["kernel_tcp"] = "model"
    run_directory.write_json(directory / "manifest.json", facts)
    run_directory.write_json(directory / "calibration.json", {"schema": run_directory.SCHEMA})
    tasks, contents = Tasks(simulation), _reads_contents(config)
    timeout_s = config["transport"].get("tcp_rto_min_s")
    least = {"tcp_least_timeout_s": timeout_s} if timeout_s else {}
    ways = network.ways(workers)
    world = World(simulation, tasks, ways, network.arrivals, contents=contents, **least)
    wakes_s = virtual.get("wakes_s", 0.0)
    listener = Listener(tasks, Lateness(simulation, wakes_s, config["seed"]) if wakes_s else None)
    with tempfile.TemporaryDirectory(prefix="lab-simulate-") as private:
        # Its folder is what the controller shares with the senders.
        controller_socket = Path(private, "controller.sock")
        log = directory / "events" / "impairments.jsonl"
        access = simulated_impairments.SimulatedAccess(
            simulation, network, records=log.parent, shared=controller_socket.parent
        )
        controller = simulated_impairments.SimulatedController(
            simulation, config["impairments"], access, log
        )
        model_and_data = ModelAndData(config)
        context = RunContext(
            directory=directory,
            addresses={name: info.hosts[name].address for name in names},
            fair_shares_bps=paths.fair_shares(network.info, workers, "rate_bps"),
            fair_queues_bytes=paths.fair_shares(network.info, workers, "queue_bytes"),
            controller_socket=controller_socket,
            coordination_socket=controller_socket,
            session=_SESSION,
            model_and_data=model_and_data,
            surroundings=Surroundings(
                now_s=lambda: simulation.now_s,
                sleep=tasks.sleep,
                open_endpoint=cast(Callable[..., Any], world.open_endpoint),
                connect=cast(Callable[..., Any], lambda path, timeout_s: listener.connect()),
                contents=contents,
                learner=functools.partial(OwnRandomNumbers, evaluated={}),
            ),
        )
        model_and_data.load()
        context.write_facts()
        vectors, progress = context.new_vectors(), _progress(on_progress)
        simulated = cast(Any, listener), cast(ControllerClient, controller)
        tasks.start(
            "server",
            lambda: server.run(context, *simulated, progress, vectors, None),
        )
        for name in workers:
            tasks.start(name, functools.partial(worker.run, context, name, vectors, None))
        learns = config["training"]["pace"]["kind"] != "payload-only"
        with torch_as_in_a_lab() if learns else nullcontext(), _rare_garbage_collection():
            _run(simulation, tasks)
    return judge(config, only="impairments_unmet", events=jsonl.read(log))


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect garbage seldom: with 600 workers it was a third of the time."""
    # Transfers leave no cycles. Learning and code of users may leave some.
    thresholds = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _run(simulation: Simulation, tasks: Tasks) -> None:
    try:
        simulation.run(done=lambda: not tasks.running, limit=_MOST_EVENTS)
        if tasks.running:
            waiting, now_s = ", ".join(list(tasks.running)[:5]), simulation.now_s
            raise RuntimeError(
                f"nothing is left to happen at {now_s:g} s, and these wait: {waiting}"
            )
    finally:
        tasks.cancel()


def _reads_contents(config: Mapping[str, Any]) -> bool:
    protocol = config["protocol"]
    # `keep` chooses chunks by what they hold.
    if "keep" in protocol or ORDERS.create(protocol["order"], seed=0).sends_energy:
        return True
    if config["training"]["pace"]["kind"] != "payload-only":
        return True
    return config["phases"]["detector"] not in _DETECTORS_WITHOUT_GRADIENTS


def _progress(on_progress: OnProgress) -> ProgressWriter:
    def on_round(number: int, total: int) -> None:
        on_progress({"round": number, "rounds": total})

    return cast(ProgressWriter, SimpleNamespace(round=on_round))
