"""The configuration of a script's lab: that of an experiment's run, or one made of a topology."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

import topologies
from controllers import framework_choice, impairment_plan
from controllers.impairments import AnyImpairment, ImpairmentParameters
from testbed.shared import own_code, problems, units
from testbed.shared.input_error import InputError, shown
from testbed.verdict.limits import Limits
from topologies.settings import MOST_LAB_WORKERS

if TYPE_CHECKING:
    from mininet.topo import Topo

_NAME = "script"
_ANCHORS = ("rounds", "leg", "at_s", "duration_s", "offset_s")
_ENTRIES: TypeAdapter[list[ImpairmentParameters]] = TypeAdapter(list[AnyImpairment])


def of_experiment(
    name: str,
    *,
    overrides: Sequence[str],
    arm: str | None,
    seed: int | None,
    profile: str | None,
) -> dict[str, Any]:
    """The configuration of one run of an experiment."""
    from testbed import experiment
    from testbed.experiment.files import DEFAULT_PROFILE

    if isinstance(overrides, str):
        raise InputError(
            f"overrides: {shown(overrides)}: must be a list of `KEY=VALUE`, such as "
            "['topology.workers=5']"
        )
    runs = experiment.load(
        name,
        overrides=[*overrides, *([] if seed is None else [f"seeds=[{seed}]"])],
        arms=[] if arm is None else [arm],
        profile=profile or DEFAULT_PROFILE,
    )
    return runs[0].config() | {"capture": []}


def of_topology(
    topology: topologies.TopologyParameters | Topo | Mapping[str, Any] | str,
    *,
    impairments: Sequence[Mapping[str, Any]],
    seed: int,
) -> dict[str, Any]:
    """The configuration of a lab in which nothing is set but its network."""
    parameters = _parameters(topology)
    try:
        built = topologies.build(parameters)
    except ValueError as error:
        raise InputError(f"topology: {error}") from None
    anchored = _anchored(impairments)
    places = impairment_plan.Places(
        hosts=built.hosts(),
        switches=built.switches(),
        links=built.links(),
        settings=built.link_settings(),
    )
    try:
        entries = _ENTRIES.validate_python(anchored)
        resolved = impairment_plan.resolve(entries, places, rounds=len(entries), seed=seed)
    except ValidationError as error:
        raise problems.input_error(error, ImpairmentParameters, "impairments.") from None
    except ValueError as error:
        raise InputError(str(error)) from None
    own = own_code.places([parameters.name, *(each.kind for each in entries)])
    document = {
        "experiment": _NAME,
        "arm": _NAME,
        "seed": seed,
        "factors": {},
        "code": {place: own_code.fingerprint(place) for place in own},
        "topology": parameters.model_dump(mode="json"),
        "impairments": resolved,
        "limits": Limits().model_dump(mode="json"),
        "controller": framework_choice.preferred(),
        # Nothing of ours is transported.
        "protocol": {"carrier": "none"},
        "rounds": len(entries),
    }
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    return {"schema": 1, "key": f"{_NAME}-{digest[:10]}", **document, "capture": []}


def _anchored(impairments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entries with an anchor of their own for each, so that none contradicts another."""
    if isinstance(impairments, str | Mapping) or not all(
        isinstance(each, Mapping) for each in impairments
    ):
        raise InputError(
            f"impairments: {shown(impairments)}: must be a list of mappings, such as "
            "[{'kind': 'loss', 'host': 'server', 'q': 0.5}]"
        )
    return [
        {key: value for key, value in units.converted(each).items() if key not in _ANCHORS}
        | {"rounds": [number], "leg": "round"}
        for number, each in enumerate(impairments)
    ]


def _parameters(
    given: topologies.TopologyParameters | Topo | Mapping[str, Any] | str,
) -> topologies.TopologyParameters:
    if isinstance(given, topologies.TopologyParameters):
        return given
    if isinstance(given, str):
        given = {"name": given}
    try:
        if not isinstance(given, Mapping):
            from mininet.topo import Topo

            from topologies import graph

            if not isinstance(given, Topo):
                raise InputError(
                    f"{type(given).__name__}: valid: a Mininet Topo that has been built, the "
                    "parameters of a topology, or a name"
                )
            given = graph.described(given)
        parameters = topologies.parse(units.converted(given))
        if parameters.workers > MOST_LAB_WORKERS:
            wrong = f"topology.workers: {parameters.workers}"
            raise InputError(f"{wrong}; valid: 1 to {MOST_LAB_WORKERS}")
        return parameters
    except ValidationError as error:
        raise problems.input_error(error, topologies.TopologyParameters, "topology.") from None
    except ValueError as error:
        raise InputError(f"topology: {error}") from None
