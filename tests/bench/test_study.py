"""Studies of trainings: what an interrupted one has done is not done again."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from analysis.tables import rendering
from testbed.bench import study, trainings


@dataclass(frozen=True)
class Training:
    name: str
    rounds: int = 6


def tables(records):
    rows = [rendering.row(each["name"]) for each in records]
    return [rendering.Table(title="Trained", columns=["name"], rows=rows)]


def test_an_interrupted_study_goes_on_where_it_was(tmp_path, monkeypatch):
    seen: list[str] = []

    def measured(selected, run):
        for each in selected:
            if seen == ["b"]:
                seen.append("interrupted")
                raise KeyboardInterrupt
            seen.append(each.name)
            yield each, run(each)

    def execute():
        study.run(
            [Training("b"), Training("a")],
            lambda each: {"name": each.name},
            order=["name"],
            tables=tables,
            json_file=file,
        )

    monkeypatch.setattr(trainings, "measure", measured)
    file = tmp_path / "study.json"
    with pytest.raises(KeyboardInterrupt):
        execute()
    assert not file.exists()
    execute()
    assert seen == ["b", "interrupted", "a"]
    assert [each["name"] for each in json.loads(file.read_text())] == ["a", "b"]
    assert list(tmp_path.glob("*.partial.jsonl")) == []
    assert "| b |" in file.with_suffix(".md").read_text()


def test_a_training_with_other_parameters_is_done_again(tmp_path):
    path, training = tmp_path / "study.partial.jsonl", Training("a")
    trainings.Keeper(path).keep(training, {"final": 1.0})
    with path.open("a") as file:
        file.write('{"case": "cut o')
    assert trainings.read(path, [training]) == {"a": {"final": 1.0}}
    assert trainings.read(path, [replace(training, rounds=7)]) == {}
