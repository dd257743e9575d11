"""Fuzz target: a connection takes any datagrams, and every one of them is accounted for.

    python -m tests.fuzz.datagrams CORPUS -max_total_time=60

The input's first byte chooses the repair, the rest are datagrams of one size back to back; a byte
255 in place of a session means this run's, so that the fuzzer need not guess 32 bits.
"""

import sys

import atheris

with atheris.instrument_imports(include=["testbed.transport"], enable_loader_override=False):
    from testbed.transport.core.wire import HEADER_BYTES
    from testbed.transport.policies.repair import REPAIRS
    from tests.transport.hostile import CHUNK, SESSION, TRANSFER, Victim

_SIZE = HEADER_BYTES + CHUNK
_NAMES = sorted(REPAIRS)


def one(data: bytes) -> None:
    """One input."""
    if not data:
        return
    victim = Victim(_NAMES[data[0] % len(_NAMES)], chunks=9, tolerance=0.1)
    datagrams = bytearray(data[1:])
    for at in range(0, len(datagrams) - HEADER_BYTES, _SIZE):
        if datagrams[at] == 0xFF:
            datagrams[at : at + 4] = SESSION.to_bytes(4, "big")
            datagrams[at + 8 : at + 12] = TRANSFER.to_bytes(4, "big")
    half = len(datagrams) // _SIZE // 2 * _SIZE
    victim.datagrams(bytes(datagrams[:half]))
    victim.wait(0.01)
    victim.datagrams(bytes(datagrams[half:]))
    victim.check()
    assert not victim.restarts, "a datagram is no reason to give up a peer"


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
