"""The model of kernel TCP: closed forms, timers, accounts, and contents."""

import itertools
import math

import numpy as np
import pytest

from testbed.simulate.kernel_tcp import KERNEL_CONTROLS, TcpSender
from testbed.training.coding import Outgoing
from testbed.training.fillings import ErrorFeedback
from testbed.transport import preset
from testbed.transport.order import Arranger
from testbed.transport.path_estimates import PathEstimates
from tests.simulate.rounds import CHUNK_BYTES, Star
from tests.transport.loopback import run_all, site

WIRE_BYTES = CHUNK_BYTES + 66  # Ethernet, IPv4, TCP with timestamps


def star(control="reno", **changed):
    options = {"workers": 1, "chunks": 300, "delay_s": 0.005, "rate_bps": 1e8}
    return Star(**{**options, "protocol": f"tcp-{control}", **changed})


def departures(net, sender="worker-1"):
    """Notes how many datagrams have come to a sender's link, each millisecond."""
    seen, link = [], net.links[sender, "switch"]

    def look():
        link.catch_up()
        seen.append((net.simulation.now_s, link.sent))
        net.simulation.at(net.simulation.now_s + 0.001, look)

    net.simulation.at(0.0, look)
    return lambda: [b[0] for a, b in itertools.pairwise(seen) if b[1] > a[1]]


@pytest.mark.parametrize("control", KERNEL_CONTROLS)
def test_without_loss_a_transfer_takes_what_its_segments_take_on_the_link(control):
    net = star(control, chunks=4000, queue_bytes=2e6)
    (first,) = net.run(1)
    link_s = 4000 * WIRE_BYTES * 8 / 1e8
    # A slow start from 10 segments in a round trip of 20 ms; 167 of them fill the path.
    assert link_s < first.gather_s - 0.02 < link_s + 0.1
    report = first.gathered["worker-1"]
    assert (report.chunks_received, report.bytes_received) == (4000, 4000 * WIRE_BYTES)


@pytest.mark.parametrize("loss", [0.03, 0.015])
def test_reno_keeps_to_the_square_root_law(loss):
    """Mathis et al. (1997): sqrt(3 / (2 p)) segments a round trip, where nothing else limits."""
    net = star("reno", chunks=round(20 / loss), rate_bps=1e10, queue_bytes=math.inf)
    net.links["worker-1", "switch"].set_loss(loss)
    rounds = net.run(2)
    per_round_trip = round(20 / loss) / (rounds[1].gather_s / 0.02)
    assert 0.6 < per_round_trip / math.sqrt(1.5 / loss) < 1.4


@pytest.mark.parametrize("control", KERNEL_CONTROLS)
def test_bytes_are_delivered_exactly_and_packets_accounted_for(control):
    net = star(control, workers=3, chunks=150, loss=0.03, queue_bytes=30_000, contents=True)
    rounds = net.run(2)
    for buffer in net.buffers.values():
        assert np.array_equal(buffer, net.payload(1))
    for played in rounds:
        for report in (*played.gathered.values(), *played.broadcast.values()):
            assert report.chunks_received in (150, None)
    for link in net.links.values():
        link.catch_up()
    came = sum(net.links["switch", name].sent for name in (*net.names, "server"))
    into = [net.links[name, "switch"] for name in (*net.names, "server")]
    assert came == sum(link.sent - link.dropped - link.lost for link in into)
    sent = sum(report.chunks_sent for played in rounds for report in played.broadcast.values())
    assert net.links["server", "switch"].sent == sent


