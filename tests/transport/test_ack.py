"""The ACK message at the ends of its fields' ranges, and what is no ACK."""

import struct

import numpy as np
import pytest

from testbed.transport import ProtocolError
from testbed.transport.core.ack import Ack
from testbed.transport.core.wire import SEND_INDEX_MODULUS, U32_MAX

NOTHING = np.zeros(0, dtype=np.bool_)


def body(*, first=0, echo=0xFFFF, held_us=0, probed=0, marked=0, flags=0):
    return struct.pack("!HHIIHH", first, echo, held_us, probed, marked, flags)


@pytest.mark.parametrize(
    ("malformed", "named"),
    [
        (body()[:-1], "ACK with a body of 15 bytes"),
        (b"", "ACK with a body of 0 bytes"),
        (body(flags=2), "flags 0x2; valid: 0 and 1"),
        (body(flags=3), "flags 0x3"),
        (body(first=SEND_INDEX_MODULUS), "send indices 32768 and 65535"),
        (body(echo=SEND_INDEX_MODULUS), "send indices 0 and 32768"),
        (body(echo=0xFFFE), "send indices 0 and 65534"),
    ],
)
def test_what_is_no_ack_is_refused(malformed, named):
    with pytest.raises(ProtocolError, match=named):
        Ack.parse(malformed)


def test_the_largest_of_each_field_are_taken():
    last = SEND_INDEX_MODULUS - 1
    read = Ack.parse(
        body(first=last, echo=last, held_us=U32_MAX, probed=U32_MAX, marked=0xFFFF, flags=1)
    )
    assert (read.first, read.echo, read.probed, read.marked) == (last, last, U32_MAX, 0xFFFF)
    assert (read.held_s, read.at_once, len(read.arrived)) == (U32_MAX / 1e6, True, 0)


@pytest.mark.parametrize(
    ("held_s", "marked", "told"),
    [(-1.0, 0, (0.0, 0)), (1e9, 0x10000, (U32_MAX / 1e6, 0xFFFF)), (2.5e-6, 3, (2e-6, 3))],
)
def test_what_does_not_fit_its_field_is_cut_to_it(held_s, marked, told):
    ack = Ack(first=0, arrived=NOTHING, echo=None, held_s=held_s, probed=0, marked=marked)
    read = Ack.parse(ack.message(6).body)
    assert (read.held_s, read.marked) == told
    assert (read.echo, read.at_once) == (None, False)
