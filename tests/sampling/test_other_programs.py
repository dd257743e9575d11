"""The programs that take the processors from a lab are known by name, and by nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from testbed.sampling import other_programs
from testbed.sampling.other_programs import FILE, OtherPrograms

BUSY = "import ctypes; ctypes.CDLL(None).prctl(15, b'{name}')\nwhile True: pass  # secret={name}"


def test_a_busy_program_is_named_and_the_labs_own_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(other_programs, "INTERVAL_S", 0.2)
    # A process with a busy child stands for the sandbox.
    lab = subprocess.Popen(["sh", "-c", f'{sys.executable} -c "$0"; :', BUSY.format(name="in-lab")])
    hog = subprocess.Popen([sys.executable, "-c", BUSY.format(name="hog (x) y")])
    children = f"/proc/{lab.pid}/task/{lab.pid}/children"
    watched = OtherPrograms(tmp_path, lab.pid)
    try:
        watched.begin()
        time.sleep(2.0)
    finally:
        watched.end()
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


def test_a_run_without_the_file_names_no_program(tmp_path):
    assert other_programs.largest(tmp_path) == ""
    watched = OtherPrograms(tmp_path, 1)
    watched.end()  # a lab that never came to train
    assert not (tmp_path / FILE).exists()
