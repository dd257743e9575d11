"""Run inside a network namespace of its own: records loopback traffic, prints what came of it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from testbed.capture import recorder
from testbed.lab.network import HostInfo

BODY = bytes(5000)


def main() -> None:
    folder, bound_bytes = Path(sys.argv[1]), int(sys.argv[2])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    host = HostInfo(name="lo", address="127.0.0.1", mac="", pid=os.getpid(), interface="lo")
    listener = socket.create_server(("127.0.0.1", 46999))
    target = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    target.bind(("127.0.0.1", 47000))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.sendto(b"before", target.getsockname())
    recorder.RUN_BYTES = bound_bytes
    with recorder.recording({"lo": host}, ["lo"], folder) as recordings:
        # The first and the last packet of the recording, and much in between.
        for number in range(1000):
            sender.sendto(number.to_bytes(4, "big") + bytes(1400), target.getsockname())
        connection = socket.create_connection(listener.getsockname())
        connection.sendall(BODY)
        sender.sendto(b"last" + bytes(300), target.getsockname())
    sender.sendto(b"after", target.getsockname())
    print(json.dumps(recordings[0]))


if __name__ == "__main__":
    main()
