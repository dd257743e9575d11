"""`Lab`: an emulated network with real programs in it, for the body of a `with`."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

import topologies
from controllers import impairment_plan
from controllers.impairments import AnyImpairment, ImpairmentParameters
from testbed.lab import sandbox
from testbed.lab.kernel import privileges
from testbed.lab.sandbox import EndedError, Sandbox, SandboxError
from testbed.scripting import by_hand
from testbed.scripting.host import Ask, Host
from testbed.shared import failure, own_code, problems, run_directory, units
from testbed.shared.input_error import InputError, shown
from testbed.shared.registry import one_of
from testbed.verdict.gates import Gate, Limits
from topologies.settings import MOST_LAB_WORKERS

if TYPE_CHECKING:
    import polars as pl

    from topologies import TopologyParameters

_POLL_S = 0.02
_NAME = "script"
_ANCHORS = ("rounds", "leg", "at_s", "duration_s", "offset_s")
_ENTRIES: TypeAdapter[list[ImpairmentParameters]] = TypeAdapter(list[AnyImpairment])


class LabError(RuntimeError):
    """The lab cannot be built, cannot do what was asked, or has ended; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples so far, as polars data frames; docs/reference/samples.md has the columns."""

    queues: pl.DataFrame
    flows: pl.DataFrame
    processes: pl.DataFrame


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict:
    """The verdict on a lab: whether its measurements can be believed."""

    status: str  # `ok`, or `invalid`: the emulator may have been the limit
    reasons: list[str]  # a sentence for each gate that stops it
    gates: list[Gate]

    def __str__(self) -> str:
        stops = [
            f"{gate.key} {gate.outcome if gate.value is None else f'{gate.value:.4g}'} "
            f"(limit {gate.limit:g})"
            for gate in self.gates
            if gate.stops
        ]
        return f"{self.status}: {', '.join(stops)}" if stops else self.status

    def __repr__(self) -> str:
        return f"<Verdict {self}>"


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """One direction of a link as it is now, in the units of a topology's keys."""

    rate_bps: int
    queue_bytes: int
    delay_s: float
    jitter_s: float
    loss: float


class Link:
    """A link of a running lab, with its `name`, as in all files of a run, and two `ends`."""

    def __init__(self, name: str, ends: tuple[str, str], ask: Ask) -> None:
        self.name = name
        self.ends = ends
        self._ask = ask

    def __repr__(self) -> str:
        return f"<Link {self.name}>"

    def set(
        self,
        *,
        rate_bps: int | str | None = None,
        delay_s: float | str | None = None,
        jitter_s: float | str | None = None,
        loss: float | None = None,
        queue_bytes: int | str | None = None,
        toward: str | None = None,
    ) -> None:
        """Change the link while it works, without loss; what is not given stays.

        Values may be texts with a unit: `"20Mbit"`, `"5ms"`. The verdict knows of the change.
        `toward` is the end to which the changed direction leads; None: both directions. InputError:
        a value that no link can have, or no such end. LabError: no memory for such a delay.
        """
        changes = by_hand.checked(
            {
                "rate_bps": rate_bps,
                "queue_bytes": queue_bytes,
                "delay_s": delay_s,
                "jitter_s": jitter_s,
                "loss": loss,
            }
        )
        for way in by_hand.ways(self.ends, toward):
            self._ask({"do": "link", "way": way, "changes": changes})

    def settings(self, toward: str | None = None) -> LinkSettings:
        """Return what the direction `toward` an end is set to now; None: both, if they agree."""
        answers = [
            self._ask({"do": "link", "way": way, "changes": {}})[0]["now"]
            for way in by_hand.ways(self.ends, toward)
        ]
        if answers[0] != answers[-1]:
            ends = " or ".join(self.ends)
            raise InputError(f"{self.name}: its directions differ; say toward which end: {ends}")
        return LinkSettings(**answers[0])


