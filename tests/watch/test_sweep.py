"""`./lab watch` tells a sweep's queue: what is done, runs, waits, failed and why."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console, ConsoleDimensions

from testbed.shared.run_directory import PLAN, RunDirectory, write_json, write_status
from testbed.shared.yaml_input import InputError
from testbed.watch import follow, screen
from testbed.watch.sweep import Sweep
from tests.watch.test_watch import CONFIG, live


def planned(folder: Path, seeds: int, shards: int = 0) -> None:
    folder.mkdir(parents=True)
    runs = [
        {"key": f"dblp-s{seed}", "arm": "dblp", "seed": seed, "factors": {"k": 2}}
        | ({"shard": f"{1 + seed * shards // (seeds + 1)}/{shards}"} if shards else {})
        for seed in range(1, seeds + 1)
    ]
    write_json(folder / PLAN, {"runs": runs})


def ended(folder: Path, key: str, verdict: str, reason: str = "") -> None:
    with RunDirectory(folder / key).open(CONFIG | {"key": key}) as directory:
        write_status(directory, verdict, reason)  # type: ignore[arg-type]


def test_a_sweep_tells_what_is_done_runs_waits_and_what_went_wrong(tmp_path):
    planned(tmp_path / "small", 6)
    sweep = Sweep(tmp_path / "small")
    assert str(sweep.state()) == "6 planned: 6 waiting"
    ended(sweep.folder, "dblp-s1", "ok")
    ended(sweep.folder, "dblp-s2", "failed", "worker-1 ended with status 1")
    state = sweep.state(frozenset(["dblp-s3"]))
    assert str(state) == "6 planned: 1 ok, 1 failed, 1 running, 3 waiting"
    assert state is not None
    assert state.troubles == ["dblp-s2: failed: worker-1 ended with status 1"]
    assert state.waiting[0] == "dblp seed 4 k=2"


def test_parts_of_other_machines_are_not_waiting_here(tmp_path):
    planned(tmp_path / "small", 5, shards=3)
    assert str(Sweep(tmp_path / "small").state()) == "5 planned: 5 waiting"
    state = Sweep(tmp_path / "small").state(frozenset(["dblp-s2"]))
    assert str(state) == "5 planned: 1 running, 1 waiting, 3 in other parts"


def test_a_run_that_is_tried_again_has_the_later_verdict_and_no_other_folder_is_read_again(
    tmp_path, monkeypatch
):
    planned(tmp_path / "small", 1)
    sweep = Sweep(tmp_path / "small")
    ended(sweep.folder, "dblp-s1", "invalid", "processor busy")
    assert str(sweep.state()) == "1 planned: 1 invalid"
    ended(sweep.folder, "dblp-s1", "ok")
    os.utime(sweep.folder, (1e9, 1e9))
    first = sweep.state()
    assert str(first) == "1 planned: 1 ok"
    monkeypatch.setattr(sweep, "_read", lambda running: pytest.fail("read again"))
    assert sweep.state() is first


@pytest.mark.parametrize("document", [live(), {"run": CONFIG, "stage": "training begins"}])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 14)])
def test_the_screen_has_the_queue_and_failures_and_still_fits(tmp_path, document, width, height):
    planned(tmp_path / "small", 60)
    for seed in range(1, 31):
        ended(tmp_path / "small", f"dblp-s{seed}", "failed", "the sampler died " * 9)
    state = Sweep(tmp_path / "small").state(frozenset(["dblp-s31"]))
    output = io.StringIO()
    console = Console(file=output, width=width, height=height, color_system=None)
    console.print(screen.render(document, ConsoleDimensions(width, height), ["a: ok"], state))
    lines = output.getvalue().splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert any(line.startswith("sweep     60 planned: 30 failed, 1 running") for line in lines)
    assert any(line.startswith("dblp-s30: failed: the sampler died") for line in lines)
    assert any("more that are not ok" in line for line in lines)


def test_a_sweep_that_does_not_run_says_how_far_it_came(tmp_path):
    planned(tmp_path / "small", 3)
    ended(tmp_path / "small", "dblp-s1", "failed", "no room")
    wanted = follow.Wanted(results=tmp_path, experiment="small")
    with pytest.raises(InputError, match=r"1 failed, 2 waiting; dblp-s1: failed: no room\)"):
        follow.watch(wanted, Console(file=io.StringIO()))
