"""The interface of an impairment: parameters from YAML, a begin, an end, and a measured effect."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from controllers.impairments.parameters import ImpairmentParameters
from testbed.lab.link_control import LinkControl
from testbed.lab.loss_table import LossTable
from testbed.lab.network import HostInfo, hosts_from_json
from testbed.shared import own_code, sizes

_LARGEST_BYTES = 64 << 20
ParametersT = TypeVar("ParametersT", bound=ImpairmentParameters)
T = TypeVar("T")
ChangesRates = Literal["no", "target", "anywhere", "recorded"]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The measured effect of an impairment; None where a value does not apply.

    Attributes:
        met: what it could act on, dropped or not: packets that crossed its place, frames that it
            added, stops of a process. A run with an impairment that met nothing is invalid.
        dropped: packets that it dropped or, for a burst, its own frames that found the queue full.
        frames_sent: frames that it added to the network.
        details: further measurements by name, with units in the names.
    """

    met: int | None = None
    dropped: int | None = None
    frames_sent: int | None = None
    details: Mapping[str, float | int | str] = field(default_factory=dict)


NOT_MEASURED = "not_measured"  # the detail of an effect that is not known: why
STILL_IN_FORCE = "still_in_force"  # the detail of what was skipped since the one before went on


class NotMeasuredError(RuntimeError):
    """An effect cannot be told; the message says why, in one line."""


@dataclass(frozen=True, kw_only=True)
class MeterCounts:
    """Packets and bytes that reached a meter, and packets that it dropped."""

    packets: int
    size_bytes: int
    dropped: int


@dataclass(frozen=True, kw_only=True)
class Metering:
    """Meters matching packets of a switch before they are forwarded; with `drop` none of them is.

    `number` is that of `prepare_meter`. What also matches one of `spared` passes by. Of two for a
    packet, that with the larger `above` wins. Those that match `in_port` come first; packets that
    they pass then meet the others.
    """

    switch: str
    match: Mapping[str, Any]
    number: int
    rate_bps: int
    burst_bytes: int
    drop: bool = False
    above: int = 0
    spared: Sequence[Mapping[str, Any]] = ()


class ArrivalFilter(Protocol):
    """Loses the packets of a table where they arrive, while it is in force."""

    def lose(self, *, data_ports: tuple[int, int] | None, occurrence: int) -> None:
        """From now on, those of this occurrence that go to these ports; None: all of IPv4."""

    def clear(self) -> None:
        """No longer."""

    def take(self) -> tuple[int, int]:
        """How many packets it has met and dropped since it was asked last."""


class LabAccess(ABC):
    """What an impairment may ask of the lab; `./lab simulate` has another class for its network.

    No method blocks the controller. Those that are not abstract are not there in virtual time.

    Attributes:
        network: the lab's description (`LabInfo.as_json`): hosts, switches, links.
        hosts: the hosts by name.
        links: changes rates, queues and delays of links while they work.
        records: the folder for files of their own: that of the log of impairments.
        shared: the folder for what the run's processes share; it is gone when the run is over.
        processes: the id of the workload's process on each host, once it has begun.
    """

    def __init__(
        self, network: Mapping[str, Any], links: LinkControl, *, records: Path, shared: Path
    ) -> None:
        self.network = network
        self.hosts: Mapping[str, HostInfo] = hosts_from_json(dict(network))
        self.links = links
        self.records = records
        self.shared = shared
        self.processes: dict[str, int] = {}
        self._numbers = itertools.count(1)

    def unique(self) -> int:
        """A small number that no other impairment of this controller has; the first is 1."""
        return next(self._numbers)

    @abstractmethod
    def now_s(self) -> float:
        """The time, in seconds of the clock by which the run's events are logged."""

    @abstractmethod
    def sleep(self, duration_s: float) -> None:
        """Wait, while the controller does other work."""

    @abstractmethod
    def barrier(self, switch: str) -> None:
        """Return when the switch, once it is connected, has processed everything sent before.

        Raises:
            ConnectionError: the switch refused one of this impairment's messages.
        """

    @abstractmethod
    def set_port(self, switch: str, port: int, *, up: bool) -> None:
        """Take a port down or up (OpenFlow port-mod); a constructor must have set it up."""

    @abstractmethod
    def arrival_filter(self, sender: str, receiver: str, table: LossTable) -> ArrivalFilter:
        """What loses the packets of a table as they arrive at a node from its neighbour."""

    @abstractmethod
    def prepare_meter(self, switch: str, match: Mapping[str, Any]) -> int:
        """The number of a meter for these packets; one of `unique`. Call it in a constructor."""

    @abstractmethod
    def meter_flow(self, metering: Metering) -> None:
        """Begin to meter."""

    @abstractmethod
    def end_metering(self, switch: str, number: int) -> None:
        """Let all packets pass. The meter counts on, what the switch still sends by its cache."""

    @abstractmethod
    def meter_counts(self, switch: str, number: int) -> MeterCounts:
        """The packets that reached the meter, and those that it dropped: exactly, unlike a flow
        entry's counts, which Open vSwitch updates twice a second.

        Raises:
            NotMeasuredError: the switch has forgotten them, or does not answer.
        """

    @abstractmethod
    def remove_meter(self, switch: str, number: int) -> None:
        """Remove a meter."""

    def readable(self, descriptor: int, timeout_s: float | None) -> bool:
        """Wait until a file descriptor is readable; return False after the timeout."""
        raise NotImplementedError

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in a green thread of its own."""
        raise NotImplementedError

    def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a blocking function in a thread of the operating system; return its result."""
        raise NotImplementedError


