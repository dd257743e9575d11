"""The limits of the gates: the keys of `limits` in an experiment, with their defaults."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from testbed.shared.registry import one_of
from testbed.shared.section import Section
from testbed.verdict.gate_explanations import GATES


def _with_keys_of_gates(schema: dict[str, Any]) -> None:
    """Tells editors what `waive` may name."""
    schema["items"]["enum"] = sorted(GATES)


# Gates that say that the machine was busy.
OF_THE_MACHINE = frozenset({"cpu_wait_s", "cpu_others", "clock_stall_s", "standstill_s"})


def _above(default: float, description: str, **further: Any) -> Any:
    return Field(default, gt=0, description=description, **further)


def _share(default: float, description: str) -> Any:
    return Field(default, ge=0, le=1, description=description)


def _count(default: int, description: str) -> Any:
    return Field(default, ge=0, description=description)


class Limits(Section):
    """The largest values that pass; beyond them the emulator, not the protocol, decided."""

    rate_error: float = _above(0.03, "relative error of a calibrated rate, the median of trials")
    rate_spread: float = _above(0.05, "relative interquartile range of these trials")
    rtt_error: float = _above(0.1, "relative error of a calibrated round trip")
    rtt_error_s: float = _above(0.0003, "its error for each switch on the path; the larger counts")
    idle_loss: float = _share(0.0, "share of idle probes lost, beyond the configured loss")
    queue_error: float = Field(
        default=0.0, ge=0, description="relative error of a calibrated queue"
    )
    conservation: float = _share(0.00001, "share of a link's packets missing")
    emulator_losses: int = _count(0, "packets lost by accident in the emulator")
    cpu_wait_s: float = _above(0.0005, "mean wait of a ready thread of the emulator in a second")
    cpu_others: float = _above(0.25, "others' share of the processors while something waits")
    impairment_late_s: float = _above(0.010, "how late an impairment begins or ends")
    impairments_unmet: int = _count(0, "impairments that met nothing to act on")
    loss_error: float = _share(0.0, "error of a realised loss, beyond chance")
    relay_late_s: float = _above(0.003, "lateness of relayed frames, p99 of the worst second")
    relay_late_max_s: float = _above(0.02, "lateness of any single frame")
    delay_error: float = _above(0.1, "relative error of a link's mean delay in 0.25 s")
    delay_error_s: float = _above(0.0005, "the same as a time; the larger counts")
    clock_stall_s: float = _above(0.025, "how long a processor stood still")
    standstill_s: float = _above(
        0.05,
        "how long a part of the emulator may have stood still; or 1/4 of a median round",
        exclude_if=lambda value: value == 0.05,
    )
    socket_buffer_bytes: int = _count(0, "of the deepest queue, what socket buffers lack")
    link_settings: int = _count(0, "settings of links that differ from the configured")
    packet_bytes: int = Field(default=1514, ge=1514, description="mean size of queued packets")
    rate_under_load: float = _above(0.03, "relative error of a rate while packets wait")
    samples_missing: float = Field(default=0.2, gt=0, le=1, description="share of samples missing")
    run_timeout_s: float = _above(900.0, "a run that takes longer is ended and has failed")
    waive: list[str] = Field(
        default=[],
        json_schema_extra=_with_keys_of_gates,
        description="gates that do not decide; reports name them, and limits looser than default",
    )

    @field_validator("waive")
    @classmethod
    def _gates_are_known(cls, keys: list[str]) -> list[str]:
        titles = {about.title: key for key, about in reversed(GATES.items())}
        for key in keys:
            if key in GATES:
                continue
            if key.lower() in titles:
                valid = ", ".join(sorted(GATES))
                meant = titles[key.lower()]
                raise ValueError(f"{key!r} is no gate; valid: {valid}; did you mean {meant!r}?")
            raise ValueError(f"{key!r} is no gate; {one_of(key, sorted(GATES))}")
        return keys
