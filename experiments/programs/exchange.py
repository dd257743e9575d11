"""A program of one's own for `marked-rounds`: workers send the server a megabyte each round.

The server announces each gather to the lab: `begin ROUND gather`, `end ROUND gather`. Needs the
standard library alone.

    python3 exchange.py server WORKERS ROUNDS
    python3 exchange.py worker
"""

import os
import socket
import sys

PORT = 6000
SIZE_BYTES = 1_000_000


def main() -> None:
    role, *numbers = sys.argv[1:]
    if role == "server":
        serve(*map(int, numbers))
    else:
        work()


def serve(workers: int, rounds: int) -> None:
    with socket.socket(socket.AF_UNIX) as lab, socket.create_server(("", PORT)) as listener:
        lab.connect(os.environ["LAB_MARKERS"])
        answers = lab.makefile("r")

        def mark(line: str) -> str:
            lab.sendall(f"{line}\n".encode())
            answer = answers.readline().strip()
            if not answer.startswith("ok"):
                sys.exit(f"{line}: {answer}")
            return answer

        peers = [listener.accept()[0] for _ in range(workers)]
        for number in range(rounds):
            mark(f"begin {number} gather")
            for peer in peers:
                peer.sendall(b"g")  # go
            for peer in peers:
                receive(peer, SIZE_BYTES)
            in_force = mark(f"end {number} gather").split()[1:]
            print(f"round {number}: in force: {', '.join(in_force) or 'nothing'}", flush=True)
        for peer in peers:
            peer.close()


def work() -> None:
    payload = bytes(SIZE_BYTES)
    with socket.create_connection(("server", PORT)) as connection:
        while connection.recv(1):
            connection.sendall(payload)


def receive(peer: socket.socket, size_bytes: int) -> None:
    while size_bytes:
        text = peer.recv(min(size_bytes, 1 << 16))
        if not text:
            sys.exit("a worker has gone")
        size_bytes -= len(text)


if __name__ == "__main__":
    main()
