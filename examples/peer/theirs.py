"""Stands for another implementation of a transport, which `plain_tcp.py` drives."""

import socket


def send_all(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)


def receive_all(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        some = connection.recv(size - len(data))
        if not some:
            raise ConnectionError("the sender is gone")
        data += some
    return bytes(data)
