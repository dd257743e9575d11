"""Every key that is written or read has its meaning in the data dictionary."""

import json
from pathlib import Path

import pytest

from analysis.data.logs import FRAMES
from testbed.documentation.reference import sections
from tests.documentation.described import undescribed, unknown_keys

GOLDEN = Path(__file__).parents[1] / "analysis" / "golden" / "runs" / "summary.json"


@pytest.mark.parametrize(
    ("section", "name", "frame", "written_otherwise"),
    [
        ("events", "rounds.jsonl", "rounds", ()),
        ("events", "transfers-HOST.jsonl", "transfers", ()),
        ("events", "training-HOST.jsonl", "training", ()),
        ("events", "impairments.jsonl", "impairments", ("details",)),  # each key has its own
        ("events", "effects.jsonl", "effects", ("gathered", "applied")),
        ("events", "congestion-HOST.jsonl", "flows", ("port", "peer_port", "acked_bytes")),
        ("samples", "queues.parquet", "queues", ()),
        ("samples", "flows.parquet", "flows", ()),
        ("samples", "processes.parquet", "processes", ()),
    ],
)
def test_the_dictionary_and_the_frames_say_the_same_of_a_column(
    section: str, name: str, frame: str, written_otherwise: tuple[str, ...]
) -> None:
    described = sections()[section][name]
    for column in FRAMES[frame].columns:
        if column.name not in written_otherwise:
            assert column.meaning in (described.get(column.name), described.get(f"{column.name}[]"))


def test_every_key_of_a_summary_is_described() -> None:
    summary = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert list(unknown_keys(summary, sections()["summary"]["summary.json"])) == []


def test_every_key_has_a_meaning() -> None:
    for section in sections().values():
        for name, keys in section.items():
            assert keys, name
            assert all(text.strip() for text in keys.values()), name


def test_a_key_that_is_not_described_is_found(tmp_path: Path) -> None:
    for name in ("events", "samples"):
        (tmp_path / name).mkdir()
    record = {"schema": 1, "round": 0, "host": "worker-1", "loss": 0.5, "los": 1}
    (tmp_path / "events" / "training-worker-1.jsonl").write_text(json.dumps(record) + "\n")
    status = {"schema": 1, "verdict": "ok", "gates": [{"name": "a", "key": "b", "worst": 1}]}
    (tmp_path / "status.json").write_text(json.dumps(status))
    (tmp_path / "notes.json").write_text("{}")
    assert undescribed(tmp_path) == [
        "notes.json",
        "status.json: gates.[].worst",
        "training-HOST.jsonl: los",
    ]
