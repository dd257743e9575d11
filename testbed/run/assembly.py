"""Builds a lab inside a sandbox: Open vSwitch, Mininet, link shaping, the controller."""

import json
from collections.abc import Mapping
from typing import Any

import topologies
from controllers import impairments
from controllers.controller_socket import ControllerClient
from controllers.impairment_plan import Places
from testbed.lab import datapath, sandbox
from testbed.lab.kernel.commands import CommandError
from testbed.lab.network import Network
from testbed.lab.openvswitch import OpenVSwitch
from testbed.run.inside import Inside

_START_TIMEOUT_S = 90.0  # an emulated processor imports for long; a process that ends is noticed


def topology_of(config: Mapping[str, Any]) -> topologies.TopologyParameters:
    """The topology of a run's configuration."""
    try:
        return topologies.parse(config["topology"])
    except ValueError as error:
        raise CommandError(" ".join(str(error).split())) from None


class Lab:
    """A running emulated network."""

    def __init__(
        self,
        config: dict[str, Any],
        inside: Inside,
        *,
        data_ports: tuple[int, int] | None = None,
    ) -> None:
        private, logs, processes = inside.private, inside.logs, inside.processes
        self.controller_socket = private / "controller.sock"
        self.impairment_log = inside.impairment_log
        self.processes = processes
        self.switch = OpenVSwitch(private, logs)
        self.switch.start()
        processes.adopt(self.switch.processes)
        # Earlier versions stored configurations without it.
        self.switch.datapath = datapath.choose(config.get("datapath", "auto"))
        parameters = topology_of(config)
        topology = topologies.build(parameters)
        places = Places(
            hosts=topology.hosts(),
            switches=topology.switches(),
            links=topology.links(),
            settings=topology.link_settings(),
        )
        entries = [impairments.read(each) for each in config["impairments"]]
        for ends, delay_s in places.delays(entries).items():
            topology.linkInfo(*ends)["most_delay_s"] = delay_s
        self.network = Network(
            topology,
            private=private,
            logs=logs,
            delayed_by=parameters.delayed_by,
            datapath=self.switch.datapath,
            data_ports=data_ports,
            seed=config["seed"],
            adjustable=config.get("adjustable", False),
        )
        hosts = self.network.info.hosts.values()
        sandbox.tell_hosts(private, ((host.name, host.address) for host in hosts))
        if self.network.relay is not None:
            processes.adopt({"delay-relay": self.network.relay.process})
        document = {
            "network": self.network.info.as_json(),
            "impairments": config["impairments"],
            "code": config.get("code", {}),
            "socket": str(self.controller_socket),
            "log": str(self.impairment_log),
        }
        inside.description.write_text(json.dumps(document))
        processes.tell("controller", "go")
        processes.wait_for(self.controller_socket, "controller", _START_TIMEOUT_S)
        self.network.start()
        client = ControllerClient(self.controller_socket, timeout_s=_START_TIMEOUT_S)
        client.wait_ready()
        client.close()
        # Closed to whatever has given up root's powers, also as user 0: who may send there can
        # change links and switches and end impairments. No program of the workload runs yet.
        for each in private.iterdir():
            if each.is_socket():
                each.chmod(0)
