"""Hosts that cost time: one thing after another, in the order of asking."""

from collections.abc import Callable

import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.processor import Costs, Processor
from tests.simulate.test_simulated_runs import executed, loaded, records


def test_a_processor_does_one_thing_after_another_and_wakes_who_waits_in_order():
    simulation = Simulation()
    processor = Processor(simulation, Costs(sent_s=0.001, received_s=0.002, batch_s=0.01))
    done: list[tuple[str, float, float]] = []
    wakers: dict[str, Callable[[], None]] = {}

    def worker(name, **amounts):
        def work():
            if not processor.keeps_waiting(wakers[name]):
                processor.spend(**amounts)
                done.append((name, round(simulation.now_s, 9), round(processor.free_s, 9)))

        wakers[name] = work
        return work

    simulation.at(0.0, worker("one", sent=10))  # 20 ms
    simulation.at(0.001, worker("two", received=5))  # 20 ms
    simulation.at(0.002, worker("three", sent=1, received=1))  # 13 ms
    simulation.at(0.003, wakers["two"])  # asks again, and still does it once
    simulation.run()
    assert done == [("one", 0.0, 0.02), ("two", 0.02, 0.04), ("three", 0.04, 0.053)]


@pytest.fixture
def gathered_s(tmp_path):
    def simulate(*settings):
        short = ["impairments=[]", "rounds=2", "training.pace.scale=0.02"]
        (of_lab,) = loaded(tmp_path, "reliable", *short, *settings)
        run = of_lab.in_virtual_time()
        directory = executed(tmp_path / run.key, run)
        server = records(directory, "transfers-server.jsonl")
        chunks = sum(leg["chunk_count"] for leg in server if leg["leg"] == "gather") / 2
        return records(directory, "rounds.jsonl")[1]["gather_s"], chunks

    return simulate


def test_a_server_slower_than_its_link_sets_the_pace_and_a_faster_one_delays_little(gathered_s):
    """Three workers share its link; each datagram takes 0.12 ms there, and twice that at it."""
    free_s, chunks = gathered_s()
    slow_s, _ = gathered_s("simulation={received_s: 0.00024}")
    assert slow_s > 1.5 * free_s
    assert slow_s == pytest.approx(chunks * 0.00024, rel=0.1)
    busy_s, _ = gathered_s("simulation={received_s: 0.00001, sent_s: 0.00001, batch_s: 0.00002}")
    assert free_s < busy_s < 1.1 * free_s


def test_costs_are_in_a_run_s_key_only_where_there_are_any(tmp_path):
    def key(*settings):
        (run,) = loaded(tmp_path, "dblp", *settings)
        return run.key, run.in_virtual_time().key

    of_lab, simulated = key()
    assert key("simulation={batch_s: 0}") == (of_lab, simulated)
    costing = key("simulation={batch_s: 0.001}")
    assert costing[0] == of_lab  # a lab's hosts cost what they cost
    assert costing[1] not in (of_lab, simulated)
