"""Frames that the kernel paces: as many as were asked for, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.lab

# In a network namespace of its own: a veth pair stands for the link.
INSIDE = """
import json, time
from pathlib import Path
from testbed.lab.kernel.rtnetlink import bring_up_silent
from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.paced_frames import PacedFrames

def counted(interface, what):
    return int(Path(f"/sys/class/net/{interface}/statistics/{what}_packets").read_text())

with Rtnetlink() as kernel:
    kernel.send([rtnetlink.veth("near", "far")])
for end in ("near", "far"):
    bring_up_silent(end)
paced = PacedFrames("near", bytes(100), rate_bps=3e6, link_rate_bps=1e6)
time.sleep(1.5)  # IPv6 would have spoken by now
unasked = counted("paced0a", "tx") + counted("paced0b", "tx") + counted("far", "rx")
waiting = paced.send(203)
time.sleep(0.5)
print(json.dumps([paced.copies, unasked, waiting, counted("far", "rx")]))
"""


def test_what_was_sent_arrives_and_nothing_comes_of_its_own_accord():
    # sysfs shows the interfaces of the namespace that it was mounted in.
    mounted = 'mount -t sysfs sysfs /sys && exec "$@"'
    argv = ["unshare", "-r", "-n", "-m", "sh", "-c", mounted, "-", sys.executable, "-c", INSIDE]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    copies, unasked, waiting, arrived = json.loads(done.stdout)
    assert (copies, unasked) == (4, 0)
    assert waiting == arrived == 200  # in whole clumps
