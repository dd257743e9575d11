"""An experiment's impairments where each begins and ends by command: at the prompt, or in Python.

Each is anchored to a round of its own number, and no rounds go by there. Who commands announces
that round's begin to the controller to begin the impairment, and its end to end it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controllers.impairments import parameters_of

LONGEST_S = 600.0
_ANCHORS = ("rounds", "at_s", "leg", "offset_s", "at_most_s")


@dataclass(frozen=True)
class ManualImpairment:
    """One impairment of the experiment.

    Attributes:
        round_number: the round that it is anchored to.
        document: what the controller reads.
        ends_by_itself: whether it has a duration.
    """

    name: str
    round_number: int
    document: dict[str, Any]
    ends_by_itself: bool

    @property
    def kind(self) -> str:
        return str(self.document["kind"])


def by_name(impairments: Sequence[dict[str, Any]]) -> dict[str, ManualImpairment]:
    """A resolved configuration's impairments without their own anchors, by name.

    A kind that always has a duration (a burst) keeps it and ends by itself; any other lasts until
    it is told to end, at most `LONGEST_S`. Kinds that need training are left out.
    """
    found: dict[str, ManualImpairment] = {}
    for impairment in impairments:
        model = parameters_of(impairment["kind"])
        slows_a_process = impairment.get("resource", "") == "cpu"
        if not model.lasts or slows_a_process or model.of_our_transport:
            continue  # a crash, a slow process, drops at a sender: a shell has no training process
        number = len(found)
        ends_by_itself = model.model_fields["duration_s"].default is not None
        document = {key: value for key, value in impairment.items() if key not in _ANCHORS}
        document |= {"rounds": [number], "leg": "round"}
        if not ends_by_itself:
            document.pop("duration_s", None)
            document["at_most_s"] = LONGEST_S
        name = model.model_validate(document).label
        found[name] = ManualImpairment(name, number, document, ends_by_itself)
    return found
