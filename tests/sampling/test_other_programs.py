"""The programs that take the processors from a lab are known by name, and by nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from testbed.sampling import other_programs
from testbed.sampling.other_programs import FILE, OtherPrograms
from tests.busy import DIES_TOO

BUSY = "import ctypes; ctypes.CDLL(None).prctl(15, b'{name}')\nwhile True: pass  # secret={name}"


def test_a_busy_program_is_named_and_the_labs_own_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(other_programs, "INTERVAL_S", 0.2)
    # A process with a busy child stands for the sandbox.
    script = f'{" ".join(DIES_TOO)} {sys.executable} -c "$0"; :'
    lab = subprocess.Popen([*DIES_TOO, "sh", "-c", script, BUSY.format(name="in-lab")])
    hog = subprocess.Popen([*DIES_TOO, sys.executable, "-c", BUSY.format(name="hog (x) y")])
    children = f"/proc/{lab.pid}/task/{lab.pid}/children"
    watched, unwritten = OtherPrograms(tmp_path, lab.pid), OtherPrograms(None, lab.pid)
    try:
        watched.begin()
        unwritten.begin()
        time.sleep(2.0)
    finally:
        watched.end()
        unwritten.end()
        with open(children) as text:  # noqa: PTH123
            for child in text.read().split():
                subprocess.run(["kill", "-9", child], check=True)
        for each in (lab, hog):
            each.kill()
            each.wait()
    text = (tmp_path / FILE).read_text()
    document = json.loads(text)
    shares = {each["name"]: each["share"] for each in document["programs"]}
    assert shares["hog (x) y"] > 0.1
    assert "in-lab" not in shares
    assert "secret" not in text
    assert sum(shares.values()) <= 1.05
    assert document["samples"] >= 3
    assert "hog (x) y 0." in other_programs.largest(tmp_path, 10)
    assert other_programs.largest(tmp_path, 1).count(".") == 1
    assert watched.largest() == other_programs.largest(tmp_path)
    assert "hog (x) y" in unwritten.largest()


def test_a_run_without_the_file_names_no_program(tmp_path):
    assert other_programs.largest(tmp_path) == ""
    OtherPrograms(tmp_path, 1).end()  # of a lab that never came to train
    assert not (tmp_path / FILE).exists()


def test_a_process_with_the_id_of_one_that_has_ended_is_another(tmp_path, monkeypatch):
    # (name, parent, start, ticks) of process 7 in each sample: another one has its id in the third.
    samples = iter([("hog", 2, 10, 900), ("hog", 2, 10, 901), ("hog", 2, 20, 3), ("hog", 2, 20, 4)])
    ended = threading.Event()

    def read(pid: int) -> tuple[str, int, int, int] | None:
        if (found := next(samples, None)) is None:
            ended.set()
        return found

    monkeypatch.setattr(other_programs, "INTERVAL_S", 0.001)
    monkeypatch.setattr(other_programs, "_read", read)
    monkeypatch.setattr(other_programs.os, "listdir", lambda path: ["7"])
    watched = OtherPrograms(tmp_path, 1)
    watched.begin()
    assert ended.wait(10.0)
    watched.end()
    document = json.loads((tmp_path / FILE).read_text())
    used_s = document["programs"][0]["share"] * (os.cpu_count() or 1)
    used_s *= document["ended_s"] - document["began_s"]
    assert used_s * os.sysconf("SC_CLK_TCK") == pytest.approx((901 - 900) + 3 + (4 - 3))
