"""Real labs on the workers of a real scheduler, one of which is killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from testbed.shared import python_module
from tests.cluster.loopback import loopback, until
from tests.lab.conftest import SMALL

# Workers of a scheduler without labs: tests/cluster.
pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.usefixtures("unchanged_host")]


def test_the_lab_of_a_worker_that_is_killed_is_built_again_by_another(tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL, sort_keys=False))
    # Tells whether a lab goes on, and so that the worker is killed in the middle of one.
    blocks = tmp_path / "blocks"
    blocks.mkdir()
    with loopback(tmp_path / "cluster") as cluster:
        first = cluster.worker(environment={"TMPDIR": str(blocks)})
        words = ("run", "small.yaml", "--out", "out", "--scheduler", cluster.address)
        command = subprocess.Popen(
            python_module.command("testbed", *words),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            until(lambda: list(blocks.glob("*/*.partial/calibration.json")))
            first.send_signal(signal.SIGKILL)
            cluster.worker()
            said, _ = command.communicate(timeout=100)
        finally:
            command.kill()
    assert "was lost; its block is tried elsewhere" in said
    assert command.returncode == 0, said
    (status,) = tmp_path.glob("out/small/*/status.json")
    assert json.loads(status.read_text())["verdict"] == "ok"
    rounds = (status.parent / "events" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(each)["round"] for each in rounds] == list(range(SMALL["rounds"]))
    assert not list(Path(tmp_path, "out").glob("*/*.partial"))
