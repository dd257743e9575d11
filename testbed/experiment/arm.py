"""An experiment's arm: a protocol's preset, what differs from it, and the filling of its legs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from testbed.shared import problems, yaml_input
from testbed.shared.input_error import InputError, shown
from testbed.shared.named_sections import folders
from testbed.shared.registry import did_you_mean
from testbed.shared.section import Section
from testbed.training.filling import DEFAULT_FILLING, FILLINGS, PRESET_FILLINGS
from testbed.transport import Leg, protocols
from testbed.transport.policies.tolerance import Fixed
from testbed.transport.protocols import REGISTRIES, ProtocolConfig
from testbed.workload.settings import AnyArm

_LEGS = ("gather", "broadcast")
_MEASURED = "plot"  # the preset whose bounds are those of a profile


class Filling(Section):
    """What stands in for what a leg did not deliver; None stands for the preset's own."""

    gather: str | None = Field(default=None, description="at the server")
    broadcast: str | None = Field(default=None, description="at the workers")

    @field_validator(*_LEGS, mode="before")
    @classmethod
    def _is_known(cls, value: Any, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        text = FILLINGS.text(FILLINGS.relocated(value, folders(info)))
        FILLINGS.create(text)
        return text


def _on_both_legs(filling: Any) -> Any:
    if isinstance(filling, str) or (isinstance(filling, Mapping) and "name" in filling):
        return dict.fromkeys(_LEGS, filling)
    if not isinstance(filling, Mapping | Filling):
        raise ValueError("must be the name of a filling, or a mapping of legs to names")
    return filling


def _is_profile(tensors: Any) -> bool:
    """Whether a value of `tensors` names a file of bounds, and is no list of them."""
    return isinstance(tensors, str) and tensors.endswith(yaml_input.SUFFIXES)


def _bounds(name: str, folders: Sequence[Path]) -> dict[str, float]:
    """The bounds in a profile, by the tensors' names: they, not the file, come into a run."""
    found = _profile(name, folders).get("tensors")
    if not isinstance(found, Mapping) or not found:
        raise InputError(
            f"{name}: tensors is {shown(found)}; valid: a profile, as ./lab bench layers writes"
        )
    return dict(found)


def _caution_of(name: str, folders: Sequence[Path]) -> str:
    """What a reader must know of a profile's bounds; none where they hold together."""
    together = _profile(name, folders).get("together")
    if isinstance(together, Mapping) and together.get("holds") is False:
        return f"{name}: by its own measurement each bound holds alone, and all together do not"
    return ""


def _profile(name: str, folders: Sequence[Path]) -> dict[str, Any]:
    looked = [each.resolve() for each in (*folders, Path())]
    path = next((each / name for each in looked if (each / name).is_file()), None)
    if path is None:
        where = " or ".join(dict.fromkeys(map(str, looked)))
        raise InputError(f"{name}: no such file; looked in {where}")
    try:
        return yaml_input.read(path)
    except InputError as error:
        raise InputError(str(error).replace(str(path), name)) from None


class Arm(AnyArm):
    """A protocol's preset and, in all further keys, what differs from it."""

    protocol: str = Field(description="a preset, or `tcp-NAME`: TCP with that congestion control")
    filling: Annotated[Filling, BeforeValidator(_on_both_legs)] = Field(
        default=Filling(),
        description="what stands in for what a leg did not deliver; none: the preset's",
    )
    learning_rate: float | None = Field(
        default=None, gt=0, le=1000, description="in place of the training's"
    )
    _caution: str = PrivateAttr(default="")

    @property
    def caution(self) -> str:
        """What a reader must know of a profile that it names; none without one."""
        return self._caution

    def resolved_filling(self) -> dict[str, str]:
        """The filling of each leg as text."""
        presets = PRESET_FILLINGS.get(self.protocol, {})
        return {leg: text or presets.get(leg, DEFAULT_FILLING) for leg, text in self.filling}

    def resolved(self) -> ProtocolConfig:
        """The transport's configuration."""
        changes = self.model_extra or {}
        return protocols.preset(self.protocol, **changes)

    @model_validator(mode="wrap")
    @classmethod
    def _caution_is_kept(
        cls, given: Any, check: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        arm = check(given)
        if isinstance(given, Mapping) and _is_profile(given.get("tensors")):
            arm._caution = _caution_of(given["tensors"], folders(info))
        return arm

    @model_validator(mode="before")
    @classmethod
    def _own_code_is_found(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, Mapping):
            return given
        found = dict(given)
        if "protocol" not in given and (wrong := problems.misspelt("protocol", given)):
            raise problems.raised([wrong])
        wrong_code = []
        for key, registry in REGISTRIES.items():
            if key in found:
                try:
                    found[key] = registry.relocated(found[key], folders(info))
                except ValueError as error:
                    wrong_code.append(problems.Problem((key,), str(error)))
        if _is_profile(found.get("tensors")):
            try:
                found["tensors"] = _bounds(found["tensors"], folders(info))
            except ValueError as error:
                wrong_code.append(problems.Problem(("tensors",), str(error)))
        if wrong_code:
            raise problems.raised(wrong_code)
        return found

    @model_validator(mode="after")
    def _is_a_known_protocol(self) -> Arm:
        try:
            valid = [*protocols.settings(self.protocol), "filling", "learning_rate"]
        except ValueError as error:
            raise ValueError(f"protocol: {error}") from None
        if unknown := [key for key in self.model_extra or {} if key not in valid]:
            listed = f"protocol {self.protocol!r} has no such key; valid: {', '.join(valid)}"
            near = [did_you_mean(key, [*valid, "protocol"]) for key in unknown]
            raise problems.raised(
                [
                    problems.Problem((key,), listed + meant, problems.UNKNOWN)
                    for key, meant in zip(unknown, near, strict=True)
                ]
            )
        if self.protocol == _MEASURED and not {"tensors", "gather"} & set(self.model_extra or {}):
            told = (
                "missing; valid: bounds, or the file, of ./lab bench layers; assumed bounds are "
                "those of protocol: per-layer"
            )
            raise problems.raised([problems.Problem(("tensors",), told)])
        try:
            self.resolved()
        except (TypeError, ValueError) as error:  # also a value of a wrong kind
            raise problems.raised(
                [problems.of_message(str(error)), *self._wrong_values()]
            ) from None
        return self

    @model_validator(mode="after")
    def _quantises_what_goes_as_bits(self) -> Arm:
        protocol = self.resolved()
        for leg, text in self.resolved_filling().items():
            name = text.partition(":")[0]
            if protocol.coding == "two-values" and name in FILLINGS and name != "signs":
                raise ValueError(
                    f"filling.{leg}: {text}; coding two-values sends payloads with two values in "
                    "each chunk; valid: signs, ./FILE.py"
                )
            whole = protocol.policy(Leg[leg.upper()]) == Fixed(0) and protocol.keep == 1
            if not whole and FILLINGS.create(text).whole:
                raise ValueError(
                    f"filling.{leg}: {text}; {protocol.name} gives up chunks of this leg, which "
                    "would be owed by nobody; valid: with a protocol that delivers all, such as "
                    "one-bit"
                )
        return self

    def _wrong_values(self) -> Iterator[problems.Problem]:
        """What is wrong with a setting by itself, whatever the others are."""
        for key, value in (self.model_extra or {}).items():
            try:
                protocols.preset(self.protocol, **{key: value})
            except (TypeError, ValueError) as error:
                found = problems.of_message(str(error))
                if found.place[:1] == (key,):
                    yield found