def test_a_silent_path_is_tried_after_200_ms_and_then_half_as_often_each_time():
    calm, net = star("cubic", chunks=60), star("cubic", chunks=60)
    calm.run(1)
    # Half a round trip before the server hears that its broadcast has arrived.
    began_s = calm.simulation.now_s - 0.01
    link, went = net.links["worker-1", "switch"], departures(net)
    net.simulation.at(began_s - 1e-6, lambda: link.set_loss(1.0))
    net.simulation.at(began_s + 2.0, lambda: link.set_loss(0.0))
    net.run(2)
    late = [at_s - began_s for at_s in went() if began_s + 0.1 < at_s < began_s + 2.0]
    timeout_s = late[0]
    assert 0.2 < timeout_s < 0.26
    assert late == pytest.approx([timeout_s, 3 * timeout_s, 7 * timeout_s], abs=0.03)
    # The next one is the first that arrives; then slow start, in round trips.
    assert 0 < net.rounds[1].gather_s - 15 * timeout_s < 0.3


def test_a_smaller_minimum_brings_the_timeout_forward():
    gathers_s = []
    for least_s in (0.2, 0.005):
        net = star("cubic", chunks=60, tcp_least_timeout_s=least_s)
        link = net.links["worker-1", "switch"]
        net.simulation.at(0.03, lambda link=link: link.set_loss(1.0))
        net.simulation.at(0.1, lambda link=link: link.set_loss(0.0))
        gathers_s.append(net.run(1)[0].gather_s)
    # The first timeout after the silence comes less than 0.1 s after it, instead of after 0.2 s.
    assert gathers_s[1] < gathers_s[0] - 0.1


@pytest.mark.parametrize("first", [100, 295])
def test_a_lost_segment_costs_round_trips_and_no_timeout(first):
    """In the middle later ones reveal it; at the end a probe does."""
    calm, net = star("cubic"), star("cubic")
    link = net.links["worker-1", "switch"]
    counted = iter(range(10**6))
    link.set_loss(lambda: first <= next(counted) < first + 5)
    (one,), (two,) = calm.run(1), net.run(1)
    assert link.lost == 5
    assert 0.01 < two.gather_s - one.gather_s < 0.18
    assert two.gathered["worker-1"].chunks_received == 300


def test_a_heavy_burst_ends_in_timeouts_as_it_does_in_a_kernel():
    """90 % loss for a second: the third timeout, at 1.5 s, is the first after it."""
    for control in KERNEL_CONTROLS:
        net = star(control, chunks=146, workers=3, delay_s=0.0, queue_bytes=150_000)
        links = [net.links[name, "switch"] for name in net.names]
        for link in links:
            link.set_loss(0.9)
            net.simulation.at(1.0, lambda link=link: link.set_loss(0.0))
        (only,) = net.run(1)
        assert 1.2 < only.gather_s < 2.0
        assert sum(link.lost for link in links) < 3 * 146


def test_bbr_looks_for_the_round_trip_after_ten_seconds_and_for_200_ms_as_linux_does():
    net = star("bbr", chunks=9999, rate_bps=6e6, delay_s=0.006)
    link, went = net.links["worker-1", "switch"], departures(net)
    net.simulation.at(0.5, lambda: link.set_delay(0.008))  # the least is not seen again
    net.run(1, until_s=11.0)
    per_tenth, _ = np.histogram(went(), np.arange(0.0, 11.05, 0.1))  # 49 that the link takes
    assert set(np.flatnonzero(per_tenth < 30)) == {4, 101, 102}  # the first ends slow start


def test_a_kernel_is_not_asked_for_an_answer_though_the_timer_comes_late():
    path = PathEstimates()
    path.on_round_trip(0.01)
    sender = TcpSender(transfer=0, chunk_count=8, arrange=Arranger(np.arange(8)), estimates=path)
    sender.on_sent(8, 1.0)
    sender.on_deadline(1.1)
    assert not sender.outbox


CHUNKS = 300


def payload(layout):
    """It makes chunks of all sizes, some of equal energy, one with a NaN."""
    random = np.random.default_rng(5)
    size = np.repeat(random.integers(1, 12, layout.chunk_count), layout.elements_per_chunk)
    values = layout.plain.new_buffer()
    floats = layout.plain.floats(values)
    floats[:] = size[: layout.element_count]
    floats[::3] *= 0.4
    floats[200 * layout.elements_per_chunk] = np.nan
    return values


