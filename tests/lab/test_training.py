"""Training through real labs: continuing, lost workers, resynchronisation, pace."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.lab.conftest import Results, is_alive, wait_for
from tests.lab.test_run import RELIABLE
from tests.training.single_process import single_process_weights

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

TRAINING: dict[str, Any] = {"batch_size": 16, "evaluate_every": 3}


def weights(folder: Path, worker: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / f"weights-{worker}.pt", weights_only=True)
    return found


def test_an_interrupted_run_goes_on_and_ends_with_the_same_weights(command, tmp_path):
    training = {
        **TRAINING,
        "checkpoint_every": 2,
        "pace": {"kind": "paced", "compute_s": 0.15},
    }
    arm = {**RELIABLE, "filling": "error-feedback"}
    process = command(rounds=8, arms={"dblp": arm}, training=training)
    folder = tmp_path / "out"
    wait_for(lambda: list(folder.glob("*/*.partial/checkpoint/2")))
    inside = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "interrupted; this continues: ./lab resume " in output
    assert not [each for each in inside if is_alive(each)]
    assert Results(130, output, folder).verdict()["verdict"] == "interrupted"
    # A retry begins anew: the continued attempt may well be invalid, on a disturbed machine.
    words = ("resume", str(tmp_path / "out.yaml"), "--out", str(folder), "--retries", "0")
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    results = Results(done.returncode, done.stdout + done.stderr, folder)
    results.assert_trained()
    record = json.loads((results.run() / "continued.json").read_text())
    assert record["rounds_done"] >= 2
    torch.set_num_threads(1)
    expected = single_process_weights(
        rounds=8, workers=2, seed=1, batch_size=16, learning_rate=0.05, momentum=0.9
    )
    for worker in ("worker-1", "worker-2"):
        for name, tensor in weights(results.run(), worker).items():
            assert torch.equal(tensor, expected[name]), (worker, name)
        # No round is logged twice or missing, and the training time went on.
        log = results.events(f"training-{worker}")
        assert [each["round"] for each in log] == list(range(8))
        elapsed = [each["elapsed_s"] for each in log]
        assert elapsed == sorted(elapsed)
    assert [each["round"] for each in results.events("rounds")] == list(range(8))
    assert not (results.run() / "checkpoint" / "8").exists()


@pytest.mark.long  # tests/training/test_whole.py; a crash whose worker comes back: below
def test_training_goes_on_without_a_crashed_worker(run_small):
    results = run_small(
        topology={"name": "star", "workers": 3, "rate_bps": 100_000_000, "queue_bytes": 150_000},
        arms={"dblp": RELIABLE},
        training={**TRAINING, "on_worker_loss": "continue"},
        impairments=[{"kind": "crash", "host": "worker-2", "rounds": [2]}],
    )
    results.assert_trained()
    status = results.verdict()
    assert "worker-2" in status["reason"]
    rounds = results.events("rounds")
    assert [each["round"] for each in rounds] == list(range(6))
    assert rounds[1]["workers_lost"] == []
    assert rounds[-1]["workers_lost"] == ["worker-2"]
    assert not (results.run() / "weights-worker-2.pt").exists()
    first, third = (weights(results.run(), name) for name in ("worker-1", "worker-3"))
    assert all(torch.equal(first[name], third[name]) for name in first)
    accuracies = [each["accuracy"] for each in results.events("training-worker-3")]
    assert accuracies[-1] is not None


def test_a_crashed_worker_comes_back_as_an_equal_replica(run_small):
    """Its weights end as a single process computes them, without its gradients of lost rounds."""
    rounds = 12
    results = run_small(
        rounds=rounds,
        topology={"name": "star", "workers": 3, "rate_bps": 100_000_000, "queue_bytes": 150_000},
        arms={"dblp": RELIABLE},
        training={
            **TRAINING,
            "on_worker_loss": "rejoin",
            "restarts": {"after_s": 0.5},
            "pace": {"kind": "paced", "compute_s": 0.25},
        },
        impairments=[{"kind": "crash", "host": "worker-2", "rounds": [2], "leg": "gather"}],
    )
    results.assert_trained()
    cause = "worker-2: killed by SIGKILL by impairment crash-worker-2 (kind crash)"
    assert f"restarted {cause}; worker-2 came back in round " in results.verdict()["reason"]
    (restart,) = results.events("restarts")
    assert restart["process"] == "worker-2"
    assert restart["restart"] == 1
    assert restart["restarted_s"] - restart["ended_s"] >= 0.5
    (back,) = results.events("returns")
    assert back["workers"] == ["worker-2"]
    assert back["giver"] == "worker-1"
    log = results.events("rounds")
    assert [each["round"] for each in log] == list(range(rounds))
    gone = [each["round"] for each in log if each["workers_lost"]]
    assert gone == list(range(2, back["round"]))
    assert 3 <= back["round"] < rounds
    returned = {each["round"]: each["workers_returned"] for each in log}
    assert returned.pop(back["round"]) == ["worker-2"]
    assert not any(returned.values())
    gathered = [
        each["round"] for each in results.events("transfers-server") if each["leg"] == "gather"
    ]
    parts = [[0, 2] if number in gone else [0, 1, 2] for number in range(rounds)]
    assert [gathered.count(number) for number in range(rounds)] == list(map(len, parts))
    torch.set_num_threads(1)
    expected = single_process_weights(
        rounds=rounds,
        workers=3,
        seed=1,
        batch_size=16,
        learning_rate=0.05,
        momentum=0.9,
        parts=parts,
    )
    for worker in ("worker-1", "worker-2", "worker-3"):
        for name, tensor in weights(results.run(), worker).items():
            assert torch.equal(tensor, expected[name]), (worker, name)


def test_replicas_drift_apart_and_resynchronisation_brings_them_together(run_small):
    arm = {"protocol": "dblp", "low": 0.4, "high": 0.4, "order": "shuffled"}
    training = {**TRAINING, "measure_every": 1, "resynchronise_every": 3}
    # On links without loss both workers give up the same chunks: those that the server sends last.
    hits = [
        {"kind": "loss", "host": host, "leg": "broadcast", "rounds": {"every": 1}, "q": 0.3}
        for host in ("worker-1", "worker-2")
    ]
    results = run_small(rounds=9, arms={"dblp": arm}, training=training, impairments=hits)
    results.assert_trained()
    effects = results.events("effects")
    assert [each["round"] for each in effects] == list(range(9))
    drift = [each["divergence"] for each in effects]
    for start in (0, 3, 6):
        assert 0 < drift[start] < drift[start + 1] < drift[start + 2]
    assert drift[3] < drift[2]
    assert drift[6] < drift[5]
    for each in effects:
        # About a share of 0.4 of the squared norm is missing; of both legs, more.
        assert 0.3 < each["gathered"]["relative_error"] < 1
        assert 0 < each["gathered"]["cosine"] < 1
        for applied in each["applied"].values():
            assert applied["relative_error"] > each["gathered"]["relative_error"]
    assert [each["round"] for each in results.events("resynchronisations")] == [2, 5, 8]
    first, second = (weights(results.run(), name) for name in ("worker-1", "worker-2"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    for each in results.events("transfers-server"):
        if each["role"] == "receiver":
            assert len(each["tensor_loss"]) == 8
            lost = 1 - each["chunks_received"] / each["chunk_count"]
            assert min(each["tensor_loss"]) <= lost <= max(each["tensor_loss"])


@pytest.mark.long  # what they learn: tests/training; labs of gates and of many workers send them
def test_payloads_alone_take_the_time_they_are_given_and_learn_nothing(run_small):
    training = {**TRAINING, "pace": {"kind": "payload-only", "compute_s": 0.1}}
    results = run_small(rounds=3, arms={"dblp": RELIABLE}, training=training)
    results.assert_trained()
    for each in results.events("training-worker-1"):
        assert each["compute_s"] >= 0.1
        assert each["loss"] is None
        assert each["accuracy"] is None
    for each in results.events("transfers-server"):
        assert each["chunks_received"] == each["chunk_count"]
    assert not (results.run() / "weights-worker-1.pt").exists()
