"""Reads the file that starts the controller: of the lab, or a person's (`by-hand.yaml`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from controllers.impairment_plan import places_of, resolve
from controllers.impairments import KINDS, AnyImpairment, kind_of
from testbed.lab.network import HostInfo, LabInfo, LinkEnds, Port
from testbed.shared import own_code, problems, yaml_input
from testbed.shared.registry import one_of
from testbed.shared.section import Section
from testbed.shared.yaml_input import InputError

_MAC = problems.form(
    r"^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$", "a MAC address such as 00:00:00:00:00:01"
)
_PORT = Annotated[int, Field(ge=1, le=0xFFFFFF00)]


class Host(Section):
    """A host, with its address and its switch port."""

    mac: Annotated[str, _MAC, AfterValidator(str.lower)]
    switch: str
    port: _PORT


class SwitchPort(Section):
    """One end of a link between switches."""

    switch: str
    port: _PORT


class Link(Section):
    """A link between two switches."""

    first: SwitchPort
    second: SwitchPort


class Description(Section):
    """A network and its impairments, written by hand."""

    switches: dict[str, Annotated[int, Field(ge=1, lt=1 << 64)]] = Field(
        min_length=1, description="datapath id of each switch"
    )
    hosts: dict[str, Host] = Field(min_length=1)
    links: list[Link] = Field(default_factory=list)
    rate_bps: int = Field(default=100_000_000, ge=100_000, description="of every link")
    queue_bytes: int = Field(default=150_000, ge=3_028, description="of every switch port")
    seed: int = Field(default=1, ge=0, description="of random instants")
    log: str = Field(default="impairments.jsonl", description="relative to this file")
    impairments: list[AnyImpairment] = Field(default_factory=list)

    def document(self, folder: Path) -> dict[str, Any]:
        """Return the description in the form of the lab's own file."""
        self._check_apart()
        network = self._network().as_json()
        for index, each in enumerate(self.impairments):
            if not kind_of(each.kind).openflow_only:
                valid = ", ".join(kind for kind in KINDS if kind_of(kind).openflow_only)
                raise ValueError(
                    f"impairments.{index}.kind: {each.kind!r} works inside hosts, which this "
                    f"controller cannot enter; valid: {valid}"
                )
            if each.at_s is None:
                raise ValueError(
                    f"impairments.{index}.rounds: no one announces rounds here; valid: at_s"
                )
        impairments = resolve(self.impairments, places_of(network), rounds=1, seed=self.seed)
        return {"network": network, "impairments": impairments, "log": str(folder / self.log)}

    def _check_apart(self) -> None:
        """No datapath id, MAC address or switch port belongs to two things, or to nothing."""
        ends = {f"hosts.{name}": (host.switch, host.port) for name, host in self.hosts.items()}
        for index, link in enumerate(self.links):
            for side, end in (("first", link.first), ("second", link.second)):
                ends[f"links.{index}.{side}"] = (end.switch, end.port)
        for key, (switch, _) in ends.items():
            if switch not in self.switches:
                raise ValueError(f"{key}.switch: {switch!r}: {one_of(switch, self.switches)}")
        for index, link in enumerate(self.links):
            if link.first.switch == link.second.switch:
                raise ValueError(f"links.{index}: leads from {link.first.switch!r} to itself")
        things = [(key, f"port {port} of {switch}") for key, (switch, port) in ends.items()]
        for name, number in self.switches.items():
            things += [(f"switches.{name}", each) for each in (f"datapath id {number}", name)]
        for name, host in self.hosts.items():
            things += [(f"hosts.{name}", each) for each in (f"MAC address {host.mac}", name)]
        owners: dict[str, str] = {}
        for key, thing in things:
            if thing in owners:
                raise ValueError(f"{key}: {thing}: {owners[thing]} has this, too")
            owners[thing] = key

    def _network(self) -> LabInfo:
        def port(node: str, number: int) -> Port:
            return Port(node=node, interface="", number=number, pid=None)

        shape: dict[str, Any] = {"rate_bps": self.rate_bps, "queue_bytes": self.queue_bytes}
        pairs = [(port(name, 0), port(each.switch, each.port)) for name, each in self.hosts.items()]
        for link in self.links:
            one, two = (port(each.switch, each.port) for each in (link.first, link.second))
            pairs.append((one, two))
        hosts = {
            name: HostInfo(
                name=name,
                address="",
                mac=host.mac,
                pid=0,
                interface="",
                switch=host.switch,
                switch_port=host.port,
                switch_interface="",
                **shape,
            )
            for name, host in self.hosts.items()
        }
        links = [
            LinkEnds(name=f"{one.node}--{two.node}", first=one, second=two, **shape)
            for one, two in pairs
        ]
        return LabInfo(hosts=hosts, switches=self.switches, links=links)


def read(path: Path) -> dict[str, Any]:
    """Read the file: returns `network`, `impairments`, `log`, and in a lab `socket`."""
    document = yaml_input.read(path) if path.suffix in yaml_input.SUFFIXES else _json(path)
    if "network" in document:
        own_code.expect(document.get("code", {}))
        return document  # the lab wrote it from checked values
    folder = path.absolute().parent
    try:
        description = Description.model_validate(document, context={"folders": [folder]})
        return description.document(folder)
    except ValidationError as error:
        raise problems.input_error(error, Description, f"{path}: ") from None
    except ValueError as error:  # InputError has a line for each problem
        raise InputError(*(f"{path}: {each}" for each in error.args)) from None


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: must be a mapping of keys to values")
    return document
