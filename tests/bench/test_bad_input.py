"""Bad input of the verb `bench` is one line, before anything is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("tranport",),
            "unknown benchmark 'tranport'; valid: transport, peer, factorial",
        ),
        (("transport", "--cases", "warp"), "--cases warp: matches none; they begin with 100M"),
        (("peer", "."), "has no mlt.py; expected a clone of github.com/ZechenM/bound-tolerance"),
        (("transport", "--json", "no/such.json"), "--json no/such.json: no such folder"),
        (("transport", "--compare", "no.json"), "--compare no.json: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(arguments, expected, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "bench", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
