"""Changes of a link by hand: their values checked, before any is made. For prompt and scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from controllers.controller_socket import ControllerClient, ControllerError
from testbed.lab.kernel.commands import CommandError
from testbed.shared import problems, units
from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of
from topologies.settings import LinkParameters

# The words of a command, for the keys of a topology's links.
WORDS = {
    "rate": "rate_bps",
    "delay": "delay_s",
    "jitter": "jitter_s",
    "loss": "loss",
    "queue": "queue_bytes",
}


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The changes as plain numbers, within the bounds that a topology's links have."""
    try:
        found = LinkParameters.model_validate(units.converted(dict(given)))
    except ValidationError as error:
        raise InputError(problems.explain(problems.of(error, LinkParameters))) from None
    return found.model_dump(include=set(WORDS.values()), exclude_none=True)


def ways(ends: tuple[str, str], toward: str | None) -> list[tuple[str, str]]:
    """The directions of a link that are meant, as pairs of sender and receiver."""
    both = [ends, (ends[1], ends[0])]
    if toward is None:
        return both
    if toward not in ends:
        raise InputError(f"toward: {toward!r}: {one_of(toward, ends)}")
    return [way for way in both if way[1] == toward]


def made(
    controller: ControllerClient, way: tuple[str, str], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Let the controller change a direction, so that its impairments know of it; its reply."""
    try:
        return controller.link(*way, changes)
    except ControllerError as error:
        raise CommandError(str(error).removeprefix("controller: ")) from None


def differ(name: str, ends: tuple[str, str]) -> InputError:
    """The error that one answer was wanted of a link whose directions differ."""
    return InputError(f"{name}: its directions differ; say toward which end: {' or '.join(ends)}")
