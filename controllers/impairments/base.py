"""The base of all kinds of impairments: keys in YAML, begin, end, measured effect, the lab."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from testbed.lab.link_control import LinkControl
from testbed.lab.loss_table import LossTable
from testbed.lab.network import HostInfo
from testbed.shared import own_code, units
from testbed.shared.input_error import shown
from testbed.shared.problems import Section

LONGEST_S = 3600.0
_MOST_INSTANTS = 10_000
_MOST_HIT_ROUNDS = 100_000
# It may begin as late as limits.impairment_late_s lets it by default, and ends as much later.
_LATE_S = 0.01
LEGS_OF = {
    "gather": ("gather",),
    "broadcast": ("broadcast",),
    "both": ("gather", "broadcast"),
    "round": ("round",),
}
RateBps = Annotated[int, Field(ge=10_000, le=100_000_000_000)]

# When it occurs


class _Repetition(Section):
    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


class SomeRounds(_Repetition):
    """Every `every`-th of the rounds `from` to `until`, or `random` ones, drawn with the seed."""

    from_: int = Field(default=0, ge=0, alias="from", description="the first round it may hit")
    until: int | None = Field(default=None, ge=0, description="the last one; default: of the run")
    every: int | None = Field(default=None, ge=1, description="rounds from one to the next")
    random: int | None = Field(default=None, ge=1, description="how many are drawn instead")

    @model_validator(mode="after")
    def _is_not_empty(self) -> SomeRounds:
        if (self.every is None) == (self.random is None):
            raise ValueError("needs either every or random")
        if self.until is not None and self.until < self.from_:
            raise ValueError(f"no round from {self.from_} until {self.until}; valid: until >= from")
        return self

    def resolved(self, rounds: int, seed: str) -> list[int]:
        last = rounds - 1 if self.until is None else self.until
        candidates = range(self.from_, last + 1)
        if self.random is None:
            return list(candidates[:: self.every])
        if self.random > len(candidates):
            raise ValueError(
                f"rounds.random: {self.random}: there are only {len(candidates)} rounds to "
                "draw from"
            )
        return sorted(random.Random(seed).sample(candidates, self.random))


class EverySeconds(_Repetition):
    """At `from`, then each `every` seconds, up to and including `until`."""

    unit_of: ClassVar[str] = "at_s"  # the key whose unit the numbers have
    from_: float = Field(
        default=0.0, ge=0, le=1e6, alias="from", description="seconds after the first round's begin"
    )
    until: float = Field(gt=0, le=1e6, description="seconds after the first round's begin")
    every: float = Field(gt=0, le=1e6, description="seconds from one to the next")

    @model_validator(mode="after")
    def _is_not_empty(self) -> EverySeconds:
        if self.until <= self.from_:
            raise ValueError(f"nothing from {self.from_:g} until {self.until:g} s")
        return self

    def instants(self) -> list[float]:
        count = int((self.until - self.from_) / self.every + 1e-9) + 1
        if count > _MOST_INSTANTS:
            raise ValueError(f"at_s.every: {count} instants; valid: up to {_MOST_INSTANTS}")
        return [round(self.from_ + number * self.every, 9) for number in range(count)]


def _list_or(keys: set[str], forms: str) -> Discriminator:
    """Tell a list from a mapping that has one of some keys."""

    def form(value: Any) -> str | None:
        if isinstance(value, list | tuple):
            return "list"
        has_key = isinstance(value, Mapping) and not keys.isdisjoint(value)
        return "mapping" if has_key or isinstance(value, _Repetition) else None

    message = f"must be a list of {forms}"
    return Discriminator(form, custom_error_type="repetition", custom_error_message=message)


Round = Annotated[int, Field(ge=0)]
Rounds = Annotated[
    Annotated[list[Round], Field(min_length=1), Tag("list")]
    | Annotated[SomeRounds, Tag("mapping")],
    _list_or(
        {"every", "random"},
        "round numbers, {every: ..., from: ..., until: ...} or {random: COUNT, from: ..., "
        "until: ...}",
    ),
]
Instant = Annotated[float, Field(ge=0, le=1e6)]
Instants = Annotated[
    Annotated[list[Instant], Field(min_length=1, max_length=_MOST_INSTANTS), Tag("list")]
    | Annotated[EverySeconds, Tag("mapping")],
    _list_or({"every"}, "seconds, or {every: ..., from: ..., until: ...}"),
]


def _resolved_rounds(choice: list[int] | SomeRounds, rounds: int, seed: str) -> list[int]:
    if isinstance(choice, list):
        hit, first, until = sorted(choice), 0, 0
    else:
        hit, first, until = choice.resolved(rounds, seed), choice.from_, choice.until or 0
    last = max(hit[-1] if hit else first, until)
    if last >= rounds or not hit:
        raise ValueError(f"rounds: round {last} is never reached; valid: 0 to {rounds - 1}")
    if len(hit) > _MOST_HIT_ROUNDS:
        raise ValueError(f"rounds: hits {len(hit):,} rounds; valid: up to {_MOST_HIT_ROUNDS:,}")
    return hit


class ImpairmentParameters(Section):
    """The keys that all kinds have. A kind adds its own, and may give `duration_s` a default."""

    allowed_targets: ClassVar[tuple[str, ...]] = ("host", "link")
    """The keys that may name its target."""
    both_ways: ClassVar[bool] = False
    """Whether it acts on both directions of a link, whichever the entry names."""
    acts_at_sending_switch: ClassVar[bool] = False
    """Whether it acts where a switch sends; a link's first node must then be a switch."""
    exclusive: ClassVar[bool] = True
    """Whether two entries of this kind must not be in force on one target at the same time."""
    lasts: ClassVar[bool] = True
    """Whether it has a duration. An instantaneous kind (crash) ends when it has begun."""
    acts_on_process: ClassVar[bool] = False
    """Whether it acts on the process of the workload on `host`, which must have one."""
    of_our_transport: ClassVar[bool] = False
    """Whether it needs the training's own transport: with programs, and with TCP, there is none."""

    kind: str
    name: str = Field(default="", max_length=100, description="the name in logs and figures")
    host: str = Field(default="server", description="the victim: a host of the topology")
    link: tuple[str, str] | None = Field(
        default=None, description="in place of host: `[a, b]`, the direction from node a to node b"
    )
    rounds: Rounds | None = Field(
        default=None, description="the rounds that it hits, counted from 0"
    )
    leg: Literal["gather", "broadcast", "both", "round"] = Field(
        default="gather", description="the part of a round that it begins with"
    )
    offset_s: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="how long after the begin of its leg or round it begins",
    )
    at_s: Instants | None = Field(
        default=None,
        description="when it begins, in place of rounds: seconds after the first round began",
    )
    duration_s: float | None = Field(
        default=None,
        gt=0,
        le=LONGEST_S,
        description="how long it lasts; none: to the end of its leg or round",
    )
    at_most_s: float = Field(
        default=2.0,
        gt=0,
        le=600,
        description="ends after this time even if the leg does not; a reliable transport would "
        "otherwise lengthen the very burst that it suffers from",
    )

    @property
    def sets_rate(self) -> Literal["one way", "both ways", ""]:
        """The directions of its link (or a host's own link) whose rate it changes."""
        return ""

    @property
    def changes_middle(self) -> Collection[str]:
        """The keys among delay_s, jitter_s and loss of its direction that it changes."""
        return ()

    def longest_wait_s(self, link: Mapping[str, Any]) -> float:
        """The longest time that packets wait in its link (as configured), if it changes that."""
        return 0.0

    def check_link(self, link: Mapping[str, Any]) -> None:
        """Raise ValueError, which begins with the key, if its link does not allow it."""

    @model_validator(mode="after")
    def _target_is_one(self) -> ImpairmentParameters:
        if {"host", "link"} <= self.model_fields_set and self.link is not None:
            raise ValueError("host and link exclude each other")
        named = "link" if self.link is not None else "host"
        if named not in self.allowed_targets:
            raise ValueError(f"{named}: kind {self.kind} takes {' or '.join(self.allowed_targets)}")
        if self.link is not None and self.link[0] == self.link[1]:
            raise ValueError(f"link: must name two different nodes, not {self.link[0]!r} twice")
        return self

    @model_validator(mode="after")
    def _anchor_is_one(self) -> ImpairmentParameters:
        if self.rounds is not None and self.at_s is not None:
            raise ValueError("has both rounds and at_s; valid: one of them")
        if self.rounds is None and self.at_s is None:
            raise ValueError("needs one anchor: either rounds (with leg) or at_s")
        if isinstance(self.rounds, list) and len(set(self.rounds)) != len(self.rounds):
            raise ValueError(f"rounds: {shown(self.rounds)}: must be distinct round numbers")
        if self.at_s is not None:
            for key in sorted({"leg", "offset_s"} & self.model_fields_set):
                raise ValueError(f"{key}: belongs to rounds, not to at_s")
            if self.duration_s is None and self.lasts:
                raise ValueError("duration_s: this key is missing; at_s needs it")
        if self.duration_s is not None and "at_most_s" in self.model_fields_set:
            raise ValueError("at_most_s: has no meaning where there is duration_s")
        return self

    @model_validator(mode="after")
    def _instants_are_apart(self) -> ImpairmentParameters:
        apart_s = self.longest_s + _LATE_S  # so that one has ended before the next begins
        valid = f"it lasts {self.longest_s:g} s; valid: {apart_s:g} s apart or more"
        if isinstance(self.at_s, list):
            for before, after in itertools.pairwise(sorted(self.at_s)):
                if after - before < apart_s - 1e-6:
                    raise ValueError(f"at_s: {before:g} and {after:g} overlap, or nearly: {valid}")
        elif self.at_s is not None and self.at_s.every < apart_s - 1e-6:
            raise ValueError(f"at_s.every: {self.at_s.every:g}: {valid}")
        return self

    @property
    def label(self) -> str:
        """The name in logs and figures."""
        return self.name or f"{own_code.short(self.kind)}-{self.target}"

    @property
    def target(self) -> str:
        """The target in words: a host's name, or `a->b` for a link's direction."""
        return self.host if self.link is None else f"{self.link[0]}->{self.link[1]}"

    @property
    def hosts_named(self) -> dict[str, str]:
        """The hosts that it names, by key."""
        return {} if self.link is not None else {"host": self.host}

    def lacking(self, hosts: Collection[str]) -> str | None:
        """The reason of the verdict *unsupported*, if this machine lacks something for it."""
        return None

    @property
    def legs(self) -> tuple[str, ...]:
        """The legs (or the round) whose begins are its anchors; empty for `at_s`."""
        return LEGS_OF[self.leg] if self.rounds is not None else ()

    @property
    def longest_s(self) -> float:
        """The longest time that it may be in force."""
        if not self.lasts:
            return 0.0
        return self.at_most_s if self.duration_s is None else self.duration_s

    def hits(self, round_number: int, leg: str) -> bool:
        """Tell whether this leg of this round is one of its anchors; of resolved entries only."""
        assert self.rounds is None or isinstance(self.rounds, list)
        return self.rounds is not None and round_number in self.rounds and leg in self.legs

    def resolved(self, *, seed: int, rounds: int) -> dict[str, Any]:
        """Make plain data, as in `config.json`, with lists instead of periods and draws.

        A draw depends on the run's seed and the entry's label, so all arms of a seed get the same.
        ValueError: a round that is never reached.
        """
        document = self.model_dump(mode="json", exclude_none=True)
        document["name"] = self.label
        if self.rounds is not None:
            document["rounds"] = _resolved_rounds(self.rounds, rounds, f"{seed}/{self.label}")
        if self.at_s is not None:
            at_s = self.at_s
            document["at_s"] = at_s.instants() if isinstance(at_s, EverySeconds) else sorted(at_s)
            del document["leg"], document["offset_s"]
        if self.link is not None:
            del document["host"]
        if self.duration_s is not None or not self.lasts:
            del document["at_most_s"]
        return document


