"""`./lab watch`: which runs it follows, how far it says a sweep is, and that it fits."""

import io
import json
import threading
import time
from typing import Any

import pytest
from rich.console import Console, ConsoleDimensions

from testbed.shared.run_directory import PLAN, RunDirectory, write_json, write_status
from testbed.shared.yaml_input import InputError
from testbed.watch import follow, screen

IN = follow.Selection
CONFIG = {"key": "dblp-s1", "arm": "dblp", "seed": 1, "rounds": 40, "experiment": "small"}


def live(**changes: Any) -> dict[str, Any]:
    """A run with one congested link, three idle ones, four flows and three processes."""
    queue = {"queue_bytes": 150_000, "rate_bps": 10**8, "sent_bps": 0, "new_drops": 0, "drops": 0}
    nodes = ["server", "worker-1", "worker-2", "worker-3"]
    queues = [
        queue | {"link": f"{node}--s1", "from": sender, "highest_bytes": 0}
        for node in nodes
        for sender in ("s1", node)
    ]
    queues[0] |= {"highest_bytes": 149_000, "drops": 963, "new_drops": 17, "sent_bps": 97_000_000}
    flow = {"cwnd_bytes": 45_000, "rtt_s": 0.0123, "rate_bps": 3.2e7, "retransmits": 3}
    return {
        "schema": 1,
        "t_s": time.monotonic(),
        "elapsed_s": 3.4,
        "run": CONFIG,
        "rounds_done": 12,
        "critical": True,
        "latencies_s": [0.1] * 50 + [0.4],
        "impairments": [{"name": "burst-server", "kind": "burst", "since_s": time.monotonic()}],
        "queues": queues,
        "flows": [flow | {"host": "server", "peer": node} for node in nodes[1:]],
        "processes": [
            {"name": name, "cpu": 0.4, "rss_bytes": 300_000_000}
            for name in ("server", "worker-1", "ovs-vswitchd")
        ],
    } | changes


def rendered(document: dict[str, Any], width: int, height: int) -> list[str]:
    output = io.StringIO()
    console = Console(file=output, width=width, height=height, color_system=None)
    size = ConsoleDimensions(width, height)
    console.print(screen.render(document, size, ["a: ok", "b: failed: " + "no " * 99], "9 planned"))
    return output.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 14)])
def test_screen_fits_and_shows_the_congested_link(width, height):
    lines = rendered(live(), width, height)
    [congested] = [line for line in lines if line.startswith("s1 → server")]
    assert all(word in congested for word in ("149/150", "963", "+17"))
    assert "round 12 of 40" in lines[0]
    assert "burst-server" in "".join(lines[:4])
    assert "sweep     9 planned" in lines
    assert any(line.startswith("b: failed: no no") for line in lines)
    assert any("ovs-vswitchd" in line for line in lines)
    more = {name: live()[name] * 12 for name in ("queues", "flows", "processes")}
    crowded = rendered(live(**more), width, height)
    assert any("busiest" in line for line in crowded)
    assert max(len(lines), len(crowded)) <= height
    assert all(len(line) <= width for line in lines + crowded)


@pytest.mark.parametrize("simulated", [False, True])
def test_a_run_that_is_being_built_or_is_simulated_says_so(tmp_path, simulated):
    with RunDirectory(tmp_path / "small" / "dblp-s1").open(CONFIG | {"simulated": simulated}):
        [run] = follow.running(IN(results=tmp_path))
        if simulated:
            assert "goes on in virtual time" in rendered(run.live(), 80, 24)
            return
        lines = rendered(run.live(), 80, 24)
        stages = []
        for name in ("calibration.json", "samples/sampler.json"):
            (run.directory / name).parent.mkdir(exist_ok=True)
            (run.directory / name).write_text("{}")
            stages.append(run.live()["stage"])
    assert "dblp seed 1" in lines[0]
    assert "building" in lines[1]
    assert stages == ["training begins", "judging what was measured"]


def test_nothing_running_is_an_input_error(tmp_path):
    abandoned = tmp_path / "small" / "dblp-s1.partial"
    abandoned.mkdir(parents=True)
    (abandoned / "live.json").write_text(json.dumps(live(t_s=time.monotonic() - 60)))
    with pytest.raises(InputError, match=r"no run in .* is in progress"):
        follow.watch(IN(results=tmp_path), Console(file=io.StringIO()))
    with pytest.raises(InputError, match=r"no run 'other' in .* is in progress"):
        follow.watch(IN(results=tmp_path, key="other"), Console(file=io.StringIO()))


def test_follows_to_the_next_run_and_ends_with_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "_TIMEOUT_S", 1.5)
    begun = threading.Event()

    def both() -> None:
        for key, verdict in (("first", "ok"), ("second", "failed")):
            with RunDirectory(tmp_path / "small" / key).open(CONFIG | {"key": key}) as directory:
                (directory / "live.json").write_text(json.dumps(live()))
                begun.set()
                time.sleep(0.4)
                (directory / "live.json").unlink()
                write_status(directory, verdict, "")  # type: ignore[arg-type]

    thread = threading.Thread(target=both)
    thread.start()
    assert begun.wait(30)
    with pytest.raises(InputError, match="draws in a terminal"):
        follow.watch(IN(results=tmp_path), Console(file=io.StringIO()))
    screens = io.StringIO()
    follow.watch(IN(results=tmp_path), Console(file=screens, force_terminal=True, height=24))
    thread.join()
    assert "round 12 of 40" in screens.getvalue()
    assert [line.strip() for line in screens.getvalue().splitlines()][-1] == "second: failed"
    assert "first: ok" in screens.getvalue()


def test_runs_in_progress_are_found_by_experiment_and_by_key(tmp_path):
    def keys(results: str, **options: str) -> list[str]:
        return sorted(run.key for run in follow.running(IN(results=tmp_path / results, **options)))

    small = tmp_path / "out" / "small"
    with RunDirectory(small / "dblp-s1").open(CONFIG), RunDirectory(small / "b").open(CONFIG):
        assert keys("out") == ["b", "dblp-s1"]
        assert keys("out", key="b") == ["b"]
        assert keys("out", experiment="other") == keys("") == keys("none") == []
    assert keys("out") == []


def test_a_sweep_tells_what_is_done_runs_and_waits(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    write_json(folder / PLAN, {"runs": [{"key": f"s{seed}"} for seed in range(6)]})
    assert follow.sweep(folder) == "6 planned: 6 waiting"
    for key, verdict in (("s0", "invalid"), ("s0", "ok"), ("s1", "failed")):  # the later one counts
        with RunDirectory(folder / key).open(CONFIG | {"key": key}) as directory:
            write_status(directory, verdict, "")  # type: ignore[arg-type]
    assert follow.sweep(folder, ["s2"]) == "6 planned: 1 ok, 1 failed, 1 running, 3 waiting"
    with pytest.raises(InputError, match=r"no run of 'small' .* \(6 planned: .* 4 waiting\);"):
        follow.watch(IN(results=tmp_path, experiment="small"), Console(file=io.StringIO()))
