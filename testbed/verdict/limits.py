"""The keys of `limits` in an experiment: those of all gates, how long a run may take, waivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model, field_validator
from pydantic.fields import FieldInfo

from testbed.shared.registry import one_of
from testbed.shared.section import Section
from testbed.verdict.gates import BY_KEY, GateEntry


def _field(key: str, entry: GateEntry) -> tuple[type, FieldInfo]:
    """A key of `limits` as pydantic declares it."""
    limit = entry.limits[key]
    words = ", ".join(filter(None, (entry.what, limit.description)))
    return type(limit.default), FieldInfo.merge_field_infos(limit, description=words)


def _with_keys_of_gates(schema: dict[str, Any]) -> None:
    """Tells editors what `waive` may name."""
    schema["items"]["enum"] = sorted(BY_KEY)


if TYPE_CHECKING:
    _LimitsOfGates = Section
else:
    _LimitsOfGates = create_model(
        "_LimitsOfGates",
        __base__=Section,
        **{key: _field(key, entry) for key, entry in BY_KEY.items()},
    )


class Limits(_LimitsOfGates):
    """The largest values that pass; beyond them the emulator, not the protocol, decided."""

    run_timeout_s: float = Field(
        default=900.0, gt=0, description="a run that takes longer is ended and has failed"
    )
    waive: list[str] = Field(
        default=[],
        json_schema_extra=_with_keys_of_gates,
        description="gates that do not decide; reports name them, and limits looser than default",
    )

    @field_validator("waive")
    @classmethod
    def _gates_are_known(cls, keys: list[str]) -> list[str]:
        titles = {entry.title: key for key, entry in reversed(BY_KEY.items())}
        for key in keys:
            if key in BY_KEY:
                continue
            if (meant := titles.get(key.lower())) is not None:
                valid = ", ".join(sorted(BY_KEY))
                raise ValueError(f"{key!r} is no gate; valid: {valid}; did you mean {meant!r}?")
            raise ValueError(f"{key!r} is no gate; {one_of(key, sorted(BY_KEY))}")
        return keys
