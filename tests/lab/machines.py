"""Namespaces of the network as machines of a cluster, each with torchrun's agent and one rank.

The machines have the addresses 10.9.0.1 and following, on an interface `eth0`, behind one bridge.
"""

import os
import subprocess
import sys

from testbed.lab.kernel import namespaces
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.shaping import inside

_PORT = 29400


def address(machine: int) -> str:
    return f"10.9.0.{machine + 1}"


def _machine(number: int) -> int:
    """The thread that holds its namespace."""
    pid = namespaces.hold(f"machine {number}")
    port = f"port{number}"
    run(["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid)])
    run(["ip", "link", "set", port, "master", "network", "up"])
    for command in (
        ["address", "add", f"{address(number)}/24", "dev", "eth0"],
        ["link", "set", "eth0", "up"],
        ["link", "set", "lo", "up"],
    ):
        run([*inside(pid), "ip", *command])
    return pid


def build(count: int) -> list[int]:
    """The machines: of each the thread that holds its namespace. The bridge's port is `portN`."""
    run(["ip", "link", "add", "network", "type", "bridge"])
    run(["ip", "link", "set", "network", "up"])
    return [_machine(number) for number in range(count)]


def main() -> int:
    count, script = int(sys.argv[1]), sys.argv[2:]
    machines = build(count)
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    agents = []
    for number, pid in enumerate(machines):
        launcher = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={count}"]
        launcher += ["--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=test"]
        launcher += [f"--rdzv-endpoint={address(0)}:{_PORT}", f"--local-addr={address(number)}"]
        # It would look for the endpoint's address behind the host's name, which all have alike.
        launcher += [f"--rdzv-conf=is_host={int(number == 0)}"]
        agents.append(subprocess.Popen([*inside(pid), *launcher, *script], env=environment))
    return next((entry for entry in [agent.wait() for agent in agents] if entry), 0)


if __name__ == "__main__":
    sys.exit(main())
