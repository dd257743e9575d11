"""`--pcap`: a run's links in files that agree with the run's own events."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import experiment
from testbed.capture.dissect import dissect
from tests.lab.conftest import SMALL, Results

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]


def run(tmp_path: Path, *arguments: str, **changes: Any) -> Results:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}))
    words = ["run", str(path), "--out", str(tmp_path / "out"), *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Results(done.returncode, done.stdout + done.stderr, tmp_path / "out")


def test_captures_of_both_ends_agree_with_what_the_hosts_noted(tmp_path):
    hit = {"kind": "loss", "host": "server", "leg": "gather", "rounds": [2], "q": 0.5}
    results = run(
        tmp_path,
        "--pcap",
        "server,worker-1",
        impairments=[hit],
        arms={"dblp": {"protocol": "dblp"}},
    )
    results.assert_trained()
    assert results.output.count("capture: ") == 2
    folder = results.run() / "pcap"
    assert sorted(path.name for path in folder.iterdir()) == ["server.pcap", "worker-1.pcap"]
    captures = json.loads((results.run() / "manifest.json").read_text())["captures"]
    assert [each["host"] for each in captures] == ["server", "worker-1"]
    assert not any(each["packets_dropped"] or each["bound_reached"] for each in captures)
    assert json.loads((results.run() / "config.json").read_text())["capture"] == [
        *("server", "worker-1")
    ]
    captures = {name: dissect(folder / f"{name}.pcap") for name in ("server", "worker-1")}
    for found in captures.values():
        assert found.problem is None
        assert not found.contents.strays
        assert not found.contents.lost_track
    at_server = {
        (each.number, found.name_of(each.sender), found.name_of(each.receiver)): each
        for found in [captures["server"].contents]
        for each in found.transfers
    }
    assert len(at_server) == 2 * 2 * 6  # legs, workers, rounds
    for worker in ("worker-1", "worker-2"):
        for noted in results.events(f"transfers-{worker}"):
            if noted["role"] != "sender":
                continue
            seen = at_server[2 * noted["round"], worker, "server"]
            assert seen.datagrams == noted["chunks_sent"]
            assert seen.stopped_ns is not None
            assert seen.duplicates == 0
            assert seen.chunk_count == noted["chunk_count"]
            assert seen.datagrams == seen.distinct + seen.repeated + seen.late
    # The worker's own link has its transfers only.
    assert len(captures["worker-1"].contents.transfers) == 2 * 6
    hit_round = at_server[4, "worker-1", "server"]
    assert hit_round.repeated > 0
    assert hit_round.passes[0].missing


@pytest.mark.long
def test_pcap_alone_records_the_server_and_is_no_part_of_the_runs_key(tmp_path):
    results = run(tmp_path, "--pcap", "--seeds", "1", rounds=2)
    results.assert_trained()
    # The same experiment without a capture would have the same key.
    [planned] = experiment.load(str(tmp_path / "x.yaml"))
    assert results.run().name == planned.key
    [capture] = (results.run() / "pcap").iterdir()
    assert capture.name == "server.pcap"
    assert capture.stat().st_size > 10_000
