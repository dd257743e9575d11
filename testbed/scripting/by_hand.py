"""Changes links and begins impairments by hand, at the prompt or in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controllers.controller_socket import ControllerClient, ControllerError
from controllers.impairments import parameters_of
from testbed.lab.kernel.commands import CommandError
from testbed.shared import jsonl, problems, units
from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of
from topologies.settings import LinkParameters

_LONGEST_S = 600.0
_ANCHORS = ("rounds", "at_s", "leg", "offset_s", "at_most_s")
# The words of a command, for the keys of a topology's links.
WORDS = {
    "rate": "rate_bps",
    "delay": "delay_s",
    "jitter": "jitter_s",
    "loss": "loss",
    "queue": "queue_bytes",
}


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes as plain numbers, within the bounds that a topology's links have."""
    try:
        changes = LinkParameters.model_validate(units.converted(dict(settings)))
    except ValidationError as error:
        raise problems.input_error(error, LinkParameters) from None
    return changes.model_dump(include=set(WORDS.values()), exclude_none=True)


def ways(ends: tuple[str, str], toward: str | None) -> list[tuple[str, str]]:
    """Return the directions of a link, or the one toward an end, as (sender, receiver)."""
    both = [ends, (ends[1], ends[0])]
    if toward is None:
        return both
    if toward not in ends:
        raise InputError(f"toward: {toward!r}: {one_of(toward, ends)}")
    return [way for way in both if way[1] == toward]


def change(
    controller: ControllerClient, way: tuple[str, str], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Let the controller change a direction, so that its impairments know of it; its reply."""
    try:
        return controller.link(*way, changes)
    except ControllerError as error:
        raise CommandError(str(error).removeprefix("controller: ")) from None


def effects(log: Path, name: str) -> list[dict[str, Any]]:
    """Return what an impairment did, each time that it has ended."""
    records = jsonl.read(log)
    ends = [end for end in records if (end["name"], end["action"]) == (name, "end")]
    counts = ("met", "dropped", "frames_sent")
    return [{key: end.get(key) for key in counts} | end["details"] for end in ends]


@dataclass(frozen=True)
class ManualImpairment:
    """An impairment that is announced by a round of its own number, since no rounds go by."""

    name: str
    round_number: int
    document: dict[str, Any]
    ends_by_itself: bool  # it has a duration


def take_over_impairments(config: dict[str, Any]) -> dict[str, ManualImpairment]:
    """Replace a configuration's impairments by ones without their own anchors; these by name."""
    by_name: dict[str, ManualImpairment] = {}
    for impairment in config["impairments"]:
        model = parameters_of(impairment["kind"])
        slows_a_process = impairment.get("resource", "") == "cpu"
        if not model.lasts or slows_a_process or model.of_our_transport:
            continue  # a crash, a slow process, drops at a sender: here is no training process
        number = len(by_name)
        # A kind that always has a duration (a burst) ends by itself, others on request.
        ends_by_itself = model.model_fields["duration_s"].default is not None
        document = {key: value for key, value in impairment.items() if key not in _ANCHORS}
        document |= {"rounds": [number], "leg": "round"}
        if not ends_by_itself:
            document.pop("duration_s", None)
            document["at_most_s"] = _LONGEST_S
        name = model.model_validate(document).label
        by_name[name] = ManualImpairment(name, number, document, ends_by_itself)
    config["impairments"] = [impairment.document for impairment in by_name.values()]
    return by_name
