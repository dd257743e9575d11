"""Chooses planned runs by arm, seed and point of the sweep, before their files are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.data.evidence import factor_text


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which runs are asked for; None: all."""

    arms: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    point: Mapping[str, object] | None = None

    def of(self, planned: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The entries of a plan that are chosen."""
        found = list(planned)
        for name, wanted in (("arm", self.arms), ("seed", self.seeds)):
            if wanted is None:
                continue
            if isinstance(wanted, str):
                raise ValueError(f"{name}s {wanted!r}; valid: a list, such as [{wanted!r}]")
            known = list(dict.fromkeys(entry.get(name) for entry in planned))
            for each in wanted:
                _require(name, each, known)
            found = [entry for entry in found if entry.get(name) in wanted]
        levels = [(entry, _levels(entry)) for entry in planned]
        for factor, level in (self.point or {}).items():
            _require(
                "factor", factor, list(dict.fromkeys(name for _, each in levels for name in each))
            )
            known = list(dict.fromkeys(each[factor] for _, each in levels if factor in each))
            _require(factor, factor_text(level), known)
            found = [entry for entry in found if _levels(entry).get(factor) == factor_text(level)]
        if planned and not found:
            raise ValueError(
                f"no planned run has arms {self.arms}, seeds {self.seeds} and point {self.point} "
                "together; valid: a combination that results.runs has"
            )
        return found


def _levels(entry: Mapping[str, Any]) -> dict[str, str | None]:
    factors = entry.get("factors")
    return {
        str(name): factor_text(value)
        for name, value in (factors.items() if isinstance(factors, dict) else ())
    }


def _require(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        if not known:
            raise ValueError(f"{name} {value!r}: the planned runs have no {name}s")
        raise ValueError(f"no planned run of {name} {value!r}; valid: {', '.join(map(str, known))}")
