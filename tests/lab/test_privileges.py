"""A run that `sudo` has started: its workers, and all of its files, are the caller's."""

import json
import os

import pytest
import yaml

from testbed.lab import Lab
from testbed.lab.kernel import privileges
from testbed.lab.kernel.privileges import Caller
from tests.documentation.shown import ROOT
from tests.lab.conftest import SMALL, Results, finished
from tests.lab_unit.test_privileges import reachable  # noqa: F401 - a fixture

NOBODY = 65534
pytestmark = [
    pytest.mark.beside,
    pytest.mark.usefixtures("unchanged_host"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

MODEL = """
import json, math, os
from pathlib import Path
import torch

def tried():
    found = {"user": os.geteuid()}
    for name, attempt in (
        ("chown", lambda: os.chown("/etc/hostname", 1, 1)),
        ("write", lambda: open("/etc/new-file", "w")),
        ("shadow", lambda: open("/etc/shadow")),
        ("network", lambda: open("/proc/1/ns/net")),
    ):
        try:
            attempt()
            found[name] = "done"
        except PermissionError:
            found[name] = "refused"
    return found

loaded = tried()

class Net(torch.nn.Sequential):
    def forward(self, pixels):
        Path(__file__).with_name(f"tried-{os.getpid()}").write_text(json.dumps([loaded, tried()]))
        return super().forward(pixels)

def build(classes, input_shape):
    return Net(torch.nn.Flatten(), torch.nn.Linear(math.prod(input_shape), classes))
"""


def test_a_run_under_sudo_is_the_callers(reachable, held_rate_bps, tmp_path):  # noqa: F811
    if not privileges.reaches(Caller(uid=NOBODY, gid=NOBODY), ROOT, "r"):
        pytest.skip("the project lies where no other user has a way")
    reachable.chmod(0o1777)
    (reachable / "net.py").write_text(MODEL)
    path = reachable / "small.yaml"
    # TCP with a congestion control that the machine need not allow to everybody; an impairment
    # that stops a worker.
    changes = {
        "arms": {"tcp": {"protocol": "tcp", "congestion_control": "cubic"}},
        "training": {**SMALL["training"], "model": "./net.py"},
        "impairments": [{"kind": "straggler", "host": "worker-1", "factor": 2, "rounds": [2]}],
    }
    path.write_text(yaml.safe_dump({**SMALL, **changes}))
    out = reachable / "out"
    environment = os.environ | {"SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY)}
    done = finished("run", str(path), "--out", str(out), "--retries", "0", env=environment)
    results = Results(done.returncode, out, done.stdout + done.stderr)
    results.assert_trained()
    [event] = [event for event in results.events("impairments", "tcp") if event["action"] == "end"]
    assert event["met"] > 0
    made = [out, *out.rglob("*")]
    assert {path.lstat().st_uid for path in made} == {NOBODY}
    refused = {"user": NOBODY} | dict.fromkeys(("chown", "write", "shadow", "network"), "refused")
    tried = [json.loads(path.read_text()) for path in reachable.glob("tried-*")]
    assert tried == [[refused, refused]] * len(tried)
    assert len(tried) >= 3  # server and workers, perhaps the command itself


def test_a_lab_from_python_under_sudo_leaves_the_callers_files(reachable, monkeypatch):  # noqa: F811
    reachable.chmod(0o1777)
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.setenv(name, str(NOBODY))
    out = reachable / "run"
    with Lab.from_topology({**SMALL["topology"]}, out=out) as lab:
        assert lab.directory is not None
        made = lab.directory / "by-a-program"
        lab.hosts["worker-1"].run(["touch", str(made)], check=True)
    assert (out / "by-a-program").exists()
    assert {entry.lstat().st_uid for entry in (out, *out.rglob("*"))} == {NOBODY}
