"""`./lab simulate`: the training's own rounds in virtual time, in directories as of the lab."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from testbed.cli.options import Selection
from testbed.experiment import Run
from testbed.run import planning, runner, simulating
from testbed.shared.input_error import InputError

EXPERIMENT = """
name: small
rounds: 4
seeds: [1]
topology: { name: star, workers: 3, rate_bps: 100_000_000, queue_bytes: 150_000, delay_s: 0.001 }
training:
  model: efficientnet-b0
  pace: { kind: payload-only, scale: 0.002, compute_s: 0.25 }
phases: { detector: schedule, critical_rounds: [[0, 0]] }
arms:
  dblp: { protocol: dblp }
  reliable: { protocol: none }
  tcp: { protocol: tcp-cubic }
  ours: { protocol: bounded-energy, at_most: 1 }
impairments:
  - { kind: loss, host: server, leg: gather, rounds: [2], q: 0.7, at_most_s: 1.0 }
  - { kind: sender-drop, host: workers, rounds: [3], q: 0.5 }
"""


def loaded(folder: Path, arms: str, *settings: str) -> list[Run]:
    path = folder / "small.yaml"
    path.write_text(EXPERIMENT)
    selection = Selection(name=str(path), arms=arms, settings=list(settings))
    return selection.loaded()


@pytest.fixture
def chosen(tmp_path):
    def choose(arms="dblp", *settings):
        return [run.in_virtual_time() for run in loaded(tmp_path, arms, *settings)]

    return choose


def executed(folder: Path, run: Run) -> Path:
    """The directory of a run that has been executed and is ok."""
    outcome = simulating.execute(folder, run, lambda record: None)
    assert (outcome.verdict, outcome.reason) == ("ok", "")
    return outcome.directory


def records(directory: Path, name: str) -> list:
    return [json.loads(line) for line in (directory / "events" / name).read_text().splitlines()]


def test_workers_may_wake_up_late_and_do_so_alike_in_all_arms(chosen, tmp_path):
    def late_s(arm: str, *settings: str) -> list[list[float]]:
        (run,) = chosen(arm, "rounds=12", "impairments=[]", *settings)
        directory = executed(tmp_path / f"out{len(settings)}", run)
        began_s = [record["gather_began_s"] for record in records(directory, "rounds.jsonl")]
        sent = [
            [record for record in records(directory, name) if record["role"] == "sender"]
            for name in ("transfers-worker-1.jsonl", "transfers-worker-2.jsonl")
        ]
        return [
            [record["began_s"] - began_s[record["round"]] for record in of_worker]
            for of_worker in sent
        ]

    assert np.allclose(late_s("reliable"), 0)
    late = late_s("reliable", "simulation.wakes_s=0.004")
    assert 0.5 < np.mean(late) / 0.004 < 1.6 and np.std(late) > 0.001
    assert not np.allclose(late[0], late[1])
    assert np.allclose(late, late_s("dblp", "simulation.wakes_s=0.004"))


def test_payloads_have_contents_where_the_order_looks_at_them(chosen, tmp_path):
    (run,) = chosen("ours")
    directory = executed(tmp_path / "out", run)
    first = records(directory, "transfers-server.jsonl")[:3]
    assert all(record["chunks_received"] > 0.8 * record["chunk_count"] for record in first)


def test_a_host_does_not_drop_what_its_own_tcp_sends_and_a_switch_does(chosen, tmp_path):
    (run,) = chosen("tcp", "impairments=[]", "topology.queue_bytes=15_000")
    directory = executed(tmp_path / "out", run)
    again = {"server": 0, "worker-1": 0}
    for name in again:
        for record in records(directory, f"transfers-{name}.jsonl"):
            again[name] += record["retransmitted_bytes"] * (record["role"] == "sender")
    assert again["server"] == 0 < again["worker-1"]


def test_rounds_last_what_links_and_computing_take_and_impairments_take_their_share(
    chosen, tmp_path
):
    (run,) = chosen("reliable")
    simulating.refuse(run)
    directory = executed(tmp_path / "out", run)
    rounds = records(directory, "rounds.jsonl")
    assert [row["round"] for row in rounds] == [0, 1, 2, 3]
    assert [row["compute_s"] for row in rounds] == [pytest.approx(0.25)] * 4
    wire_bytes = sum(
        leg["bytes_received"]
        for leg in records(directory, "transfers-server.jsonl")
        if (leg["round"], leg["leg"]) == (1, "gather")
    )
    # All workers share the server's link; half a round trip each for the data and for Stop.
    least_s = wire_bytes * 8 / 100e6 + 0.002
    assert least_s < rounds[1]["gather_s"] < 1.15 * least_s + 0.01
    assert rounds[2]["gather_s"] > 1.5 * rounds[1]["gather_s"]
    assert rounds[2]["impairments"] == ["loss-server"]
    assert rounds[3]["impairments"] == ["sender-drop-workers"]
    ended = [row for row in records(directory, "impairments.jsonl") if row["action"] == "end"]
    assert [row["name"] for row in ended] == ["loss-server", "sender-drop-workers"]
    for row, share in zip(ended, (0.7, 0.5), strict=True):
        assert row["dropped"] / row["met"] == pytest.approx(share, abs=0.15)
    left_out = [
        leg["chunks_left_out"]
        for rank in (1, 2, 3)
        for leg in records(directory, f"transfers-worker-{rank}.jsonl")
        if leg["role"] == "sender"
    ]
    assert sum(left_out) == ended[1]["dropped"]


_ELSEWHERE = """
import sys
from pathlib import Path
from testbed.cli.options import Selection
from testbed.run import simulating
name, out = sys.argv[1:]
(run,) = Selection(name=name, arms="dblp").loaded()
print(simulating.execute(Path(out), run.in_virtual_time(), lambda record: None).directory)
"""


def test_the_same_seed_gives_the_same_bytes_in_another_process_and_with_other_hashes(
    chosen, tmp_path
):
    (run,) = chosen()
    one = simulating.execute(tmp_path / "one", run, lambda record: None).directory
    elsewhere = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "small.yaml"), str(tmp_path / "two")],
        env={**os.environ, "PYTHONHASHSEED": "1"},  # this one's is random, or what the caller set
        capture_output=True,
        text=True,
        check=True,
    )
    two = Path(elsewhere.stdout.strip())
    names = sorted(path.name for path in (one / "events").iterdir())
    assert len(names) > 8
    for name in names:
        assert (one / "events" / name).read_bytes() == (two / "events" / name).read_bytes()
    for name in ("config.json", "calibration.json", "training.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_it_is_said_wherever_a_reader_may_take_it_for_a_lab(chosen, tmp_path):
    (run,) = chosen()
    assert run.key != Selection(name=str(tmp_path / "small.yaml"), arms="dblp").loaded()[0].key
    planning.extend(tmp_path / "out", [run])
    directory = executed(tmp_path / "out", run)
    for name in ("config.json", "manifest.json"):
        assert json.loads((directory / name).read_text())["simulated"] is True
    in_lab = Selection(name=str(tmp_path / "small.yaml"), arms="dblp").loaded()
    with pytest.raises(InputError, match="its runs are simulated, and these are of a lab"):
        planning.check(tmp_path / "out", in_lab)
    assert not simulating.execute(tmp_path / "out", run, lambda record: None).executed
    assert runner.directory_of(tmp_path / "out", run).verdict() == "ok"


def test_whoever_reads_of_them_is_told_and_that_kernel_tcp_is_a_model(chosen, tmp_path):
    from analysis.data.load import load
    from analysis.report import kept_results, remarks
    from analysis.summary.document import summarise

    lossy = "impairments=[{kind: loss, host: server, leg: gather, rounds: [2], q: 0.3}]"
    runs = chosen("tcp,reliable", lossy)
    assert simulating.remarks(runs) == ["tcp: kernel TCP by a model, see docs/how-to/simulate.md"]
    planning.extend(tmp_path / "out", runs)
    for run in runs:
        simulating.refuse(run)
        directory = executed(tmp_path / "out", run)
        sent = records(directory, "transfers-server.jsonl")
        # 8 bytes more than a datagram of ours has in headers.
        more = 8 if run.arm == "tcp" else 0
        arrived = [record for record in sent if record["role"] == "receiver"]
        assert all(record["bytes_received"] % (1514 + more) == 0 for record in arrived)
        assert all(record["chunks_received"] == record["chunk_count"] for record in arrived)
    results = load(tmp_path / "out" / "small")
    summary = summarise(results)
    assert not any(run.problems for run in results.runs)
    first, second, *_ = remarks.cautions(results, summary)
    assert first.startswith("simulated: 2 of 2 runs")
    assert second.startswith("kernel TCP is a model: tcp")
    folder = kept_results.keep(tmp_path / "out", "small", root=tmp_path / "kept")
    (provenance,) = kept_results.read(folder, kept_results.PROVENANCE)
    assert any(remark.startswith("simulated: 2 of 2 runs") for remark in provenance["remarks"])
    assert summary["arms"]["tcp"]["congestion_control"] == ["cubic(model)"]
    assert summary["arms"]["reliable"]["congestion_control"] == ["fixed"]


def test_a_real_pace_is_what_the_experiment_says_and_a_lab_s_runs_know_nothing_of_it(chosen):
    real = "training.pace={kind: real}"
    (run,) = chosen("dblp", real, "simulation.compute_s=0.3")
    assert run.config()["training"]["pace"] == {"kind": "paced", "compute_s": 0.3}
    assert "simulation" not in run.config()
    simulating.refuse(run)
    (without,), (with_,) = (
        [run.model_copy(update={"simulated": False}) for run in chosen("dblp", real, *more)]
        for more in ((), ("simulation.compute_s=0.3",))
    )
    assert with_.config() == without.config()
    assert with_.config()["training"]["pace"] == {"kind": "real"}
    (costly,) = chosen("dblp", "simulation={wakes_s: 0.001, compute_s: 0.3}")
    assert costly.config()["simulation"]["wakes_s"] == 0.001
    assert "compute_s" not in costly.config()["simulation"]
    assert costly.settings["simulation"] == {"wakes_s": 0.001, "compute_s": 0.3}


def test_lateness_is_in_a_simulated_run_s_key_alone_and_only_where_there_is_any(tmp_path):
    def keys(*settings):
        (run,) = loaded(tmp_path, "dblp", *settings)
        return run.key, run.in_virtual_time().key

    of_lab, simulated = keys()
    assert keys("simulation={wakes_s: 0}") == (of_lab, simulated)
    late = keys("simulation={wakes_s: 0.001}")
    assert late[0] == of_lab
    assert late[1] not in (of_lab, simulated)


@pytest.mark.parametrize(
    ("arms", "settings", "message"),
    [
        (
            "tcp",
            ("arms.tcp.protocol=tcp-dctcp",),
            "arms.tcp.congestion_control: kernel TCP's 'dctcp' is not simulated; valid: bbr, "
            "cubic, reno, or other arms, with --arms A,B",
        ),
        ("tcp", (), "impairments.1: kind 'sender-drop': the kernel sends the packets of TCP"),
        (
            "dblp",
            ("training.pace={kind: real}",),
            "training.pace.kind: 'real' is not simulated; valid: real with simulation.compute_s, "
            "the seconds in which a worker computes an iteration",
        ),
        (
            "dblp",
            ("impairments=[{kind: background, host: server, from: worker-1, rounds: [1]}]",),
            "impairments.0: kind 'background' is not simulated; valid: loss, sender-drop, queue",
        ),
        (
            "dblp",
            ("impairments=[{kind: loss, rounds: [1], q: 0.1, spare_control: false}]",),
            "impairments.0: spare_control: control messages are never lost when simulated",
        ),
        (
            "dblp",
            ("impairments=[{kind: straggler, host: worker-1, rounds: [1], factor: 2}]",),
            "impairments.0: resource: 'cpu' is not simulated; valid: link",
        ),
        (
            "dblp",
            ("topology.links={server--s1: {priority_queue_bytes: 30000}}",),
            "topology.priority_queue_bytes: a second queue is not simulated; valid: none",
        ),
    ],
)
def test_what_the_simulator_lacks_is_refused_in_one_line(chosen, arms, settings, message):
    (run,) = chosen(arms, *settings)
    with pytest.raises(InputError) as refused:
        simulating.refuse(run)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_thresholds_mark_nothing_and_an_experiment_of_programs_is_refused(chosen):
    (run,) = chosen("dblp", "topology.ecn_threshold_bytes=30000")
    simulating.refuse(run)
    assert "marks nothing" in simulating.remarks([run])[0]
    assert simulating.remarks(chosen("dblp")) == []
    run = Selection(name="iperf3-bursts").loaded()[0].in_virtual_time()
    with pytest.raises(InputError, match="workload: a workload of programs is not simulated"):
        simulating.refuse(run)


def test_a_process_that_is_ended_says_so_and_leaves_a_verdict(tmp_path):
    (tmp_path / "small.yaml").write_text(EXPERIMENT.replace("rounds: 4", "rounds: 1_000_000", 1))
    words = [sys.executable, "-m", "testbed", "simulate", "small.yaml", "--arms", "dblp"]
    process = subprocess.Popen(
        [*words, "--out", "out"], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        while not any(log.stat().st_size for log in tmp_path.glob("out/*/*/events/rounds.jsonl")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 143
    again = "./lab simulate small.yaml --arms dblp --out out"
    assert printed.decode().splitlines()[-1] == f"lab: interrupted; this continues: {again}"
    (status,) = tmp_path.glob("out/*/*/status.json")
    assert json.loads(status.read_text())["verdict"] == "interrupted"
