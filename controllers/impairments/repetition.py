"""When an impairment occurs: listed, periodic, or drawn with a seed; in rounds or in seconds."""

from __future__ import annotations

import random
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

_MOST_INSTANTS = 10_000
_MOST_HIT_ROUNDS = 100_000


class _Repetition(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True
    )


class _OfRounds(_Repetition):
    from_: int = Field(default=0, ge=0, alias="from", description="the first round it may hit")
    until: int | None = Field(default=None, ge=0, description="the last one; default: of the run")

    @model_validator(mode="after")
    def _is_not_empty(self) -> _OfRounds:
        if self.until is not None and self.until < self.from_:
            raise ValueError(f"no round from {self.from_} until {self.until}; valid: until >= from")
        return self

    def candidates(self, rounds: int) -> range:
        """All rounds from `from` to `until`, both included."""
        last = rounds - 1 if self.until is None else self.until
        return range(self.from_, last + 1)


class EveryRounds(_OfRounds):
    """Each `every`-th round."""

    every: int = Field(ge=1, description="rounds from one to the next")


class RandomRounds(_OfRounds):
    """A number of distinct rounds, drawn with the run's seed."""

    random: int = Field(ge=1, description="how many are drawn")


class _OfSeconds(_Repetition):
    unit_of: ClassVar[str] = "at_s"  # the key whose unit the numbers have
    from_: float = Field(
        default=0.0, ge=0, le=1e6, alias="from", description="seconds after the first round's begin"
    )
    until: float = Field(gt=0, le=1e6, description="seconds after the first round's begin")

    @model_validator(mode="after")
    def _is_not_empty(self) -> _OfSeconds:
        if self.until <= self.from_:
            raise ValueError(f"nothing from {self.from_:g} until {self.until:g} s")
        return self


class EverySeconds(_OfSeconds):
    """At `from`, then each `every` seconds, up to and including `until`."""

    every: float = Field(gt=0, le=1e6, description="seconds from one to the next")


class RandomSeconds(_OfSeconds):
    """A number of instants, drawn with the run's seed, so far apart that they do not overlap."""

    random: int = Field(ge=1, le=_MOST_INSTANTS, description="how many are drawn")


def _form(value: Any) -> str | None:
    if isinstance(value, list | tuple):
        return "list"
    for name in ("every", "random"):
        if (isinstance(value, dict) and name in value) or hasattr(value, name):
            return name
    return None


def _wrong(what: str) -> Discriminator:
    return Discriminator(
        _form,
        custom_error_type="repetition",
        custom_error_message=f"must be a list of {what}, "
        "{every: ..., from: ..., until: ...} or {random: COUNT, from: ..., until: ...}",
    )


Round = Annotated[int, Field(ge=0)]
Instant = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]

Rounds = Annotated[
    Annotated[list[Round], Field(min_length=1), Tag("list")]
    | Annotated[EveryRounds, Tag("every")]
    | Annotated[RandomRounds, Tag("random")],
    _wrong("round numbers"),
]
Instants = Annotated[
    Annotated[list[Instant], Field(min_length=1, max_length=_MOST_INSTANTS), Tag("list")]
    | Annotated[EverySeconds, Tag("every")]
    | Annotated[RandomSeconds, Tag("random")],
    _wrong("seconds"),
]


def resolve_rounds(
    wanted: list[int] | EveryRounds | RandomRounds, rounds: int, seed: str
) -> list[int]:
    """The rounds in order."""
    if isinstance(wanted, list):
        found = sorted(wanted)
    elif isinstance(wanted, EveryRounds):
        found = list(wanted.candidates(rounds)[:: wanted.every])
    else:
        candidates = wanted.candidates(rounds)
        if wanted.random > len(candidates):
            raise ValueError(
                f"rounds.random: {wanted.random}: there are only {len(candidates)} rounds to "
                "draw from"
            )
        found = sorted(random.Random(seed).sample(candidates, wanted.random))
    last = found[-1] if found else getattr(wanted, "from_", 0)
    until = getattr(wanted, "until", None) or 0
    if max(last, until) >= rounds or not found:
        raise ValueError(
            f"rounds: round {max(last, until)} is never reached; valid: 0 to {rounds - 1}"
        )
    if len(found) > _MOST_HIT_ROUNDS:
        raise ValueError(f"rounds: hits {len(found):,} rounds; valid: up to {_MOST_HIT_ROUNDS:,}")
    return found


def resolve_instants(
    wanted: list[float] | EverySeconds | RandomSeconds,
    seed: str,
    *,
    duration_s: float,
    apart_s: float,
) -> list[float]:
    """The instants in order, in seconds after the first round's begin; ValueError: too many."""
    # Random ones are uniform over all placements in which one is `apart_s` or more after the one
    # before, and the last, which lasts `duration_s`, has ended at `until`.
    if isinstance(wanted, list):
        return sorted(wanted)
    if isinstance(wanted, EverySeconds):
        count = int((wanted.until - wanted.from_) / wanted.every + 1e-9) + 1
        if count > _MOST_INSTANTS:
            raise ValueError(f"at_s.every: {count} instants; valid: up to {_MOST_INSTANTS}")
        return [round(wanted.from_ + number * wanted.every, 9) for number in range(count)]
    room_s = wanted.until - wanted.from_ - (wanted.random - 1) * apart_s - duration_s
    if room_s < 0:
        raise ValueError(
            f"at_s.random: {wanted.random} times {duration_s:g} s do not fit between "
            f"{wanted.from_:g} and {wanted.until:g} s, {apart_s - duration_s:g} s apart"
        )
    draw = random.Random(seed)
    starts = sorted(draw.uniform(0, room_s) for _ in range(wanted.random))
    return [
        round(wanted.from_ + start + number * apart_s, 6) for number, start in enumerate(starts)
    ]
