"""The common keys of all impairments: their target, when they occur, and for how long."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from testbed.shared import own_code
from testbed.shared.input_error import shown

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


class _Repetition(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True
    )


class _OfRounds(_Repetition):
    """Rounds from `from` to `until`, both included."""

    from_: int = Field(default=0, ge=0, alias="from", description="the first round it may hit")
    until: int | None = Field(default=None, ge=0, description="the last one; default: of the run")

    @model_validator(mode="after")
    def _is_not_empty(self) -> _OfRounds:
        if self.until is not None and self.until < self.from_:
            raise ValueError(f"no round from {self.from_} until {self.until}; valid: until >= from")
        return self

    def candidates(self, rounds: int) -> range:
        last = rounds - 1 if self.until is None else self.until
        return range(self.from_, last + 1)


class EveryRounds(_OfRounds):
    """Each `every`-th round."""

    every: int = Field(ge=1, description="rounds from one to the next")

    def hit(self, rounds: int, seed: str) -> list[int]:
        return list(self.candidates(rounds)[:: self.every])


class RandomRounds(_OfRounds):
    """A number of distinct rounds, drawn with the run's seed."""

    random: int = Field(ge=1, description="how many are drawn")

    def hit(self, rounds: int, seed: str) -> list[int]:
        candidates = self.candidates(rounds)
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


def _form(value: Any) -> str | None:
    if isinstance(value, list | tuple):
        return "list"
    for name in ("every", "random"):
        if (isinstance(value, dict) and name in value) or hasattr(value, name):
            return name
    return None


def _wrong(what: str) -> Discriminator:
    message = f"must be a list of {what}"
    return Discriminator(_form, custom_error_type="repetition", custom_error_message=message)


Round = Annotated[int, Field(ge=0)]
Instant = Annotated[float, Field(ge=0, le=1e6)]

Rounds = Annotated[
    Annotated[list[Round], Field(min_length=1), Tag("list")]
    | Annotated[EveryRounds, Tag("every")]
    | Annotated[RandomRounds, Tag("random")],
    _wrong(
        "round numbers, {every: ..., from: ..., until: ...} or {random: COUNT, from: ..., "
        "until: ...}"
    ),
]
Instants = Annotated[
    Annotated[list[Instant], Field(min_length=1, max_length=_MOST_INSTANTS), Tag("list")]
    | Annotated[EverySeconds, Tag("every")],
    _wrong("seconds, or {every: ..., from: ..., until: ...}"),
]


def resolve_rounds(
    repetition: list[int] | EveryRounds | RandomRounds, rounds: int, seed: str
) -> list[int]:
    """The rounds in order."""
    if isinstance(repetition, list):
        hit, until = sorted(repetition), None
    else:
        hit, until = repetition.hit(rounds, seed), repetition.until
    last = max(hit[-1] if hit else getattr(repetition, "from_", 0), until or 0)
    if last >= rounds or not hit:
        raise ValueError(f"rounds: round {last} is never reached; valid: 0 to {rounds - 1}")
    if len(hit) > _MOST_HIT_ROUNDS:
        raise ValueError(f"rounds: hits {len(hit):,} rounds; valid: up to {_MOST_HIT_ROUNDS:,}")
    return hit


def _ends(given: Any) -> Any:
    """The two nodes of a link that is named as logs name it: `a--b`, or `a->b`."""
    if not isinstance(given, str):
        return given
    first, _, second = given.partition("--" if "--" in given else "->")
    if not first.strip() or not second.strip():
        raise ValueError("valid: [a, b], or a--b, which is the same: the direction from a to b")
    return first.strip(), second.strip()


LinkEnds = Annotated[
    tuple[str, str], BeforeValidator(_ends, json_schema_input_type=tuple[str, str] | str)
]


class ImpairmentParameters(BaseModel):
    """The keys that all kinds have. A kind adds its own, and may give `duration_s` a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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
    link: LinkEnds | None = Field(
        default=None,
        description="in place of host: `[a, b]`, or `a--b`: the direction from node a to node b",
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
        """In which directions of its link (or a host's own link) it changes the rate."""
        return ""

    @property
    def changes_middle(self) -> Collection[str]:
        """Which of delay_s, jitter_s and loss of its direction it changes."""
        return ()

    def longest_wait_s(self, link: Mapping[str, Any]) -> float:
        """The longest time that packets wait in its link (as configured), if it changes that."""
        return 0.0

    def check_link(self, link: Mapping[str, Any]) -> None:
        """Raises ValueError, which begins with the key, if it does not fit its link's
        configured `rate_bps`, `delay_s` and `jitter_s`."""

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
        """What this machine lacks for it in a network with these `hosts`, as the reason of the
        verdict *unsupported*; None: nothing."""
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
        """Whether this leg of this round is one of its anchors; for resolved entries only."""
        assert self.rounds is None or isinstance(self.rounds, list)
        return self.rounds is not None and round_number in self.rounds and leg in self.legs

    def resolved(self, *, seed: int, rounds: int) -> dict[str, Any]:
        """The entry as plain data, with lists instead of periods and draws, as in `config.json`.

        A draw depends on the run's seed and the entry's label, so all arms of a seed get the same.

        Raises:
            ValueError: a round that is never reached.
        """
        document = self.model_dump(mode="json", exclude_none=True)
        document["name"] = self.label
        if self.rounds is not None:
            document["rounds"] = resolve_rounds(self.rounds, rounds, f"{seed}/{self.label}")
        if self.at_s is not None:
            given = self.at_s
            instants = given.instants() if isinstance(given, EverySeconds) else sorted(given)
            document["at_s"] = instants
            del document["leg"], document["offset_s"]
        if self.link is not None:
            del document["host"]
        if self.duration_s is not None or not self.lasts:
            del document["at_most_s"]
        return document
