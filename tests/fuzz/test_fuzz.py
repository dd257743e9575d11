"""A few seconds of coverage-guided fuzzing of what reads bytes from the network.

Longer: `python -m tests.fuzz.datagrams FOLDER -max_total_time=3600`, where FOLDER keeps what was
found from one call to the next. Many, built by structure: `python -m tests.fuzz.connections`.
"""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from testbed.transport import PayloadLayout
from testbed.transport.core.messages import (
    PASS,
    ControlMessage,
    Hello,
    MessageType,
    Welcome,
    body_limits,
    pack_arrivals,
)
from testbed.transport.policies.repair import REPAIRS
from tests.transport.hostile import CHUNK, encoded

pytest.importorskip("atheris", reason="atheris (extra 'dev') has no wheel for this system")

SECONDS = 5
CURRENT = 2**32 - 1


def datagram_seeds():
    """One transfer, and one datagram of each kind of fault."""
    mark = 0xFF000000
    transfer = encoded([(mark, number, 0, CHUNK, number) for number in range(9)])
    faults = encoded([(mark, 99, 0, CHUNK, 0), (mark, 1, 0, 3, 0), (5, 1, 6, CHUNK, 0)])
    return [bytes([repair]) + transfer + faults for repair in range(len(list(REPAIRS)))]


def control_seeds():
    """Each type of message with its smallest and its largest body (if that is small)."""
    limits = body_limits(9)
    layout = PayloadLayout([("weights", 18)], CHUNK).encode()
    seeds = [
        Hello(session=1, name="worker-1", layout=layout).message().encode(),
        Welcome(session=1, data_port=2).message().encode(),
        layout,
    ]
    for kind, sizes in limits.items():
        if kind >= MessageType.PROBE:
            seeds += [
                ControlMessage(kind, CURRENT, bytes(min(size, 64))).encode() for size in sizes
            ]
    arrivals = [pack_arrivals(np.array(each)) for each in ([0, 1, 2, 3, 5, 6, 7, 8], [2, 7])]
    seeds += [
        ControlMessage(kind, CURRENT, body).encode()
        for kind, body in (
            (MessageType.PROBE, PASS.pack(1, 0)),
            (MessageType.PROBE, PASS.pack(1, 1)),
            *((MessageType.BITMAP, each) for each in arrivals),
        )
    ]
    seeds.append(b"".join(seeds[3:]))
    choices = [(side | repair) for side in (0, 0x80) for repair in range(len(list(REPAIRS)))]
    return [bytes([choice, 11]) + seed for choice in choices for seed in seeds]


@pytest.mark.parametrize(
    ("target", "seeds"), [("datagrams", datagram_seeds), ("control", control_seeds)]
)
def test_no_input_makes_it_fail(target, seeds, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    done = subprocess.run(
        [
            *(sys.executable, "-m", f"tests.fuzz.{target}", str(corpus)),
            *(f"-max_total_time={SECONDS}", "-max_len=1024", "-timeout=10", "-rss_limit_mb=2048"),
            *("-seed=1", f"-artifact_prefix={tmp_path}/"),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS + 60,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    executed = re.search(r"Done (\d+) runs", done.stderr)
    assert executed is not None, done.stderr[-1000:]
    assert int(executed[1]) > 500
