"""Run inside a network namespace of its own: the path between two endpoints dies mid-transfer.

Prints for each side how many seconds later it gave up, and its words. The pass would take minutes.
"""

import subprocess
import threading
import time
from concurrent.futures import Future

from testbed.transport import Endpoint, PayloadLayout, PeerLost, open_endpoint
from tests.transport.loopback import in_thread, site

RULES = """
add table inet hole
add chain inet hole input { type filter hook input priority 0; policy drop; }
"""


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    place = site(layout=PayloadLayout([("w", 5_000_000)]), rate_bps=1e6, peer_timeout_s=2.0)
    buffer = place.layout.new_buffer()
    opened = in_thread(lambda: open_endpoint(place.server()))
    worker = open_endpoint(place.worker())
    server: Endpoint = opened.result(timeout=30)
    dead_s: list[float] = []

    def until_lost(work: object, *arguments: object) -> str:
        try:
            work(*arguments)  # type: ignore[operator]
        except PeerLost as error:
            return f"{time.monotonic() - dead_s[0]:.2f} {error}"
        return "0 it ended"

    sides: dict[str, Future[str]] = {
        "sender": in_thread(until_lost, worker.send, 0, {"server": buffer}),
        "receiver": in_thread(until_lost, server.receive, 0, 0, {"worker-1": buffer}),
    }
    made = threading.Event()
    made.wait(0.3)
    dead_s.append(time.monotonic())
    subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)
    for name, side in sides.items():
        print(f"{name}: {side.result(timeout=30)}", flush=True)


if __name__ == "__main__":
    main()
    # Closing would wait for acknowledgements that cannot come.
    import os

    os._exit(0)
