"""What `./lab compare --expect FILE` reads: the ranges in which ratios of two results must lie.

    expect:
      - { metric: round_latency_s.p50, low: 0.95, high: 1.05 }
      - { metric: round_latency_s.p99, arms: [dblp], points: { burst: [90 %] }, high: 1.1 }

An entry is about all arms and points that were compared, or those that it names. What it asks for
and nobody measured does not hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from analysis.comparison import Compared
from analysis.data.evidence import factor_text
from analysis.data.metrics import describe
from testbed.shared import problems, yaml_input
from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of
from testbed.shared.section import Section


class Expectation(Section):
    """The range of one metric's ratio; what is not named may be anything."""

    metric: str
    arms: list[str] = Field(default=[], description="by default all that were compared")
    points: dict[str, list[Any]] = Field(default={}, description="factor -> its levels")
    low: float | None = Field(default=None, ge=0)
    high: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        try:
            describe(self.metric)
        except KeyError:
            raise ValueError(f"metric is {self.metric!r}; valid: a metric of --json") from None
        if self.low is None and self.high is None:
            raise ValueError("low: missing; valid: low, high or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low is {self.low:g}; valid: no more than high, {self.high:g}")
        return self

    def holds(self, value: float) -> bool:
        """Whether a ratio is in the range, its ends included."""
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)

    @property
    def words(self) -> str:
        """The range."""
        if self.low is None:
            return f"up to {self.high:g}"
        return f"{self.low:g} or more" if self.high is None else f"{self.low:g} to {self.high:g}"


class Expectations(Section):
    """A file of them."""

    expect: list[Expectation] = Field(min_length=1)


def read(path: Path) -> list[Expectation]:
    """The entries of a file.

    Raises:
        InputError: it cannot be read, or says something else: one line.
    """
    document = yaml_input.read(path)
    try:
        return Expectations.model_validate(document).expect
    except ValidationError as error:
        told = problems.explain(problems.of(error, Expectations))
        raise InputError(f"{path}: {told}") from None


def failing(path: Path, expected: Sequence[Expectation], found: Sequence[Compared]) -> list[str]:
    """A line for each ratio that is not in its range, or that nobody measured.

    Raises:
        InputError: an entry names an arm, a factor or a level that was not compared: one line.
    """
    lines = []
    for number, each in enumerate(expected):
        place = f"{path}: expect.{number}"
        for arm, chosen in _chosen(place, each, found):
            here = [
                one for one in found if one.arm == arm and chosen.items() <= one.factors.items()
            ]
            points = [
                dict(point) for point in dict.fromkeys(tuple(one.factors.items()) for one in here)
            ]
            for point in points or [chosen]:
                where = ", ".join((arm, *(f"{name} {level}" for name, level in point.items())))
                ratios = (
                    one.ratio.value
                    for one in here
                    if one.metric == each.metric and one.factors == point
                )
                if (ratio := next(ratios, None)) is None:
                    told = "was not measured in both"
                elif each.holds(ratio):
                    continue
                else:
                    told = f"is {ratio:.4g} times the first"
                lines.append(f"{place}: {where}: {each.metric} {told}; expected {each.words}")
    return lines


def _chosen(
    place: str, each: Expectation, found: Sequence[Compared]
) -> Iterator[tuple[str, dict[str, str | None]]]:
    """The arms that an entry is about, each with each choice of levels."""
    arms = [one.arm for one in found]
    for name in each.arms:
        _require(f"{place}.arms", name, arms)
    levels = {factor: list(map(factor_text, named)) for factor, named in each.points.items()}
    for factor, named in levels.items():
        _require(f"{place}.points", factor, [name for one in found for name in one.factors])
        for level in named:
            known = [str(one.factors.get(factor)) for one in found]
            _require(f"{place}.points.{factor}", str(level), known)
    for arm in each.arms or dict.fromkeys(arms):
        for choice in itertools.product(*levels.values()):
            yield arm, dict(zip(levels, choice, strict=True))


def _require(place: str, name: str, known: Sequence[str]) -> None:
    valid = list(dict.fromkeys(known))
    if name not in valid:
        choice = one_of(name, valid) if valid else "valid: none"
        raise InputError(f"{place}: {name!r} was not compared; {choice}")