@pytest.mark.parametrize(
    ("keep", "codec"), [(0.1, "float32"), (0.33, "float32"), (0.33, "int4"), (0.1, "one-bit")]
)
def test_a_simulated_and_a_real_connection_choose_deliver_and_owe_the_same(keep, codec):
    protocol = preset("top-k", keep=keep, codec=codec)
    # The last chunk is a half.
    net = Star(workers=1, chunks=CHUNKS - 0.5, protocol=protocol, loss=0.02, contents=True)
    layout, values = net.layout, payload(net.layout)

    def outgoing():
        return Outgoing(ErrorFeedback().sender_memory(layout.plain), layout)

    sent = outgoing().payload(values, 0)
    net.payload = lambda number: sent  # type: ignore[method-assign]
    (simulated,) = net.run(1)
    place = site(protocol, layout=layout)

    def server(endpoint):
        gathered = endpoint.receive(0, 0, {"worker-1": layout.new_buffer()})["worker-1"]
        return gathered, endpoint.send(1, {"worker-1": sent})["worker-1"]

    def worker(endpoint, index):
        endpoint.send(0, {"server": sent})
        buffer = layout.new_buffer()
        endpoint.receive(1, 0, {"server": buffer})
        return buffer

    (gathered, broadcast), [delivered] = run_all(place, server, worker)
    assert np.array_equal(net.buffers["worker-1"], delivered)
    assert delivered.any()
    count = -(-int(keep * 1000) * CHUNKS // 1000)
    pairs = [(simulated.gathered, gathered), (simulated.broadcast, broadcast)]
    for ours, theirs in ((mine["worker-1"], real) for mine, real in pairs):
        assert ours.received is not None and theirs.received is not None
        assert np.array_equal(ours.received, theirs.received)
        assert ours.chunks_received == theirs.chunks_received == count
        assert ours.chunk_count == theirs.chunk_count == CHUNKS
        owed = []
        for report in (ours, theirs):
            side = outgoing()
            side.payload(values, 0)
            side.settle(report)
            owed.append(layout.plain.floats(side.memory.residual))
        assert np.array_equal(owed[0], owed[1])
        # Owed is what was not delivered, and nothing else.
        came, whole = layout.read(delivered), layout.plain.floats(values)
        if codec == "float32":
            assert np.array_equal(owed[0] + came, whole, equal_nan=True)
        sound = np.isfinite(came)
        assert layout.elements_per_chunk >= np.count_nonzero(~sound) > 0
        assert np.allclose((owed[0] + came)[sound], whole[sound], rtol=1e-6, atol=1e-5)
        assert not owed[0][~sound].any()


@pytest.mark.parametrize(
    ("protocol", "contents_bytes", "segments"),
    [
        (preset("one-bit"), CHUNKS * CHUNK_BYTES, CHUNKS),
        # A ninth of the chunks: 54 bytes more than they hold, so one segment more.
        (preset("top-k", keep=0.112), 16 + -(-CHUNKS // 8) + 34 * CHUNK_BYTES, 35),
    ],
)
def test_chunks_and_head_and_bitmap_take_their_segments_on_the_link(
    protocol, contents_bytes, segments
):
    assert segments == -(-contents_bytes // CHUNK_BYTES)
    net = Star(workers=2, chunks=CHUNKS, protocol=protocol, contents=True)
    (only,) = net.run(1)
    for report in (*only.gathered.values(), *only.broadcast.values()):
        assert report.chunks_received == (CHUNKS if segments == CHUNKS else 34)
    for report in only.gathered.values():
        assert report.bytes_received == segments * (CHUNK_BYTES + 66)
    for name in net.names:
        net.links[name, "switch"].catch_up()
        assert net.links[name, "switch"].sent == segments