# What it does, and what of the lab it may use

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


STILL_IN_FORCE = "still_in_force"  # the detail of what was skipped since the one before went on


class ArrivalFilter(Protocol):
    """Loses the packets of a table where they arrive, while it is in force."""

    def lose(self, *, data_ports: tuple[int, int] | None, occurrence: int) -> None:
        """Lose those of this occurrence that go to these ports; None: all of IPv4."""

    def clear(self) -> None:
        """Lose no more."""

    def take(self) -> tuple[int, int]:
        """Take the numbers of packets that it has met and dropped since the last call."""


class LabAccess(ABC):
    """The lab, as far as an impairment may use it; `./lab simulate` has a class of its own.

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
        self.hosts = {name: HostInfo(**fields) for name, fields in network["hosts"].items()}
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
    def arrival_filter(self, sender: str, receiver: str, table: LossTable) -> ArrivalFilter:
        """Make a filter that loses the packets of a table as they arrive from a neighbour."""

    def barrier(self, switch: str) -> None:
        """Wait until the switch has processed everything; ConnectionError: it refused a message."""
        raise NotImplementedError

    def set_port(self, switch: str, port: int, *, up: bool) -> None:
        """Take a port down or up (OpenFlow port-mod); a constructor must have set it up."""
        raise NotImplementedError

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
    """The built-in kind as which the accounts of lost packets read its effect; empty: none.

    `burst`: `frames_sent` left its switch port. `loss`: `dropped` of `met` at the
    receiving end, as the `model` of its parameters says. `sender-drop`: the same, but they never
    left. `link-down`: queues were emptied. `crash`: it killed a process of the workload.
    """
    changes_rates: ChangesRates = "anywhere"
    """The links that may have another rate than the configured one while it is in force.

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
        """Do what is due; return after how many seconds to call it again (None: a millisecond)."""
        return None

    @abstractmethod
    def end(self) -> None:
        """End it; it is no longer in force when this returns."""

    def effect(self) -> Effect:
        """The effect since its last begin, measured after its end."""
        return Effect()


_LARGEST_BYTES = 64 << 20


def lines_of_file(name: str, folders: Sequence[Path]) -> list[tuple[str, str]]:
    """Read the lines of a named file, without comments, each with its place: `FILE: line N`."""
    file = own_code.find_file(name, folders)
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            raise ValueError(f"{name}: valid: up to {units.size_in_words(_LARGEST_BYTES)}")
        text = file.read_text(encoding="utf-8-sig")  # some tables begin with a byte order mark
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name}: is no text in UTF-8") from None
    kept = (
        (f"{name}: line {number}", line.partition("#")[0].strip())
        for number, line in enumerate(text.splitlines(), 1)
    )
    lines = [(place, line) for place, line in kept if line]
    if not lines:
        raise ValueError(f"{name}: is empty")
    return lines
