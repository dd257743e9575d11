"""A sweep from the command line: labelled levels, resumed where it ended, retried in its bound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.conftest import SMALL

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.usefixtures("unchanged_host")]

HALF = {"label": "half"}
# No emulator's rate is exact to a part in a billion, so this one is always invalid.
QUARTER = {
    "label": "quarter, unfulfillable",
    "training.pace.scale": 0.25,
    "limits.rate_error": 1e-9,
}
SWEEP: dict[str, Any] = {
    "rounds": 2,
    "training": {"model": "mlp", "batch_size": 8, "pace": {"kind": "payload-only", "scale": 0.5}},
    "factors": {"payload": [HALF, QUARTER]},
}
MLP_WEIGHTS = 50_826
ELEMENTS_PER_CHUNK = 1456 // 4


def lab(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testbed", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def check_payload(directory: Path, scale: float) -> None:
    """What went over the wire had the scaled size, and the configuration tells the profile."""
    assert read(directory / "config.json")["profile"] == "laptop"
    elements = read(directory / "training.json")["model"]["parameters"]
    assert elements == pytest.approx(MLP_WEIGHTS * scale, rel=0.001)
    lines = (directory / "events" / "transfers-server.jsonl").read_text().splitlines()
    counts = {json.loads(line)["chunk_count"] for line in lines}
    assert counts == {-(-elements // ELEMENTS_PER_CHUNK)}


def test_a_sweep_is_resumed_where_it_ended_and_an_invalid_run_is_tried_again(tmp_path):
    path, out = tmp_path / "small.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump({**SMALL, **SWEEP}, sort_keys=False))
    first = lab("run", str(path), "--out", str(out), "--set", "factors={payload: [{label: half}]}")
    assert first.returncode == 0, first
    (half,) = (out / "small").glob("dblp-*")
    check_payload(half, 0.5)

    done = lab("run", str(path), "--out", str(out), "--retries", "1")
    assert done.returncode == 1, done
    assert done.stdout.count("(done before)") == 1
    assert "retry 1 of 1" in done.stdout
    assert "calibrated rate error" in done.stdout
    plan = {
        each["factors"]["payload"]: each["key"] for each in read(out / "small/plan.json")["runs"]
    }
    assert plan["half"] == half.name
    quarter = out / "small" / plan["quarter, unfulfillable"]
    for directory in (quarter, quarter.with_name(f"{quarter.name}.attempt1")):
        assert read(directory / "status.json")["verdict"] == "invalid"
        check_payload(directory, 0.25)
    assert len(list((out / "small").glob("dblp-*"))) == 3
