"""The hook on three machines, which are namespaces of the network, under torchrun."""

import json
import shlex
import subprocess
import sys
import time

import pytest

from tests.documentation import shown
from tests.documentation.shown import ROOT

WITHIN_S = 150


@pytest.mark.beside
def test_three_machines_find_each_other_and_name_what_is_wrong(tmp_path):
    argv = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
    argv += ["--mount-proc", sys.executable, "-m", "tests.lab.machines", "3"]
    argv += ["-m", "tests.lab.machine_rank", str(tmp_path)]
    scene = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        report = ranks_told(scene, tmp_path)
    finally:
        scene.kill()
        output = scene.communicate()[0]
    assert report is not None, output
    for rank in report:
        for kind in ("named", "found"):
            assert rank[kind] == {
                "right": True,
                "carried_by": "transport",
                "addresses": ["10.9.0.1", "10.9.0.2", "10.9.0.3"],
                "keys": True,
                "chunk_bytes": 1440,
            }
        assert rank["no interface"] == "InputError: rank 1: interface is 'eth9'; valid: eth0, lo"
        taken = "port 47001 of 10.9.0.2 is taken; valid: a free one"
        assert rank["port"] == f"InputError: rank 1: {taken}"
    # The rank that is cut off cannot hear of it from the store.
    for rank in report[:2]:
        text, took_s = rank["cut off"]
        assert text.startswith("PeerLost: lost rank 2: silent for ")
        assert took_s < 12


@pytest.mark.long  # the script under torchrun in a lab: test_torchrun.py; three machines: above
def test_the_rehearsal_that_the_page_shows_trains():
    blocks = list(shown.blocks(ROOT / "docs/how-to/ddp-machines.md"))
    (command,) = [
        command for block in blocks for command in block.commands if "tests.lab.machines" in command
    ]
    words = [
        sys.executable if part == ".venv/bin/python" else part for part in shlex.split(command)
    ]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epoch 0: accuracy 0." in done.stdout
    assert "carried_by='transport'" in done.stdout


def ranks_told(scene, out):
    """Read what the ranks have written, once the first two have written all; None: they ended."""
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s:
        files = sorted(out.glob("*.json"))
        texts = [file.read_text() for file in files]
        if len(texts) == 3 and all('"cut off"' in text for text in texts[:2]) and texts[2]:
            return [json.loads(text) for text in texts]
        if scene.poll() is not None:
            return None
        time.sleep(0.2)
    return None
