"""The verdict: counters add up under loss and overflow, and a lab that cheats is found out."""

from __future__ import annotations

import json
from typing import Any

from tests.lab.conftest import Results

IMPAIRMENTS = [
    {"kind": "loss", "leg": "gather", "rounds": [2, 4], "q": 0.9, "at_most_s": 0.3},
    {"kind": "burst", "leg": "gather", "rounds": [3], "rate_factor": 4.0, "duration_s": 0.05},
]


def conservation(results: Results) -> dict[str, Any]:
    return dict(json.loads((results.run() / "conservation.json").read_text()))


def to_server(results: Results) -> dict[str, Any]:
    links = conservation(results)["links"]
    return next(dict(each) for each in links if (each["link"], each["from"]) == LINK)


LINK = ("server--s1", "s1")


def test_no_packet_is_unaccounted_for_under_loss_and_overflow(
    run_small, unchanged_host, ok_or_stalled
):
    results = run_small(few_paths=False, impairments=IMPAIRMENTS)
    ok_or_stalled(results.verdict())
    books = conservation(results)
    assert len(books["links"]) == 6
    assert [each["unexplained"] for each in books["links"]] == [0] * 6
    assert [each["unexplained"] for each in books["switches"]] == [0]
    server = to_server(results)
    ends = [each for each in results.events("impairments") if each["action"] == "end"]
    lost = sum(each["dropped"] for each in ends if each["kind"] == "loss")
    assert server["injected"] == lost > 100  # 90 % were lost,
    assert server["queue_drops"] > 0  # and the queue did overflow
    assert server["offered"] - server["sent"] > 100
    assert server["sent"] == server["received"] + server["injected"]
    every_queue_was_filled_and_every_path_timed(results)


def every_queue_was_filled_and_every_path_timed(results: Results) -> None:
    """Before training, in `calibration.json`."""
    found = json.loads((results.run() / "calibration.json").read_text())
    assert len(found["queues"]) == 6
    for each in found["queues"]:
        assert each["refused"] > 0
        short = each["limit_bytes"] - each["peak_bytes"]
        assert 0 <= short <= each["resolution_bytes"]
    assert len(found["links"]) == 4
    assert all(each["probes_lost"] == 0 for each in found["links"])
    assert found["took_s"] < 5
