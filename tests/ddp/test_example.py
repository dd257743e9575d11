"""The script that users begin with runs under torchrun, and refuses bad input in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples/ddp_train.py"
SMALL = ["--epochs", "1", "--images", "640", "--width", "4"]


def trained(*arguments):
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"),
            *("--standalone", str(TRAIN), *SMALL, *arguments),
        ],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(240)
def test_it_trains_and_resumes(tmp_path):
    folder = ["--checkpoint", str(tmp_path)]
    lines = trained(*folder)
    assert lines[0].startswith("epoch 0: accuracy 0.")
    assert "by transport" in lines[1]
    assert {path.name for path in tmp_path.iterdir()} == {"rank-0.pt", "rank-1.pt"}
    lines = trained(*folder, "--epochs", "2", "--mode", "reliable")
    assert lines[0].startswith("epoch 1: accuracy 0.")


def test_bad_input_is_one_line_and_status_2():
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, str(TRAIN), "--mode", "lossy"]
    environment = {**os.environ, **alone, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "mode is 'lossy'; valid: bounded, reliable, local" in done.stderr.splitlines()
