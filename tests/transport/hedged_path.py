"""Run inside a network namespace of its own: two endpoints, and packets that vanish between them.

The argument says which. Prints what each round's transfers brought, and what hedges did.
"""

import json
import os
import subprocess
import sys

import numpy as np

from testbed.transport import Endpoint, PayloadLayout, open_endpoint, preset
from tests.transport.loopback import Site, in_thread, poll_until, site
from tests.transport.virtual import random_payload

ROUNDS = 4


def rules(place: Site, which: str) -> str:
    to_server = f"ip daddr {place.server_address}"
    port = place.server().control_port
    drops = {
        "tcp": ["ip protocol tcp drop"],
        # And much of TCP, so that there are some.
        "hedges": [
            *(f"udp {side} {port} drop" for side in ("dport", "sport")),
            f"{to_server} tcp dport {port} numgen random mod 10 < 3 drop",
        ],
        "most": [f"{to_server} numgen random mod 10 < 8 drop"],
    }[which]
    lines = [
        "add table inet hole",
        "add chain inet hole input { type filter hook input priority 0; }",
    ]
    return "\n".join([*lines, *(f"add rule inet hole input {each}" for each in drops)])


def main(which: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    place = site(preset("bounded-energy"), layout=PayloadLayout([("w", 60_000)]), rate_bps=200e6)
    payload = random_payload(place.layout, seed=1)
    opened = in_thread(lambda: open_endpoint(place.server()))
    worker = open_endpoint(place.worker())
    server: Endpoint = opened.result(timeout=30)
    subprocess.run(["nft", "-f", "-"], input=rules(place, which), text=True, check=True)
    policy = place.protocol.gather

    def serve() -> list[bool]:
        right = []
        for number in range(ROUNDS):
            into = place.layout.new_buffer()
            rule = policy.stop_rule(critical=False)
            report = server.receive(2 * number, rule, {"worker-1": into})["worker-1"]
            got = report.received
            assert got is not None
            rows, sent = place.layout.rows(into), place.layout.rows(payload)
            right.append(bool(got.any()) and np.array_equal(rows[got], sent[got]))
            server.announce(str(number).encode())
            server.send(2 * number + 1, {"worker-1": into})
        return right

    serving = in_thread(serve)
    heard = []
    for number in range(ROUNDS):
        worker.send(2 * number, {"server": payload})
        heard.append(worker.await_announcement().decode())
        rule = place.protocol.broadcast.stop_rule(critical=False)
        worker.receive(2 * number + 1, rule, {"server": place.layout.new_buffer()})
    poll_until(worker, serving.done)  # until its last STOP is heard
    facts = [worker.facts()["server"], server.facts()["worker-1"]]
    outcome = {
        "right": serving.result(timeout=60),
        "heard": heard,
        "gained": [each["hedges_gained"] for each in facts],
        "sent": [each["hedges_sent"] for each in facts],
    }
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # closing would wait for acknowledgements that cannot come
