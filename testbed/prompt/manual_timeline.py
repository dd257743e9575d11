"""A timeline that somebody drives by hand: each impairment begins and ends when it is told to.

Every entry is anchored to a round of its own, of which nothing happens by itself. Announcing that
round's begin to the controller begins the entry; announcing its end ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controllers.controller_socket import ControllerClient
from controllers.impairments import parameters_of

LONGEST_S = 600.0
_ANCHORS = ("rounds", "at_s", "leg", "offset_s", "at_most_s")
# They act on a training process, which a shell does not have.
_TRAINING_KINDS = ("crash",)


@dataclass(frozen=True)
class Entry:
    """One impairment of the experiment, as the controller is to read it."""

    name: str
    number: int
    document: dict[str, Any]
    ends_by_itself: bool

    @property
    def kind(self) -> str:
        """Which impairment it is."""
        return str(self.document["kind"])


def entries(impairments: Sequence[dict[str, Any]]) -> dict[str, Entry]:
    """Take the anchors of a resolved configuration's impairments away, by name.

    A kind that always has a duration (a burst) keeps it and ends by itself; any other lasts until
    it is told to end, at most `LONGEST_S`. Kinds that need training are left out.
    """
    found: dict[str, Entry] = {}
    for impairment in impairments:
        model = parameters_of(impairment["kind"])
        slows_a_process = impairment.get("resource", "") == "cpu"
        if impairment["kind"] in _TRAINING_KINDS or slows_a_process:
            continue
        number = len(found)
        ends_by_itself = model.model_fields["duration_s"].default is not None
        document = {key: value for key, value in impairment.items() if key not in _ANCHORS}
        document |= {"rounds": [number], "leg": "round"}
        if not ends_by_itself:
            document.pop("duration_s", None)
            document["at_most_s"] = LONGEST_S
        name = model.model_validate(document).label
        found[name] = Entry(name, number, document, ends_by_itself)
    return found


def begin(client: ControllerClient, entry: Entry) -> list[str]:
    """Put it in force; returns, once it is, the names of all that are.

    Raises:
        ConnectionError: the controller refused or is gone.
    """
    return client.begin(entry.number, "round")


def end(client: ControllerClient, entry: Entry) -> None:
    """Take it away; returns once it is gone and its effect is logged.

    Raises:
        ConnectionError: the controller refused or is gone.
    """
    client.end(entry.number, "round")
