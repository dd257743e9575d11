"""An endpoint's observer hears of what is being sent, seldom, and of nothing else."""

import math
from dataclasses import replace

import numpy as np

from testbed.transport import Leg, Observation, SendingPath, open_endpoint, preset
from testbed.transport.congestion import FixedRate
from testbed.transport.events import OBSERVATION_INTERVAL_S
from tests.transport.loopback import in_thread, site
from tests.transport.virtual import bitmap, layout_of, new_sender


def test_a_sender_is_observed_at_most_every_interval_and_a_receiver_not_at_all():
    place = site(preset("fixed-low", tolerance=0), rate_bps=40e6)
    heard: dict[str, list[Observation]] = {"server": [], "worker-1": []}
    payload = place.layout.new_buffer()
    place.layout.floats(payload)[:] = np.arange(100_001)

    def work() -> None:
        config = place.worker(observer=heard["worker-1"].append)
        with open_endpoint(config) as endpoint:
            endpoint.send(Leg.GATHER.transfer(3), {"server": payload})

    sending = in_thread(work)
    with open_endpoint(place.server(observer=heard["server"].append)) as endpoint:
        into = {"worker-1": place.layout.new_buffer()}
        report = endpoint.receive(Leg.GATHER.transfer(3), 0.0, into)["worker-1"]
    sending.result(timeout=30)

    assert not heard["server"]
    seen = heard["worker-1"]
    times = np.array([observation.now_s for observation in seen])
    assert (np.diff(times) >= OBSERVATION_INTERVAL_S).all()
    # 400 kB at 40 Mbit/s take 80 ms; a slow machine takes longer, and then observes more often.
    assert 4 <= len(seen) <= report.duration_s / OBSERVATION_INTERVAL_S + 2
    assert {observation.peer for observation in seen} == {"server"}
    assert {observation.transfer for observation in seen} == {Leg.GATHER.transfer(3)}
    assert {observation.rate_bps for observation in seen} == {40e6}
    assert {observation.window_bytes for observation in seen} == {np.inf}
    assert all(observation.retransmits >= 0 for observation in seen)


def test_an_observation_tells_pace_window_round_trip_and_repetitions():
    path = SendingPath(congestion=FixedRate(rate_bps=1e9), chunk_bytes=16)
    sender = new_sender(layout_of(3), path=path)
    first = sender.observe("server", 0.0)
    assert first == Observation(
        now_s=0.0,
        peer="server",
        transfer=6,
        rate_bps=1e9,
        window_bytes=math.inf,
        rtt_s=None,
        retransmits=0,
    )
    sender.sent(len(sender.offer(0.0)), 0.0)
    sender.on_message(bitmap(1), 0.25)
    sender.sent(len(sender.offer(0.25)), 0.25)
    later = sender.observe("server", 0.5)
    assert later == replace(first, now_s=0.5, rtt_s=0.25, retransmits=2)
