"""Reports of runs of a user's own programs: their words, their rounds, their methods."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis.data.load import load
from analysis.data.per_run import per_run
from analysis.data.programs import measured
from analysis.report import writing
from tests.analysis.build import ResultsBuilder, write, write_lines

REASON = "markers: 1 of 3 lines were refused, first 'end 9 gather': the gather of round 9 has not"
TRACE = {"kind": "trace", "seed": "1/t", "changes": {"t_s": list(range(1000))}}

LOSS = {"kind": "loss", "name": "loss-server", "host": "server", "rounds": [4], "q": 0.1}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    build = ResultsBuilder(tmp_path)
    program = {"name": "one", "host": "server", "run": ["serve"], "congestion_control": None}
    for arm, calm_s in (("cubic", 0.1), ("bbr", 0.05)):
        nothing: dict[str, Any] = {
            key: {} for key in ("training", "transport", "phases", "protocol")
        }
        workload = {"kind": "programs", "programs": [program]}
        config = {**nothing, "workload": workload, "impairments": [LOSS, TRACE]}
        run = build.run(arm=arm, seed=1, config=config, reason=REASON)
        ended = {"began_s": 1.0, "ended_s": 3.0, "exit_status": 0}
        write(run / "workload.json", {"programs": [{**program, **ended}]})
        for log in (run / "events").iterdir():
            if log.name != "impairments.jsonl":
                log.unlink()
        hit = {4: ["loss-server"]}
        records = [
            {"round": number, "latency_s": calm_s * (9 if number in hit else 1)}
            | {"impairments": hit.get(number, [])}
            for number in range(10)
        ]
        write_lines(run / "events" / "rounds.jsonl", records)
    return tmp_path


def test_rounds_come_first_and_calm_ones_have_a_row(results, undrawn):
    table = writing.write_report(results).main_table
    first = [row[0].text for row in table.rows]
    assert first[1:4] == [f"Round latency, {which}" for which in (
        "burst rounds (ms)", "calm rounds (ms)", "mean (ms)"
    )]  # fmt: skip
    assert [cell.text for cell in table.rows[2][1:]] == ["100", "50.0"]
    assert first.index("Duration of one (s)") > 3


def test_no_word_of_a_report_is_about_training(results):
    report = writing.write_report(results)
    page = report.index.read_text()
    shown = re.sub(r"(?s)<style.*?</style>|<svg.*?</svg>|<[^>]*>", " ", page)
    assert not re.search(r"(?i)training|critical|chunk|published.csv", shown)
    figure = (report.index.parent / "latency-over-rounds.svg").read_text()
    assert "critical" not in figure
    assert "hit by loss" in figure
    assert "&#39;end 9 gather&#39;: the gather of round 9" in page


def test_methods_tell_a_trace_in_short_and_no_seed(results, undrawn):
    page = writing.write_report(results).index.read_text()
    told = next(line for line in page.splitlines() if "<dt>Impairments</dt>" in line)
    assert "1/t" not in told
    assert len(told) < 250


def test_a_run_that_marked_fewer_rounds_than_stated_says_what_it_lacks(results, undrawn):
    (run,) = results.glob("*/bbr-s1*")
    log = run / "events" / "rounds.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:8]))
    page = writing.write_report(results).index.read_text()
    assert "8 of 10 rounds in rounds.jsonl: it has no maximum" in page
    assert json.loads((run / "config.json").read_text())["rounds"] == 10


def of_a_step(number: int, role: str, chunks: int, received: int) -> dict[str, Any]:
    """What a rank writes of a step (`testbed.ddp.step_log`)."""
    said = {"round": number, "leg": "gather", "role": role, "host": "one", "peer": "rank-1"}
    counts = {"chunk_count": chunks, "chunks_received": received, "passes": 2, "bytes_sent": 500}
    return {**said, **counts, "began_s": 1.0, "ended_s": 1.5, "duration_s": 0.5}


def test_the_loss_and_the_wait_of_a_scripts_steps_stand_beside_their_times(results):
    (run,) = results.glob("*/bbr-s1*")
    steps = [(number, 40 if number == 4 else 100) for number in range(2, 10)]
    write_lines(
        run / "events" / "transfers-one.jsonl",
        [
            of_a_step(number, role, 100, got)
            for number, got in steps
            for role in ("sender", "receiver")
        ],
    )
    waits = [{"round": number, "host": "one", "wait_s": number / 100} for number in range(10)]
    write_lines(run / "events" / "training-one.jsonl", waits)
    report = writing.write_report(results)
    shown = {row[0].text: [cell.text for cell in row[1:]] for row in report.main_table.rows}
    assert shown["Realised loss, gather (%)"][1] == "7.50"  # 60 of 800 chunks
    assert shown["Passes per transfer"][1] == "2.00"
    assert shown["Bytes sent (kB)"][1] == "4.00"
    assert shown["Exchange that was not hidden, one (ms)"][1] == "45.0"
    assert {cells[0] for name, cells in shown.items() if "loss" in name or "hidden" in name} == {
        "\u2014"
    }
    order = list(shown)
    assert order.index("Bytes sent (kB)") < order.index("Duration of one (s)")
    names = {path.name for path in report.figures}
    assert {"loss-over-rounds.svg", "latency-over-rounds.svg"} <= names
    frame = load(results).transfers.filter(role="receiver", round=4)
    assert frame.select("chunk_count", "chunks_received").rows() == [(100, 40)]


def test_rounds_without_iterations_have_no_rate(results):
    """0 iterations in 0 s are no number, and what is kept could not be read again."""
    frame = per_run(load(results))
    assert frame["rounds_per_s"].to_list() == [None, None]
    assert frame["round_latency_s.mean"].null_count() == 0


LINK = {"link": "s1--server", "from": "s1", "backlog_packets": 0, "sent_packets": 0, "drops": 0}
FLOW = {
    "host": "worker-1",
    "peer": "server",
    "leg": "",
    "kind": "tcp",
    "port": 1.0,
    "peer_port": 2.0,
    "cwnd_bytes": 1.0,
    "rate_bps": 1.0,
}
SENT_BYTES = {1.0: 0, 1.5: 9000, 2.0: 10_000, 2.5: 11_000, 3.0: 90_000}


def write_samples(run: Path) -> None:
    """Of a link and of a flow over it, at the same times."""
    (run / "samples").mkdir(exist_ok=True)
    pl.DataFrame(
        [
            {**LINK, "t_s": t_s, "sent_bytes": each, "backlog_bytes": each // 2}
            for t_s, each in SENT_BYTES.items()
        ]
    ).write_parquet(run / "samples" / "queues.parquet")
    pl.DataFrame(
        [
            {**FLOW, "t_s": t_s, "acked_bytes": float(each), "retransmits": t_s, "rtt_s": t_s / 10}
            for t_s, each in SENT_BYTES.items()
        ]
    ).write_parquet(run / "samples" / "flows.parquet")


def announce_rounds(run: Path, each_s: float) -> None:
    """From 1.4 s on, one after the other."""
    log = run / "events" / "rounds.jsonl"
    rounds = [json.loads(line) for line in log.read_text().splitlines()]
    times_s = [1.4 + number * each_s for number in range(len(rounds))]
    write_lines(
        log,
        [
            {**each, "began_s": began_s, "ended_s": began_s + each_s}
            for each, began_s in zip(rounds, times_s, strict=True)
        ],
    )


def test_hosts_and_flows_are_measured_while_announced_rounds_go_on(results):
    """Before and after them, a neighbour would have the link for itself."""
    (run,) = results.glob("*/bbr-s1*")
    write_samples(run)
    flow = "flows.worker-1->server"
    all_the_time = measured(run)
    assert all_the_time["hosts.server.received_bps"] == 90_000 * 8 / 2
    assert all_the_time[f"{flow}.goodput_bps"] == 90_000 * 8 / 2
    assert all_the_time[f"{flow}.rtt_p50_s"] == 0.2
    announce_rounds(run, 0.1)
    found = measured(run)
    assert found["hosts.server.received_bps"] == 1000 * 8 / 0.5
    assert found[f"{flow}.goodput_bps"] == 1000 * 8 / 0.5
    assert found[f"{flow}.rtt_p50_s"] == pytest.approx(0.175)
    # These are of a whole run.
    assert (found[f"{flow}.bytes"], found[f"{flow}.retransmits"]) == (90_000, 3)


def test_rounds_that_are_over_before_a_second_sample_have_the_time_of_the_programs(results):
    (run,) = results.glob("*/bbr-s1*")
    write_samples(run)
    all_the_time = measured(run)
    announce_rounds(run, 0.02)  # only the sample at 1.5 s is inside
    assert measured(run) == all_the_time


def test_the_report_says_which_rank_others_waited_for(results, undrawn):
    (run,) = results.glob("*/bbr-s1*")
    names = ("one", "two", "three")
    ended = {"host": "server", "began_s": 1.0, "ended_s": 3.0, "exit_status": 0, "run": ["serve"]}
    write(run / "workload.json", {"programs": [{"name": name, **ended} for name in names]})
    # Step 0 is nobody's. In the others rank 2 is late; where rank 0 alone averages, rank 1 only
    # knows that rank 0's mean is late.
    waits: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for rank, name in enumerate(names):
        for step in range(3):
            said = {"round": step, "host": name, "rank": rank, "wait_s": 0.3}
            if step:
                slowest, waited_s = [(2, 0.2), (0, 0.21), (1, 0.01)][rank]
                said |= {"slowest_rank": slowest, "slowest_bucket": 0, "slowest_s": waited_s}
            waits[name].append(said)
        write_lines(run / "events" / f"training-{name}.jsonl", waits[name])
    table = writing.write_report(results).main_table
    shown = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    found = [shown[f"Wait of others for {name} (ms)"] for name in names]
    assert [cells[0] for cells in found] == ["\u2014"] * 3
    assert [cells[1] for cells in found] == ["10.0", "0", "190"]