class Impairment:
    """An impairment of the experiment, for the body of a `with`, or from `begin` to `end`.

    `effect` is what it did the last time: packets `met` and `dropped`, and details of its kind.
    """

    def __init__(self, name: str, ask: Ask) -> None:
        self.name = name
        self.effect: dict[str, Any] = {}
        self._ask = ask

    def begin(self) -> None:
        """Put it in force; it is when this returns. LabError: it did not begin."""
        self._ask({"do": "begin", "name": self.name})

    def end(self) -> None:
        """End it, or wait until it has ended by itself, as a burst does."""
        answer, _ = self._ask({"do": "end", "name": self.name})
        while answer["active"]:
            time.sleep(_POLL_S)
            answer, _ = self._ask({"do": "end", "name": self.name})
        self.effect = answer["effect"]

    def __enter__(self) -> Impairment:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class _Hosts(dict[str, Host]):
    def __missing__(self, name: str) -> Host:
        raise KeyError(f"host {name!r}: {one_of(str(name), self)}")


class Lab:
    """A running lab. Make one with `from_experiment` or `from_topology`, and use it in a `with`.

    It ends with the block, with `close`, or with this process, however that ends; nothing is left
    behind. Several can run at once, and all methods may be called from any thread. `hosts` has the
    hosts by name, `links` and `impairments` are names, `directory` is the run's, if it has one.
    """

    def __init__(self) -> None:
        self.directory: Path | None = None
        self._place = ExitStack()
        self._lock = threading.Lock()
        self._verdict: Verdict | None = None
        self._end_sandbox: weakref.finalize[Any, Lab] | None = None

    def _begin(self, config: dict[str, Any], *, out: Path | str | None, calibrated: bool) -> Lab:
        config |= {"capture": [], "adjustable": True}
        self._calibrated = calibrated
        try:
            if out is not None:
                if not calibrated:
                    raise InputError("out: a run directory is of a lab that is calibrated")
                place = run_directory.RunDirectory(Path(out).absolute())
                self._finished = place.path
                self.directory = self._place.enter_context(place.open(config))
                privileges.hand_over_below(self.directory)
            description = self._start(config)
        except BaseException as error:
            self._close(error)
            raise
        self.hosts: Mapping[str, Host] = self._hosts(description["hosts"])
        self._links = {name: (first, second) for name, first, second in description["links"]}
        self.links: list[str] = list(self._links)
        self.impairments: list[str] = description["impairments"]
        return self

    @classmethod
    def from_experiment(
        cls,
        name: str | Path,
        *,
        overrides: Sequence[str] = (),
        arm: str | None = None,
        seed: int | None = None,
        out: Path | str | None = None,
        calibrated: bool = True,
    ) -> Lab:
        """The lab of an experiment's run. Nothing trains in it.

        Args:
            name: an experiment that comes with the project, or the path of a YAML file.
            overrides: `key.path=value`, as `--set` of the command line.
            arm: of the run; None: the experiment's first.
            seed: the same.
            out: the run directory to make, beside what is there already; None: none is kept.
            calibrated: whether every link is measured first, which takes seconds; else `verdict`
                and `out` are errors.

        InputError: a value is wrong. LabError: this machine cannot build it; see `./lab check`.
        """
        from testbed import experiment

        if isinstance(overrides, str):
            raise InputError(
                f"overrides: {shown(overrides)}: must be a list of `KEY=VALUE`, such as "
                "['topology.workers=5']"
            )
        first, *_ = experiment.load(
            str(name),
            overrides=[*overrides, *([] if seed is None else [f"seeds=[{seed}]"])],
            arms=[] if arm is None else [arm],
        )
        return cls()._begin(first.config(), out=out, calibrated=calibrated)

    @classmethod
    def from_topology(
        cls,
        topology: Mapping[str, Any] | str,
        *,
        impairments: Sequence[Mapping[str, Any]] = (),
        seed: int = 1,
        out: Path | str | None = None,
        calibrated: bool = True,
    ) -> Lab:
        """The lab of a topology alone.

        Args:
            topology: its name, or a mapping, as in an experiment's `topology` section.
            impairments: those that `impair` can begin: mappings as in an experiment, such as
                `{"kind": "loss", "host": "server", "q": 0.5}`, by default called by kind and place,
                here `loss-server`. Their anchors do not count: the script says when.
            seed: of whatever is drawn at random.
            out: as of `from_experiment`, which also says what is raised.
            calibrated: the same.
        """
        config = of_topology(topology, impairments=impairments, seed=seed)
        return cls()._begin(config, out=out, calibrated=calibrated)

    def link(self, first: str, second: str = "") -> Link:
        """Return the link between two nodes, or of a name as `s1--worker-1`; or InputError."""
        link_name = f"{first}--{second}" if second else first
        for name, ends in self._links.items():
            if set(link_name.split("--")) == set(ends):
                return Link(name, ends, self._ask)
        raise InputError(f"link {link_name!r}: {one_of(link_name, self._links)}")

    def impair(self, name: str) -> Impairment:
        """Return an impairment of the experiment, by name; InputError: there is none."""
        if name not in self.impairments:
            valid = one_of(name, self.impairments) if self.impairments else "this lab has none"
            raise InputError(f"impairment {name!r}: {valid}")
        return Impairment(name, self._ask)

    def samples(self) -> Samples:
        """Return what was sampled of queues, flows and processes so far."""
        import polars as pl

        _, files = self._ask({"do": "samples"})
        with ExitStack() as opened:
            streams = [opened.enter_context(os.fdopen(file, "rb")) for file in files]
            queues, flows, processes = map(pl.read_parquet, streams)
        return Samples(queues=queues, flows=flows, processes=processes)

    def verdict(self) -> Verdict:
        """Judge all that happened in the lab so far; with this, sampling ends.

        A lab with a run directory is judged at its end if not before. InputError: the lab is not
        `calibrated`. LabError: a part of the lab has failed.
        """
        if self._verdict is None:
            answer, _ = self._ask({"do": "verdict"})
            gates = [Gate(**gate) for gate in answer["gates"]]
            reasons = [gate.sentence() for gate in gates if gate.stops]
            self._verdict = Verdict(status=answer["status"], reasons=reasons, gates=gates)
        return self._verdict

    def close(self) -> None:
        """End the lab and all programs in it. LabError: what is to be kept cannot be judged."""
        self._close(None)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._close(error)

    def __repr__(self) -> str:
        names = ", ".join(getattr(self, "hosts", ()))
        return f"<Lab {'of' if self._is_alive else 'that has ended, of'} {names}>"

    def _hosts(self, addresses: Mapping[str, str]) -> Mapping[str, Host]:
        hosts = ((name, Host(name, address, self._ask)) for name, address in addresses.items())
        return MappingProxyType(_Hosts(hosts))

    @property
    def _is_alive(self) -> bool:
        return self._end_sandbox is not None and self._end_sandbox.alive

    def _start(self, config: dict[str, Any]) -> dict[str, Any]:
        try:
            self._box = sandbox.start("testbed.scripting.inside", outlives_thread=True)
        except FileNotFoundError as error:
            raise LabError(f"{error.filename}: not installed; see ./lab check") from None
        self._end_sandbox = weakref.finalize(self, _end, self._box, os.getpid())
        directory = None if self.directory is None else str(self.directory)
        order = {"config": config, "directory": directory, "calibrated": self._calibrated}
        script = os.pidfd_open(os.getpid())
        try:
            return dict(self._ask(order, [script])[0])
        finally:
            os.close(script)

    def _ask(self, request: dict[str, Any], files: Sequence[int] = ()) -> tuple[Any, list[int]]:
        """Ask the server; InputError for a wrong request, LabError for what cannot be done."""
        try:
            with self._lock:
                return self._box.ask(request, files)
        except EndedError as error:
            raise LabError(f"the lab has ended: {error}".removesuffix(": ")) from None
        except SandboxError as error:
            raise LabError(str(error)) from None

    def _close(self, error: BaseException | None) -> None:
        """End everything; `error` is what ended the script's use of the lab."""
        unjudged = None
        try:
            if self.directory is not None and error is None and self._is_alive:
                self.verdict()
        except (LabError, InputError) as failed:
            error = unjudged = failed
        if self._end_sandbox is not None:
            self._end_sandbox()
        if self.directory not in (None, getattr(self, "_finished", None)):
            if not (self.directory / "status.json").exists():
                interrupted = isinstance(error, KeyboardInterrupt)
                reason = failure.in_words(error) if error is not None else ""
                run_directory.write_status(
                    self.directory, "interrupted" if interrupted else "failed", reason
                )
            privileges.hand_over_below(self.directory)
            self._place.close()
            self.directory = self._finished
        if unjudged is not None:
            raise unjudged


