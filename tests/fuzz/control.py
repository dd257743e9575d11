"""Fuzz target: a connection takes any control stream in any pieces.

    python -m tests.fuzz.control CORPUS -max_total_time=60

The input's first byte chooses the repair and the side, the second the size of the pieces; the rest
is the stream, in which a transfer of 0xFFFFFFFF means the one in progress. The same bytes are also
read as introductions.
"""

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["testbed"], enable_loader_override=False):
    from testbed.transport.core.errors import ProtocolError
    from testbed.transport.core.layout import PayloadLayout
    from testbed.transport.core.messages import Hello
    from testbed.transport.policies.repair import REPAIRS
    from tests.transport.hostile import SIDES, TRANSFER, Victim

_NAMES = sorted(REPAIRS)


def one(data: bytes) -> None:
    """One input."""
    if len(data) < 3:
        return
    victim = Victim(_NAMES[data[0] % len(_NAMES)], chunks=9, tolerance=0.1)
    side = SIDES[data[0] < 0x80]
    stream = data[2:].replace(b"\xff\xff\xff\xff", TRANSFER.to_bytes(4, "big"))
    size = data[1] + 1
    for at in range(0, len(stream), size):
        victim.control(side, stream[at : at + size])
        victim.wait(0.0001)
    victim.check()
    with contextlib.suppress(ProtocolError):
        PayloadLayout.decode(Hello.parse(stream).layout if len(stream) >= 8 else stream)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
