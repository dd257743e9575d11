"""A helper that sends UDP datagrams at a rate, for a while, through a socket of a traffic host.

{"do": "go", "duration_s": 0.5}  ->  {"began_s": ...} once the first datagrams are on their
                                     way, and when the time is over a record
{"do": "stop"}                   ->  ends earlier
"""

from __future__ import annotations

import argparse
import select
import socket
import time

import numpy as np

from testbed.lab.helpers.process import Requests, run_as_others, run_at_once
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES
from testbed.transport.net.udp import BatchSender

ETHERNET_IP_UDP_BYTES = 14 + 20 + 8
SMALLEST_FRAME_BYTES = 60
_BATCH = 128
# Shorter sleeps cost much processor time for little smoothness: this is 4 frames at 100 Mbit/s.
_SHORTEST_SLEEP_S = 0.0005
_WAIT_FOR_ROOM_S = 0.005
_NICENESS = -10  # where allowed, ahead of the flows that it disturbs


def blast(
    outgoing: socket.socket,
    address: tuple[str, int],
    *,
    rate_bps: float,
    frame_bytes: int,
    duration_s: float,
    requests: Requests,
) -> dict[str, float]:
    """Send equal datagrams at `rate_bps` (bit/s of Ethernet frames) until time or `stop`."""
    # After a late wake-up it sends all that is due at once: a busy machine reaches the rate, too.
    sender = BatchSender(frame_bytes - ETHERNET_IP_UDP_BYTES)
    sender.set_peer(address)
    datagrams = np.zeros((_BATCH, frame_bytes - ETHERNET_IP_UDP_BYTES), dtype=np.uint8)
    frames_per_s = rate_bps / (8 * frame_bytes)
    began_s = now_s = last_s = time.monotonic()
    frames = 0
    while now_s < began_s + duration_s:
        due = 1 + int((now_s - began_s) * frames_per_s)
        full = False
        if due > frames:
            try:
                batch = datagrams[: min(_BATCH, due - frames)]
                sent = sender.send(outgoing, batch, segmented=False)
                last_s = time.monotonic()
                if not frames:
                    requests.say({"began_s": last_s})
                    run_as_others(_NICENESS)  # sending may take all of a processor
                frames += sent
            except (BlockingIOError, ConnectionError):  # a full socket; an ICMP message
                full = True
        if not full and due - frames >= _BATCH:
            wait_s = 0.0
        elif full:
            wait_s = _WAIT_FOR_ROOM_S
        else:
            next_s = began_s + frames / frames_per_s
            wait_s = max(_SHORTEST_SLEEP_S, next_s - time.monotonic())
        writable = [outgoing] if full else []
        # `poll` knows whole milliseconds only; both descriptors' numbers suit `select`.
        ready, _, _ = select.select([requests.descriptor], writable, [], wait_s)
        if ready and requests.wait() in (None, {"do": "stop"}):
            break
        now_s = time.monotonic()
    return {"began_s": began_s, "ended_s": last_s, "frames": frames}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="the victim's")
    parser.add_argument("port", type=int)
    parser.add_argument("--from", dest="source", required=True, help="this host's own address")
    parser.add_argument("--rate-bps", type=float, required=True)
    parser.add_argument("--frame-bytes", type=int, default=ETHERNET_FRAME_BYTES)
    options = parser.parse_args()
    requests = Requests()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outgoing:
        outgoing.bind((options.source, 0))
        outgoing.setblocking(False)
        run_at_once()
        while (request := requests.wait()) is not None:
            if request["do"] == "go":
                sent = blast(
                    outgoing,
                    (options.address, options.port),
                    rate_bps=options.rate_bps,
                    frame_bytes=options.frame_bytes,
                    duration_s=request["duration_s"],
                    requests=requests,
                )
                requests.say(sent)
                run_at_once()


if __name__ == "__main__":
    main()
