"""One training job of `fairness` without its computing: rounds of a gather and a broadcast.

The server announces each round to the lab, but for the first ones. Both workers are on one host.

    lab-python job.py server HOST WORKERS_HOST RATE_BPS ROUNDS PROTOCOL [CONGESTION_CONTROL]
    lab-python job.py workers HOST SERVER_HOST RATE_BPS PROTOCOL [CONGESTION_CONTROL]

RATE_BPS is what the link in the middle carries: a job knows of no other. One whose ROUNDS are
`endless` announces nothing, and goes on until it is ended. Tolerances are those outside of critical
phases. Where a chunk was lost, the one of the round before counts again.
"""

import itertools
import os
import socket
import sys
from collections.abc import Callable

import numpy as np

from testbed.transport import (
    EndpointConfig,
    Leg,
    PayloadLayout,
    PeerLost,
    open_endpoint,
    preset,
)

WORKERS = ("worker-1", "worker-2")
FIRST = 4  # rounds in which the jobs find each other
LAYOUT = PayloadLayout([(f"layer-{number}", 12_500) for number in range(10)], 1456)
QUEUE_BYTES = 150_000
PACE = 0.97  # of the link, as in the built-in training


def main() -> None:
    role, host, other, rate_bps, *options = sys.argv[1:]
    rounds = options.pop(0) if role == "server" else ""
    own_control = {"congestion_control": options[1]} if options[1:] else {}
    protocol = preset(options[0], **own_control)

    def config(name: str, peers: dict[str, str]) -> EndpointConfig:
        return EndpointConfig(
            session=1,  # no datagram of one job reaches a host of the other
            name=name,
            bind_address=host,
            peers=peers,
            is_server=name == "server",
            protocol=protocol,
            layout=LAYOUT,
            rate_bps=PACE * float(rate_bps) / len(WORKERS),
            queue_bytes=QUEUE_BYTES / len(WORKERS),
            data_port=47000 if name == "server" else 0,
            segmentation=False,  # the lab's queues hold packets
            insecure=True,
        )

    if role == "server":
        serve(config("server", dict.fromkeys(WORKERS, other)), rounds)
    elif os.fork():
        work(config("worker-1", {"server": other}))
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
    else:
        work(config("worker-2", {"server": other}))


def serve(config: EndpointConfig, rounds: str) -> None:
    gathered = {name: LAYOUT.new_buffer() for name in WORKERS}
    mean = LAYOUT.new_buffer()
    policy = config.protocol.gather
    numbers = itertools.count() if rounds == "endless" else range(FIRST + int(rounds))
    mark = (lambda line: None) if rounds == "endless" else markers()
    with open_endpoint(config) as endpoint:
        for number in numbers:
            if number >= FIRST:
                mark(f"begin {number - FIRST} round")
            rule = policy.stop_rule(critical=False)
            endpoint.receive(Leg.GATHER.transfer(number), rule, gathered)
            floats = [LAYOUT.floats(payload) for payload in gathered.values()]
            np.mean(floats, axis=0, out=LAYOUT.floats(mean))
            endpoint.send(Leg.BROADCAST.transfer(number), dict.fromkeys(WORKERS, mean))
            if number >= FIRST:
                mark(f"end {number - FIRST} round")


def markers() -> Callable[[str], None]:
    lab = socket.socket(socket.AF_UNIX)
    lab.connect(os.environ["LAB_MARKERS"])
    answers = lab.makefile("r")

    def mark(line: str) -> None:
        lab.sendall(f"{line}\n".encode())
        answer = answers.readline().strip()
        if not answer.startswith("ok"):
            sys.exit(f"{line}: {answer}")

    return mark


def work(config: EndpointConfig) -> None:
    gradient, mean = LAYOUT.new_buffer(), LAYOUT.new_buffer()
    random = np.random.default_rng(WORKERS.index(config.name))
    random.standard_normal(out=LAYOUT.floats(gradient), dtype=np.float32)
    policy = config.protocol.broadcast
    with open_endpoint(config) as endpoint:
        for number in itertools.count():
            try:
                endpoint.send(Leg.GATHER.transfer(number), {"server": gradient})
                rule = policy.stop_rule(critical=False)
                endpoint.receive(Leg.BROADCAST.transfer(number), rule, {"server": mean})
            except PeerLost:  # the server has done its rounds
                return


if __name__ == "__main__":
    main()