class Impairment(ABC, Generic[ParametersT]):
    """One entry of the timeline, constructed and prepared before training.

    `begin` returns once it is in force (its acknowledged time is taken then), `end` once it has
    ended. An exception from any of them fails the run.
    """

    ticks: ClassVar[bool] = False  # whether `tick` is called
    counts_as: ClassVar[str] = ""
    """As which built-in kind the run's accounts of lost packets read its effect; empty: none.

    `burst`: `frames_sent` left its switch port. `loss`: `dropped` of `met` at the
    receiving end, as the `model` of its parameters says. `sender-drop`: the same, but they never
    left. `police`, `blackout`: `dropped` by a meter or flow entry. `link-down`: queues were
    emptied. `crash`: it killed a process of the workload.
    """
    changes_rates: ChangesRates = "anywhere"
    """Which links may have another rate than the configured one while it is in force.

    Their rates are not judged meanwhile. `no`: none. `target`: those at its target, which is a
    node, or that between `a->b`. `anywhere`: it is not known. `recorded`: links are judged by the
    rates that it wrote to `traces.jsonl`, as `trace`.
    """

    def __init__(self, parameters: ParametersT, lab: LabAccess) -> None:
        self.parameters = parameters
        self.lab = lab

    def prepare(self) -> None:
        """Start what waits for the first `begin`, such as a process on a host."""

    @abstractmethod
    def begin(self) -> None:
        """Put it in force."""

    def tick(self, elapsed_s: float) -> float | None:
        """Do what is due now, `elapsed_s` after the begin was acknowledged; return in how many
        seconds it is to be called again (None: in about a millisecond)."""
        return None

    @abstractmethod
    def end(self) -> None:
        """End it; it is no longer in force when this returns."""

    def effect(self) -> Effect:
        """The effect since its last begin, measured after its end; NotMeasuredError: unknown."""
        return Effect()


def lines_of_file(name: str, folders: Sequence[Path]) -> list[tuple[str, str]]:
    """The lines of a named file that say something, each with its place: `FILE: line N`."""
    file = own_code.find_file(name, folders)
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            raise ValueError(f"{name}: valid: up to {sizes.in_words(_LARGEST_BYTES)}")
        text = file.read_text(encoding="utf-8-sig")  # some tables begin with a byte order mark
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name}: is no text in UTF-8") from None
    kept = (
        (f"{name}: line {number}", line.partition("#")[0].strip())
        for number, line in enumerate(text.splitlines(), 1)
    )
    if not (found_lines := [(place, line) for place, line in kept if line]):
        raise ValueError(f"{name}: is empty")
    return found_lines
