"""Whole runs through Mininet, Open vSwitch and Ryu: delivery, exact weights, injected loss."""

from __future__ import annotations

import math

import pytest
import torch

from tests.training.single_process import single_process_weights

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

RELIABLE = {"protocol": "dblp", "low": 0, "high": 0}


@pytest.mark.parametrize(
    "arm", [RELIABLE, {"protocol": "tcp-reno"}], ids=["udp-tolerance-0", "tcp"]
)
def test_without_loss_the_weights_equal_a_single_process_bit_for_bit(run_small, arm):
    """And each host notes the congestion control that the kernel really used."""
    torch.set_num_threads(1)
    results = run_small(arms={"dblp": arm})
    results.assert_trained()
    for host in ("server", "worker-1", "worker-2"):
        (record,) = results.events(f"endpoint-{host}")
        assert ("reno" in str(record["facts"])) == (arm is not RELIABLE), record
    expected = single_process_weights(
        rounds=6, workers=2, seed=1, batch_size=16, learning_rate=0.05, momentum=0.9
    )
    for worker in ("worker-1", "worker-2"):
        weights = torch.load(results.run() / f"weights-{worker}.pt", weights_only=True)
        assert weights.keys() == expected.keys()
        for name, tensor in weights.items():
            assert torch.equal(tensor, expected[name]), (worker, name)


def test_injected_loss_is_what_was_configured_and_the_bound_is_kept(run_small):
    hit = {"kind": "loss", "host": "server", "leg": "gather", "rounds": [2, 4], "q": 0.5}
    results = run_small(arms={"dblp": {"protocol": "fixed-low"}}, impairments=[hit])
    results.assert_trained()
    transfers = results.events("transfers-server")
    gathered = [each for each in transfers if each["leg"] == "gather"]
    for each in gathered:
        assert each["chunks_received"] >= math.ceil(each["chunk_count"] * (1 - 0.008))
        assert (each["passes"] > 1) is (each["round"] in (2, 4)), each
    impairments = results.events("impairments")
    assert [(each["action"], each["round"]) for each in impairments] == [
        ("begin", 2),
        ("end", 2),
        ("begin", 4),
        ("end", 4),
    ]
    for each in impairments:
        assert each["planned_s"] <= each["sent_s"] <= each["acknowledged_s"]
    # Every datagram that the workers sent in those rounds either arrived or was dropped on purpose.
    sent = sum(
        each["chunks_sent"]
        for worker in ("worker-1", "worker-2")
        for each in results.events(f"transfers-{worker}")
        if each["leg"] == "gather" and each["round"] in (2, 4)
    )
    dropped = sum(each["dropped"] or 0 for each in impairments)
    deviation = math.sqrt(sent * 0.5 * 0.5)
    assert abs(dropped - 0.5 * sent) < 5 * deviation
    rounds = results.events("rounds")
    assert [bool(each["impairments"]) for each in rounds] == [
        number in (2, 4) for number in range(6)
    ]


def test_lossy_rounds_stop_early_and_workers_follow_the_announced_phase(run_small):
    arm = {"protocol": "dblp", "high": 0.5}
    # A cadence of one round and an eta that no change reaches: calm from the second round on.
    phases = {"eta": 1000.0, "cadence": 1}
    results = run_small(arms={"dblp": arm}, phases=phases, rounds=5)
    results.assert_trained()
    rounds = results.events("rounds")
    assert [each["critical"] for each in rounds] == [True, False, False, False, False]
    for worker in ("worker-1", "worker-2"):
        for each in results.events(f"transfers-{worker}"):
            if each["role"] == "receiver":
                arrived = each["chunks_received"] / each["chunk_count"]
                assert arrived >= (0.992 if each["round"] == 0 else 0.5)
                # The bound is used: the receiver stops within a few batches of it.
                assert each["round"] == 0 or arrived < 0.9


def test_order_and_filling_of_each_leg_reach_the_training(run_small):
    arm = {
        "protocol": "dblp-stream",
        "low": 0.3,
        "high": 0.3,
        "filling": {"gather": "error-feedback", "broadcast": "previous"},
    }
    results = run_small(arms={"dblp": arm})
    results.assert_trained()
    for host, leg, count in (("server", "gather", 12), ("worker-1", "broadcast", 6)):
        received = [
            each
            for each in results.events(f"transfers-{host}")
            if each["role"] == "receiver" and each["leg"] == leg
        ]
        assert len(received) == count
        # A transfer takes 5 ms: a receiver without a processor for 2 ms of them misses nothing.
        missed = [each for each in received if each["chunks_received"] < each["chunk_count"]]
        assert len(missed) >= count / 2
    # What was not delivered is owed: the sender knows how much arrived.
    sent = [each for each in results.events("transfers-worker-1") if each["role"] == "sender"]
    shares = [each["chunks_received"] / each["chunk_count"] for each in sent]
    assert min(shares) < 1
    assert all(0.7 <= share <= 1 for share in shares)
    assert all(each["nonfinite"] == 0 for each in results.events("training-worker-1"))


@pytest.mark.long  # tests/run/test_requirements.py; unsupported runs: test_ordinary_user.py
def test_kernel_tcp_uses_the_named_congestion_control_or_the_run_is_unsupported(run_small):
    results = run_small(arms={"dblp": {"protocol": "tcp", "congestion_control": "nonesuch"}})
    status = results.verdict()
    assert status["verdict"] == "unsupported"
    assert "nonesuch" in status["reason"]
    assert "reno" in status["reason"]