def _end(box: Sandbox, owner: int) -> None:
    """End a sandbox, in the process that has started it and not in what that has forked."""
    if os.getpid() == owner:
        box.stop()


def of_topology(
    topology: Mapping[str, Any] | str,
    *,
    impairments: Sequence[Mapping[str, Any]],
    seed: int,
) -> dict[str, Any]:
    """Return the configuration of a lab in which nothing is set but its network."""
    parameters = _parameters(topology)
    try:
        built = topologies.build(parameters)
    except ValueError as error:
        raise InputError(f"topology: {error}") from None
    places = impairment_plan.Places.of(built, built.hosts())
    try:
        entries = _ENTRIES.validate_python(_anchored(impairments))
        resolved = impairment_plan.resolve(entries, places, rounds=len(entries), seed=seed)
    except ValidationError as error:
        raise problems.input_error(error, ImpairmentParameters, "impairments.") from None
    except ValueError as error:
        raise InputError(str(error)) from None
    own = own_code.places([parameters.name, *(entry.kind for entry in entries)])
    document = {
        "experiment": _NAME,
        "arm": _NAME,
        "seed": seed,
        "factors": {},
        "code": {place: own_code.fingerprint(place) for place in own},
        "topology": parameters.model_dump(mode="json"),
        "impairments": resolved,
        "limits": Limits().model_dump(mode="json"),
        # Nothing of ours is transported.
        "protocol": {"carrier": "none"},
        "rounds": len(entries),
    }
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    return {"schema": 1, "key": f"{_NAME}-{digest[:10]}", **document}


