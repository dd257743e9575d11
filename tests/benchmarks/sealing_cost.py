"""What a checksum or an authentication of every datagram costs, and a flood of foreign ones.

    python -m tests.benchmarks.sealing_cost

Two processes on loopback, in turns; processor seconds per gigabyte of payload at each end, the
median and the range of the turns. `none`, `crc` and `mac` are unpaced. `paced`, `beside` and
`flooded` send at 400 Mbit/s; in the last a third process sends 3,000 datagrams a second to the
receiver's port, in `beside` to a port that nobody has, which costs the machine as much.
"""

import math
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

from testbed.transport import Credentials, EndpointConfig, PayloadLayout, open_endpoint, preset
from testbed.transport.net import keys

PAYLOAD_BYTES = 50_000_000
TRANSFERS = 4
TURNS = 5
PACED = ("paced", "beside", "flooded")
KINDS = ("none", "crc", "mac", *PACED)
DATA_PORT = 21810
FLOOD_PER_S, FLOOD_S = 3000, 20.0


def flood(address: str, port: int) -> None:
    """Sends to a port until it is ended, or for FLOOD_S."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as strange:
        began_s = time.monotonic()
        for number in range(int(FLOOD_PER_S * FLOOD_S)):
            strange.sendto(bytes(1456), (address, port))
            time.sleep(max(0.0, began_s + number / FLOOD_PER_S - time.monotonic()))


def one(kind: str, folder: Path, turn: int) -> tuple[float, float]:
    """Processor seconds per gigabyte of the receiver and of the sender."""
    layout = PayloadLayout([("payload", PAYLOAD_BYTES // 4)], chunk_bytes=1440)
    prefix = f"127.88.{1 + os.getpid() % 250}"
    addresses = {"server": f"{prefix}.1", "worker-1": f"{prefix}.2"}

    def config(name: str, peer: str) -> EndpointConfig:
        return EndpointConfig(
            session=1 + turn,
            name=name,
            bind_address=addresses[name],
            peers={peer: addresses[peer]},
            is_server=name == "server",
            protocol=preset("fixed-low", tolerance=0),
            layout=layout,
            rate_bps=400e6 if kind in PACED else math.inf,
            control_port=21800,
            data_port=DATA_PORT,
            checksum=kind == "crc",
            credentials=Credentials.of(folder, name, [peer]) if kind == "mac" else None,
        )

    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            buffer = layout.new_buffer()
            buffer[:] = 1
            with open_endpoint(config("worker-1", "server")) as endpoint:
                endpoint.send(0, {"server": buffer})
                began_s = time.process_time()
                for number in range(1, 1 + TRANSFERS):
                    endpoint.send(number, {"server": buffer})
                os.write(writing, str(time.process_time() - began_s).encode())
        finally:
            os._exit(0)
    buffer = layout.new_buffer()
    with open_endpoint(config("server", "worker-1")) as endpoint:
        endpoint.receive(0, 0, {"worker-1": buffer})
        port = DATA_PORT + 50 * (kind == "beside")
        flooding = multiprocessing.Process(target=flood, args=(addresses["server"], port))
        if kind in ("beside", "flooded"):
            flooding.start()
        began_s = time.process_time()
        for number in range(1, 1 + TRANSFERS):
            endpoint.receive(number, 0, {"worker-1": buffer})
        receiver_s = time.process_time() - began_s
        if kind in ("beside", "flooded"):
            flooding.terminate()
            flooding.join()
        assert (endpoint.counters().get("unknown-address", 0) > FLOOD_PER_S) == (kind == "flooded")
    os.waitpid(pid, 0)
    sender_s = float(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    gigabytes = TRANSFERS * PAYLOAD_BYTES / 1e9
    return receiver_s / gigabytes, sender_s / gigabytes


def main() -> None:
    measured: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        keys.make(Path(folder), ["server", "worker-1"])
        for turn in range(TURNS):
            for kind in KINDS:
                measured[kind].append(one(kind, Path(folder), turn))
    print(f"load {os.getloadavg()[0]:.1f}; processor seconds per GB, median (least to most)")
    for kind in KINDS:
        for end, values in zip(
            ("receiver", "sender"), zip(*measured[kind], strict=True), strict=True
        ):
            median = statistics.median(values)
            print(f"{kind:7} {end:9} {median:5.2f}  ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
