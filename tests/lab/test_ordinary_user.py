"""A whole run without root: the sandbox is a user namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.lab.conftest import SMALL

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

ROOT = Path(__file__).resolve().parents[2]

# As root, in a mount namespace of the test's own: a tun device that everybody may open (as on
# ordinary distributions), and the project at a place that every user can reach. Then drop to
# an ordinary user.
SCRIPT = """
set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/lab /mnt/venv /mnt/out
mount --bind "$1" /mnt/lab
mount --bind "$2" /mnt/venv
mknod -m 0666 /mnt/tun c 10 200
mount --bind /mnt/tun /dev/net/tun
cp "$3" /mnt/small.yaml
chmod 0644 /mnt/small.yaml
chown 65534:65534 /mnt/out
cd /mnt/lab
set +e
as_user="setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --no-new-privs"
$as_user unshare --user true || exit 77
$as_user env -i PATH="$PATH" HOME=/mnt/out PYTHONPATH=/mnt/lab PYTHONDONTWRITEBYTECODE=1 \
  /mnt/venv/bin/python -m testbed run /mnt/small.yaml --out /mnt/out --pcap
status=$?
cat /mnt/out/small/*/status.json /mnt/out/small/*/manifest.json >"$4"
exit $status
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test runs as an ordinary user already")
def test_an_ordinary_user_gets_the_same_lab(tmp_path):
    experiment = tmp_path / "small.yaml"
    hit = {"kind": "loss", "host": "server", "leg": "gather", "rounds": [2], "q": 0.5}
    experiment.write_text(yaml.safe_dump({**SMALL, "impairments": [hit]}))
    facts = tmp_path / "facts"
    done = subprocess.run(
        [
            *("unshare", "--mount", "bash", "-c", SCRIPT, "bash"),
            *(str(ROOT), sys.prefix, str(experiment), str(facts)),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"needs capability user namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    decoder = json.JSONDecoder()
    text = facts.read_text()
    status, end = decoder.raw_decode(text)
    manifest, _ = decoder.raw_decode(text[end:].lstrip())
    assert status["verdict"] == "ok"
    assert manifest["user_namespace"] is True
    [capture] = manifest["captures"]
    assert capture["packets"] > 1000
    assert not capture["failure"]
