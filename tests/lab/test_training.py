"""Training through real labs: lost workers, resynchronisation, pace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.test_run import RELIABLE

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

TRAINING: dict[str, Any] = {"batch_size": 16, "evaluate_every": 3}


def weights(folder: Path, worker: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / f"weights-{worker}.pt", weights_only=True)
    return found


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
