"""An endpoint's observer hears of what is being sent, seldom, and of nothing else."""

from __future__ import annotations

import numpy as np

from testbed.transport import Leg, Observation, open_endpoint, preset
from testbed.transport.core.reports import OBSERVATION_INTERVAL_S
from tests.transport.loopback import in_thread, site


def test_kernel_tcp_is_not_observed():
    place = site(preset("tcp"))
    heard: list[Observation] = []
    payload = place.layout.new_buffer()

    def work() -> None:
        with open_endpoint(place.worker(observer=heard.append)) as endpoint:
            endpoint.send(0, {"server": payload})
            endpoint.receive(1, 0, {"server": place.layout.new_buffer()})

    working = in_thread(work)
    with open_endpoint(place.server(observer=heard.append)) as endpoint:
        endpoint.receive(0, 0, {"worker-1": place.layout.new_buffer()})
        endpoint.send(1, {"worker-1": payload})
    working.result(timeout=20)
    assert not heard


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
    sending.result(timeout=20)

    assert not heard["server"]
    seen = heard["worker-1"]
    times = np.array([each.now_s for each in seen])
    assert (np.diff(times) >= OBSERVATION_INTERVAL_S).all()
    # 400 kB at 40 Mbit/s take 80 ms; a slow machine takes longer, and then observes more often.
    assert 4 <= len(seen) <= report.duration_s / OBSERVATION_INTERVAL_S + 2
    assert {each.peer for each in seen} == {"server"}
    assert {each.transfer for each in seen} == {Leg.GATHER.transfer(3)}
    assert {each.rate_bps for each in seen} == {40e6}
    assert {each.window_bytes for each in seen} == {np.inf}
    assert all(each.retransmits >= 0 for each in seen)
