"""The script that users begin with runs under torchrun, and refuses bad input in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples/ddp_train.py"
SMALL = ["--epochs", "1", "--images", "640", "--width", "4"]


def torchrun(*arguments, status=0, **more):
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"),
            *("--standalone", str(SCRIPT), *SMALL, *arguments),
        ],
        env={**os.environ, **own, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) == (status != 0), done.stdout + done.stderr
    return done


def test_it_is_short():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.timeout(240)
def test_it_trains_and_resumes(tmp_path):
    folder = ["--checkpoint", str(tmp_path)]
    lines = torchrun(*folder).stdout.splitlines()
    assert lines[0].startswith("epoch 0: accuracy 0.")
    assert "carried_by='transport'" in lines[1]
    assert {each.name for each in tmp_path.iterdir()} == {"rank-0.pt", "rank-1.pt"}
    lines = torchrun(*folder, "--epochs", "2", "--mode", "reliable").stdout.splitlines()
    assert lines[0].startswith("epoch 1: accuracy 0.")


def test_bad_input_is_one_line():
    done = torchrun("--interface", "eth99", status=1)
    lines = [line for line in done.stderr.splitlines() if "interface is 'eth99'; valid: " in line]
    assert lines  # torchrun may end the other rank before it has said so too
    assert "exitcode  : 2" in done.stderr
