"""Runs a module of these tests in a network namespace of its own, where packets may be dropped."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.rtnetlink import Rtnetlink


@contextlib.contextmanager
def neighbour(near: str, far: str) -> Iterator[int]:
    """A process in a second namespace, and a veth pair with these addresses: `near` is here."""
    with subprocess.Popen(["unshare", "--net", "sleep", "100"]) as other:
        try:
            here, there = (Path(f"/proc/{each}/ns/net") for each in ("self", other.pid))
            while there.readlink() == here.readlink():
                time.sleep(0.01)
            with Rtnetlink() as kernel:
                kernel.send([rtnetlink.veth("near", "far", peer_pid=other.pid)])
            for pid, name, address in ((None, "near", near), (other.pid, "far", far)):
                with Rtnetlink(pid) as kernel:
                    index = kernel.index(name)
                    kernel.send([rtnetlink.up(index), rtnetlink.address(index, f"{address}/24")])
            yield other.pid
        finally:
            other.kill()


def told_by(module: str, *arguments: str, timeout_s: float) -> str:
    """What the module prints; skips where there is no such namespace, or no nft in it."""
    namespace = ["unshare", "--user", "--map-root-user", "--net"]
    if os.geteuid() == 0:
        namespace = ["unshare", "--net"]
    trial = subprocess.run([*namespace, "nft", "list", "ruleset"], capture_output=True, check=False)
    if trial.returncode:
        pytest.skip(f"needs '{' '.join(namespace)}' and nft")
    done = subprocess.run(
        [*namespace, sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
