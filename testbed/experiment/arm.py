"""An experiment's arm: a protocol's preset, what differs from it, and the filling of its legs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

from testbed.shared import own_code, problems, yaml_input
from testbed.shared.input_error import InputError, shown
from testbed.shared.named_sections import folders
from testbed.shared.problems import Section, optional
from testbed.shared.registry import did_you_mean
from testbed.training.fillings import DEFAULT_FILLING, FILLINGS, PRESET_FILLINGS
from testbed.transport import presets
from testbed.transport.presets import REGISTRIES, ProtocolConfig
from testbed.workload.settings import AnyArm

_LEGS = ("gather", "broadcast")
# Fillings that chunks which are never sent would turn into nonsense.
_OF_RANDOM_LOSS = ("rescale", "hadamard")
_MEASURED = "plot"  # the preset whose bounds are those of a profile


class Filling(Section):
    """Fillings stand in for what a leg did not deliver; None stands for the preset's own."""

    gather: str | None = optional("at the server")
    broadcast: str | None = optional("at the workers")

    @field_validator(*_LEGS, mode="before")
    @classmethod
    def _is_known(cls, value: Any, info: ValidationInfo) -> str | None:
        return None if value is None else _filling(value, info)


def _filling(value: Any, info: ValidationInfo) -> str:
    text = FILLINGS.text(FILLINGS.relocated(value, folders(info)))
    FILLINGS.create(text)
    return text


def _on_both_legs(filling: Any, info: ValidationInfo) -> Any:
    if isinstance(filling, str) or (isinstance(filling, Mapping) and "name" in filling):
        return dict.fromkeys(_LEGS, _filling(filling, info))
    if not isinstance(filling, Mapping | Filling):
        raise ValueError("must be the name of a filling, or a mapping of legs to names")
    return filling


def _profile(name: str, folders: Sequence[Path]) -> tuple[dict[str, float], str]:
    """The bounds in a profile, which come into a run in its place, and what to know of them."""
    path = own_code.find_file(name, folders)
    try:
        document = yaml_input.read(path)
    except InputError as error:
        raise InputError(str(error).replace(str(path), name)) from None
    bounds, together = document.get("tensors"), document.get("together")
    if not isinstance(bounds, Mapping) or not bounds:
        raise InputError(
            f"{name}: tensors is {shown(bounds)}; valid: a profile, as ./lab bench layers writes"
        )
    caution = ""
    if isinstance(together, Mapping) and together.get("holds") is False:
        caution = f"{name}: by its own measurement each bound holds alone, and all together do not"
    return dict(bounds), caution


class Arm(AnyArm):
    """A protocol's preset and, in all further keys, what differs from it."""

    protocol: str = Field(description="a preset, or `tcp-NAME`: TCP with that congestion control")
    filling: Annotated[Filling, BeforeValidator(_on_both_legs)] = Field(
        default=Filling(),
        description="what stands in for what a leg did not deliver; none: the preset's",
    )
    learning_rate: float | None = optional("in place of the training's", gt=0, le=1000)
    _caution: str = PrivateAttr(default="")

    @property
    def caution(self) -> str:
        return self._caution

    def resolved_filling(self) -> dict[str, str]:
        fillings = PRESET_FILLINGS.get(self.protocol, {})
        return {leg: text or fillings.get(leg, DEFAULT_FILLING) for leg, text in self.filling}

    def resolved(self) -> ProtocolConfig:
        return presets.preset(self.protocol, **(self.model_extra or {}))

    @model_validator(mode="wrap")
    @classmethod
    def _files_are_found(
        cls, value: Any, check: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Own code gets an absolute path, and a profile's bounds take its place."""
        if not isinstance(value, Mapping):
            return check(value)
        document, caution, wrong = dict(value), "", list[problems.Problem]()
        if "protocol" not in value and (misspelt := problems.misspelt("protocol", value)):
            raise problems.raised([misspelt])
        for key in [key for key in (*REGISTRIES, "tensors") if key in value]:
            try:
                if key != "tensors":
                    document[key] = REGISTRIES[key].relocated(value[key], folders(info))
                elif isinstance(value[key], str) and value[key].endswith(yaml_input.SUFFIXES):
                    document[key], caution = _profile(value[key], folders(info))
            except ValueError as error:
                wrong.append(problems.Problem((key,), str(error)))
        if wrong:
            raise problems.raised(wrong)
        arm = check(document)
        arm._caution = caution
        return arm

    @model_validator(mode="after")
    def _is_a_known_protocol(self) -> Arm:
        try:
            valid = [*presets.settings(self.protocol), "filling", "learning_rate"]
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
            message = (
                "missing; valid: bounds, or the file, of ./lab bench layers; assumed bounds are "
                "those of protocol: per-layer"
            )
            raise problems.raised([problems.Problem(("tensors",), message)])
        try:
            protocol = self.resolved()
        except (TypeError, ValueError) as error:  # also a value of a wrong kind
            raise problems.raised([problems.of_message(str(error))]) from None
        for leg, text in self.resolved_filling().items() if protocol.keep < 1 else ():
            if text.partition(":")[0] in _OF_RANDOM_LOSS:
                message = (
                    f"{text}: it takes loss for chance, and keep: {protocol.keep:g} leaves chunks "
                    "out by their size; valid: error-feedback, common-feedback, zero, ./FILE.py"
                )
                raise problems.raised([problems.Problem(("filling", leg), message)])
        return self
