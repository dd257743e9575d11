"""A whole run without root: the sandbox is a user namespace."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.documentation.shown import ROOT
from tests.lab.conftest import SMALL

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("unchanged_host"),
    pytest.mark.skipif(os.geteuid() != 0, reason="every other test runs as an ordinary user then"),
]

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
last=$(ls -td /mnt/out/small/dblp-s* | head -n 1)  # an earlier attempt was invalid
cat "$last/status.json" "$last/manifest.json" >"$4"
exit $status
"""


def test_an_ordinary_user_gets_the_same_lab(tmp_path, ok_or_stalled):
    experiment, facts = tmp_path / "small.yaml", tmp_path / "facts"
    hit = {"kind": "loss", "host": "server", "q": 0.5, "leg": "gather", "rounds": [2]}
    experiment.write_text(yaml.safe_dump({**SMALL, "impairments": [hit]}))
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
    printed, text = done.stdout + done.stderr, facts.read_text()
    assert text, printed
    status, end = json.JSONDecoder().raw_decode(text)
    ok_or_stalled(status)
    assert done.returncode == (0 if status["verdict"] == "ok" else 1), printed
    manifest = json.loads(text[end:])
    assert manifest["user_namespace"] is True
    [capture] = manifest["captures"]
    assert capture["packets"] > 1000
    assert not capture["failure"]
    assert printed.count("capture: ") == 1
