"""A disk that fills up while a run trains: the sweep ends in one line, and goes on later."""

import os
import subprocess
import sys

import pytest
import yaml

from tests.documentation.shown import ROOT
from tests.lab.conftest import SMALL

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("unchanged_host"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: needs root"),
]

# In a mount namespace of its own: a small disk, filled when the first round is logged, then freed.
SCRIPT = """
mount -t tmpfs -o size=48m tmpfs "$1" || exit 9
( while ! ls "$1"/small/*.partial/events/rounds.jsonl >/dev/null 2>&1; do sleep 0.05; done
  dd if=/dev/zero of="$1/filler" bs=64k 2>/dev/null ) &
filling=$!
"$3" -m testbed run "$2" --out "$1" --retries 0
echo "run: $?"
wait $filling
rm "$1/filler"
"$3" -m testbed run "$2" --out "$1" --retries 0
echo "again: $?"
"""


def test_a_sweep_on_a_disk_that_fills_up_ends_in_one_line_and_resumes(tmp_path):
    disk, path = tmp_path / "disk", tmp_path / "small.yaml"
    disk.mkdir()
    path.write_text(yaml.safe_dump({**SMALL, "rounds": 30}))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(disk), str(path), sys.executable],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
        check=False,
    )
    first, _, second = done.stdout.partition("run: 2\n")
    assert "seed 1: interrupted: the disk is full" in first, done.stdout + done.stderr
    (line,) = [printed for printed in done.stderr.splitlines() if printed.startswith("lab: ")]
    assert "the disk is full: " in line
    assert "Traceback" not in done.stdout + done.stderr
    assert ": ok" in second, done.stdout + done.stderr
    assert "again: 0" in second