def _anchored(impairments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give each entry an anchor of its own, so that none contradicts another."""
    if isinstance(impairments, str | Mapping) or not all(
        isinstance(impairment, Mapping) for impairment in impairments
    ):
        raise InputError(
            f"impairments: {shown(impairments)}: must be a list of mappings, such as "
            "[{'kind': 'loss', 'host': 'server', 'q': 0.5}]"
        )
    return [
        {key: value for key, value in units.converted(impairment).items() if key not in _ANCHORS}
        | {"rounds": [number], "leg": "round"}
        for number, impairment in enumerate(impairments)
    ]


def _parameters(topology: Mapping[str, Any] | str) -> TopologyParameters:
    if isinstance(topology, str):
        topology = {"name": topology}
    try:
        if not isinstance(topology, Mapping):
            kind = type(topology).__name__
            raise InputError(f"{kind}: valid: a topology's keys, or a name")
        parameters = topologies.parse(units.converted(topology))
    except ValidationError as error:
        raise problems.input_error(error, topologies.TopologyParameters, "topology.") from None
    except ValueError as error:
        raise InputError(f"topology: {error}") from None
    if parameters.workers > MOST_LAB_WORKERS:
        wrong = f"topology.workers: {parameters.workers}"
        raise InputError(f"{wrong}; valid: 1 to {MOST_LAB_WORKERS}")
    return parameters
