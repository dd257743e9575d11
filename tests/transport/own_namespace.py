"""Runs a module of these tests in a network namespace of its own, where packets may be dropped."""

import os
import subprocess
import sys

import pytest


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
