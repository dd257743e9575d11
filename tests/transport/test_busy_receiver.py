"""A congestion control whose receiver is busy most of the time, in virtual time.

Its answers come late and give no round trip of the path. The path is 1 Gbit/s and 0.1 ms, which
hold 9 datagrams; what comes in one of the receiver's absences of 10 ms are 860.
"""

import statistics

import numpy as np
import pytest

from testbed.transport.congestion import Bbr
from testbed.transport.wire import wire_bytes
from tests.transport.test_congestion import report
from tests.transport.virtual import Two, ended

RATE_BPS, DELAY_S, BUSY_S = 1e9, 50e-6, 10e-3
CHUNK_BYTES, CHUNKS = 1400, 500
SIZE = wire_bytes(1, CHUNK_BYTES)
BUFFER_BYTES = 200 * SIZE


class Busy(Two):
    """One transfer after another to a receiver that looks up once in BUSY_S, from some time on."""

    def __init__(self, control, repair, **settings) -> None:
        link = {"rate_bps": RATE_BPS, "delay_s": DELAY_S, "chunk_bytes": CHUNK_BYTES}
        super().__init__(
            chunks=CHUNKS, repair=repair, congestion=control, peer_timeout_s=1e6, **link, **settings
        )
        self.link.set_rate(RATE_BPS)
        self.overflows = 0

    def be_busy(self) -> None:
        now_s = self.simulation.now_s
        self.server.be_busy(now_s + BUSY_S)
        self.simulation.at(now_s + BUSY_S - 1e-9, self.count)
        self.simulation.at(now_s + BUSY_S + 1e-6, self.be_busy)

    def count(self) -> None:
        """Those that wait for the receiver do not fit into its socket beyond so many."""
        self.server.arrivals.catch_up()
        now_s, waiting = self.simulation.now_s, self.server.inbox._heap
        came = sum(int(np.count_nonzero(entry[2].times_s <= now_s)) for entry in waiting)
        self.overflows += max(0, came - BUFFER_BYTES // SIZE)

    def transfer(self) -> float:
        began_s, number = self.simulation.now_s, len(self.sent)
        self.worker.batches.clear()
        self.begin(number)
        self.simulation.run(done=lambda: number in ended(self.worker))
        return self.simulation.now_s - began_s

    @property
    def mean_batch(self) -> float:
        return statistics.mean(size for _, size in self.worker.batches)


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
@pytest.mark.parametrize("control", ["bbr", "ltp"])
def test_what_the_path_brings_in_an_absence_is_sent_in_it(control, repair):
    busy = Busy(control, repair)
    for _ in range(3):
        busy.transfer()
    batch = busy.mean_batch
    busy.be_busy()
    for _ in range(6):
        took_s = busy.transfer()
    assert took_s < 1.5 * BUSY_S
    assert busy.mean_batch > batch / 2


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
def test_who_never_gets_an_answer_in_time_doubles_its_window_with_each_answer(repair):
    busy = Busy("bbr", repair)
    busy.be_busy()
    times_s = [busy.transfer() for _ in range(4)]
    assert times_s[0] < 7 * BUSY_S  # 10, 30, 70, 150, 310 datagrams
    assert times_s[-1] < 2.5 * BUSY_S


@pytest.mark.parametrize("measured", [True, False])
def test_no_more_is_sent_than_the_socket_of_a_busy_receiver_holds(measured):
    busy = Busy("bbr", "passes", receive_buffer_bytes=BUFFER_BYTES)
    if measured:
        busy.transfer()
    busy.be_busy()
    for _ in range(5):
        assert busy.transfer() < (CHUNKS * SIZE / BUFFER_BYTES + 5) * BUSY_S
    assert busy.overflows <= 0.05 * 5 * CHUNKS  # without a bound: 0.42


def answer(at_s, *, waited=False, lost=0, window=10):
    return report(
        at_s,
        (window - lost) * SIZE,
        lost_bytes=lost * SIZE,
        in_flight_bytes=window * SIZE,
        rtt_s=None if waited else 1e-3,
        newest_sent_s=at_s - (0.1 if waited else 1e-3),
        waited=waited,
    )


@pytest.mark.parametrize(("lost", "lowers"), [(0, False), (1, False), (5, True)])
def test_answers_that_waited_lower_the_bandwidth_only_where_much_is_lost(lost, lowers):
    control = Bbr(datagram_bytes=SIZE)
    control.on_transfer_begin(0.0)
    now_s = 0.0
    for _ in range(20):
        control.on_sent(10 * SIZE, now_s)
        now_s += 1e-3
        control.on_feedback(answer(now_s))
    known_bps = control.bandwidth_bps
    assert known_bps == pytest.approx(10 * SIZE * 8 / 1e-3)
    for _ in range(60):
        control.on_sent(10 * SIZE, now_s)
        now_s += 0.1
        control.on_feedback(answer(now_s, waited=True, lost=lost))
    assert (control.bandwidth_bps < known_bps / 10) == lowers
