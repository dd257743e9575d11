"""What goes before what, where both control messages and data are due."""

import math
from types import SimpleNamespace
from typing import Any, cast

from testbed.transport.net.link import Link
from tests.transport.driver_parts import RestingData, Stream


def test_control_messages_that_are_due_go_before_data_and_what_data_cause_goes_behind():
    order: list[object] = []
    due = [b"worth"]

    class Data(RestingData):
        def write(self, connection, now_s):
            order.append("data")
            due.append(b"probe")

        blocked = False
        unread_until_s = -math.inf

        def due_s(self, connection_due_s):
            return connection_due_s

    stream = Stream()
    stream.write = order.append  # type: ignore[method-assign]
    connection = SimpleNamespace(
        control=lambda: due.pop(0) if due else b"",
        on_deadline=lambda now_s: None,
        next_deadline_s=lambda now_s, departing: None,
        lost=None,
    )
    Link(cast(Any, connection), cast(Any, stream), cast(Any, Data(-math.inf))).work(0.0)
    assert order == [b"worth", "data", b"probe"]
