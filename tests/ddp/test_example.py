"""The scripts that users begin with run under torchrun, and refuse bad input in one line."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAIN, SELDOM = ROOT / "examples/ddp_train.py", ROOT / "examples/diloco_train.py"
SMALL = {
    TRAIN: ["--epochs", "1", "--images", "640", "--width", "4"],
    SELDOM: ["--rounds", "4", "--every", "3", "--width", "4"],
}


def torchrun(script, *arguments, status=0, **more):
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"),
            *("--standalone", str(script), *SMALL[script], *arguments),
        ],
        env={**os.environ, **own, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) == (status != 0), done.stdout + done.stderr
    return done


def test_its_help_needs_no_docstrings():
    namespace = runpy.run_path(str(TRAIN))
    assert "--protocol" in namespace["common_options"](None).format_help()


@pytest.mark.timeout(240)
def test_it_trains_and_resumes(tmp_path):
    folder = ["--checkpoint", str(tmp_path)]
    lines = torchrun(TRAIN, *folder).stdout.splitlines()
    assert lines[0].startswith("epoch 0: accuracy 0.")
    assert "carried_by='transport'" in lines[1]
    assert {path.name for path in tmp_path.iterdir()} == {"rank-0.pt", "rank-1.pt"}
    lines = torchrun(TRAIN, *folder, "--epochs", "2", "--mode", "reliable").stdout.splitlines()
    assert lines[0].startswith("epoch 1: accuracy 0.")


def test_bad_input_is_one_line_and_status_2():
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, str(TRAIN), "--mode", "lossy"]
    environment = {**os.environ, **alone, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "mode is 'lossy'; valid: bounded, reliable, local" in done.stderr.splitlines()


def moved(lines):
    """It returns how far the mean moved the parameters, in each of the four rounds."""
    return [float(line.partition("moved by ")[2].partition(",")[0]) for line in lines[:4]]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("beside_gloo", [False, pytest.param(True, marks=pytest.mark.long)])
def test_ranks_that_meet_seldom_train_as_with_all_reduces(beside_gloo):
    """Without loss, the means differ by rounding at most."""
    over_ours = torchrun(SELDOM, "--mode", "reliable").stdout.splitlines()
    assert min(moved(over_ours)) > 0
    assert "carried_by='transport'" in over_ours[4]
    if beside_gloo:
        over_gloo = torchrun(SELDOM, "--protocol", "gloo").stdout.splitlines()
        assert moved(over_ours) == pytest.approx(moved(over_gloo), rel=1e-3)
        assert len(over_gloo) == 4
