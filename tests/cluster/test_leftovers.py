"""What killed workers leave behind."""

import os
import subprocess

from testbed.cluster.worker import _forget_dead


def test_the_folders_of_killed_workers_are_removed_by_the_next(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f"lab-block-{ended.pid}-x", f"lab-block-{os.getpid()}-y", "lab-block-mine-z"):
        (tmp_path / name).mkdir()
    _forget_dead(tmp_path)
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {f"lab-block-{os.getpid()}-y", "lab-block-mine-z"}
