"""Checkpoints: whole or not there."""

from typing import Any

import numpy as np
import pytest
import torch

from testbed.training import checkpoint


def test_a_checkpoint_counts_when_it_is_complete_and_replaces_older_ones(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    state: dict[str, Any] = {
        "weights": np.arange(3.0),
        "nested": {"rounds": [1, 2]},
        "rng": torch.get_rng_state(),
    }
    checkpoint.write(tmp_path, 10, "worker-1", state)
    assert checkpoint.latest(tmp_path) is None
    checkpoint.complete(tmp_path, 10)
    assert checkpoint.latest(tmp_path) == 10
    checkpoint.write(tmp_path, 20, "worker-1", state)
    assert checkpoint.latest(tmp_path) == 10
    checkpoint.complete(tmp_path, 20)
    assert checkpoint.latest(tmp_path) == 20
    assert not checkpoint.folder(tmp_path, 10).exists()
    found = checkpoint.read(tmp_path, 20, "worker-1")
    assert found["nested"] == {"rounds": [1, 2]}
    np.testing.assert_array_equal(found["weights"].numpy(), np.arange(3.0))
    assert torch.equal(found["rng"], state["rng"])


def test_a_truncated_part_is_one_clear_error(tmp_path):
    checkpoint.write(tmp_path, 5, "server", {"weights": np.arange(1000.0)})
    checkpoint.complete(tmp_path, 5)
    path = checkpoint.folder(tmp_path, 5) / "server.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.read(tmp_path, 5, "server")


def test_numbers_that_numpy_made_come_back_as_plain_ones(tmp_path):
    state = {"critical": np.float32(3) > 2, "norms": [np.float32(0.5), np.int64(7)]}
    checkpoint.write(tmp_path, 1, "server", state)
    checkpoint.complete(tmp_path, 1)
    assert checkpoint.read(tmp_path, 1, "server") == {"critical": True, "norms": [0.5, 7]}
