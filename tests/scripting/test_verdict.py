"""A script's verdict names the programs outside its lab, which the lab itself cannot see."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from testbed.sampling import other_programs
from testbed.scripting import lab as scripting_lab
from testbed.scripting.steward import Steward
from testbed.verdict.gate import Gate

# Answers as a steward does, and judges by what it is told of other programs.
STAND_IN = """
import socket, sys
from testbed.scripting.channel import Channel, ChannelError
from testbed.verdict.gate import compared
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
try:
    channel.receive()
    channel.send({"hosts": {}, "links": [], "impairments": []})
    while True:
        request, _ = channel.receive()
        gate = compared("others", "cpu_others", 0.5, 0.25, where=request["others"])
        channel.send({"status": "invalid", "gates": [gate.as_json()]})
except ChannelError:
    pass
"""


def start(_module, *arguments, pass_fds, stdout, stderr, outlives_thread):
    return subprocess.Popen(
        [sys.executable, "-c", STAND_IN, *arguments],
        stdin=subprocess.PIPE,
        pass_fds=pass_fds,
        stdout=stdout,
        stderr=stderr,
    )


def test_a_busy_program_beside_a_lab_is_named_in_its_verdict(monkeypatch):
    monkeypatch.setattr(other_programs, "INTERVAL_S", 0.2)
    monkeypatch.setattr(scripting_lab.sandbox, "start", start)
    busy = "import ctypes; ctypes.CDLL(None).prctl(15, b'the-hog')\nwhile True: pass"
    hog = subprocess.Popen([sys.executable, "-c", busy])
    try:
        with scripting_lab.Lab({}, out=None, calibrated=True) as lab:
            threading.Event().wait(2.0)
            (reason,) = lab.verdict().reasons
    finally:
        hog.kill()
        hog.wait()
    assert "the-hog 0." in reason
    assert "other-programs" not in {thread.name for thread in threading.enumerate()}


def test_a_lab_that_is_not_judged_samples_no_programs(monkeypatch):
    monkeypatch.setattr(scripting_lab.sandbox, "start", start)
    with scripting_lab.Lab({}, out=None, calibrated=False):
        assert "other-programs" not in {thread.name for thread in threading.enumerate()}


def test_the_steward_judges_by_the_programs_that_it_is_told_of(tmp_path: Path):
    told: list[str | None] = []

    def judge(*, others: str | None) -> list[Gate]:
        told.append(others)
        return []

    steward: Any = object.__new__(Steward)
    steward._judged, steward._verdict = True, None
    steward._impairments, steward._config, steward._begun = {}, {"impairments": []}, Counter()
    steward._controller = SimpleNamespace(finish=lambda: None)
    steward._watched = SimpleNamespace(close=lambda: None)
    steward._directory, steward._began_at, steward._began_s = tmp_path, "", 0.0
    steward._lab = SimpleNamespace(
        lab=SimpleNamespace(impairment_log=tmp_path / "none"),
        judge=judge,
    )
    answer, _ = steward.do_verdict({"do": "verdict", "others": "the-hog 0.50"}, [])
    assert (answer["status"], told) == ("ok", ["the-hog 0.50"])
