"""Reports of runs of a user's own programs: their words, their rounds, their methods."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis.data import programs
from analysis.data.load import load
from analysis.data.programs import measured
from analysis.report import writing
from tests.analysis.build import ResultsBuilder, edited, texts_of, write, write_lines

REASON = "markers: 1 of 3 lines were refused, first 'end 9 gather': the gather of round 9 has not"
TRACE = {"kind": "trace", "seed": "1/t", "changes": {"t_s": list(range(1000))}}

LOSS = {"kind": "loss", "name": "loss-server", "host": "server", "rounds": [4], "q": 0.1}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    build = ResultsBuilder(tmp_path)
    program = {"name": "one", "host": "server", "run": ["serve"], "congestion_control": None}
    for arm, calm_s in (("cubic", 0.1), ("bbr", 0.05)):
        empty: dict[str, Any] = {key: {} for key in ("training", "transport", "phases", "protocol")}
        workload = {"kind": "programs", "programs": [program]}
        config = {**empty, "workload": workload, "impairments": [LOSS, TRACE]}
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


def test_rounds_come_first_and_no_word_is_about_training(results):
    report = writing.write_report(results)
    cells = texts_of(report.main_table)
    burst, calm, mean = list(cells)[1:4]
    assert burst == "Round latency, burst rounds (ms)" and mean == "Round latency, mean (ms)"
    assert (calm, cells[calm]) == ("Round latency, calm rounds (ms)", ["100", "50.0"])
    assert list(cells).index("Duration of one (s)") > 3
    page = report.index.read_text()
    shown = re.sub(r"(?s)<style.*?</style>|<svg.*?</svg>|<[^>]*>", " ", page)
    assert not re.search(r"(?i)training|critical|chunk|published.csv", shown)
    figure = (report.index.parent / "latency-over-rounds.svg").read_text()
    assert "critical" not in figure
    assert "hit by loss" in figure
    assert "&#39;end 9 gather&#39;: the gather of round 9" in page
    row = next(line for line in page.splitlines() if "<dt>Impairments</dt>" in line)
    assert "1/t" not in row and len(row) < 250  # a trace in short, and no seed


def test_a_run_that_marked_fewer_rounds_than_stated_says_what_it_lacks(results, undrawn):
    (run,) = results.glob("*/bbr-s1*")
    log = run / "events" / "rounds.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:8]))
    page = writing.write_report(results).index.read_text()
    assert "8 of 10 rounds in rounds.jsonl: it has no maximum" in page
    assert json.loads((run / "config.json").read_text())["rounds"] == 10


def test_the_loss_and_the_wait_of_a_scripts_steps_stand_beside_their_times(results):
    (run,) = results.glob("*/bbr-s1*")
    # What a rank writes of a step (`testbed.ddp.report`).
    step = {"leg": "gather", "host": "one", "peer": "rank-1", "chunk_count": 100, "passes": 2}
    step |= {"bytes_sent": 500, "began_s": 1.0, "ended_s": 1.5, "duration_s": 0.5}
    steps = [
        {**step, "round": number, "role": role, "chunks_received": 40 if number == 4 else 100}
        for number in range(2, 10)
        for role in ("sender", "receiver")
    ]
    write_lines(run / "events" / "transfers-one.jsonl", steps)
    waits = [{"round": number, "host": "one", "wait_s": number / 100} for number in range(10)]
    write_lines(run / "events" / "training-one.jsonl", waits)
    report = writing.write_report(results)
    shown = texts_of(report.main_table)
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
    frame = load(results).frame("transfers").filter(role="receiver", round=4)
    assert frame.select("chunk_count", "chunks_received").rows() == [(100, 40)]


def test_what_a_script_evaluates_gives_its_time_to_the_target(results):
    """Rows of other programs in the same round, which evaluate nothing, take nothing away."""
    (run,) = results.glob("*/bbr-s1*")
    config = json.loads((run / "config.json").read_text())
    config["workload"]["target"] = 1.5
    (run / "config.json").write_text(json.dumps(config))
    waits = [{"round": number, "host": "one", "wait_s": 0.1} for number in range(10)]
    write_lines(run / "events" / "training-one.jsonl", waits)
    perplexities = {4: 1.9, 6: 1.5, 8: 1.4}
    evaluations = [
        {"round": number, "elapsed_s": number / 2, "perplexity": perplexity}
        for number, perplexity in perplexities.items()
    ]
    write_lines(run / "events" / "training-one-evaluations.jsonl", evaluations)
    (row,) = load(results).per_run().filter(arm="bbr").to_dicts()
    assert (row["time_to_target_s"], row["rounds_to_target"]) == (3.0, 7)
    assert (row["perplexity"], row["target_reached"]) == (1.4, 1.0)
    order = list(texts_of(writing.write_report(results).main_table))
    shown = next(place for place, name in enumerate(order) if "perplexity" in name)
    assert shown < order.index("Duration of one (s)")


def test_rounds_without_iterations_have_no_rate(results):
    """0 iterations in 0 s are no number, and what is kept could not be read again."""
    frame = load(results).per_run()
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


def announce_rounds(run: Path, length_s: float) -> None:
    """From 1.4 s on, one after the other."""
    with edited(run / "events" / "rounds.jsonl") as rounds:
        for number, record in enumerate(rounds):
            began_s = 1.4 + number * length_s
            record |= {"began_s": began_s, "ended_s": began_s + length_s}


def test_hosts_and_flows_are_measured_while_announced_rounds_go_on(results):
    """Before and after them, a neighbour would have the link for itself."""
    (run,) = results.glob("*/bbr-s1*")
    (run / "samples").mkdir(exist_ok=True)
    queues, flows = [], []
    for t_s, sent in SENT_BYTES.items():
        queues.append({**LINK, "t_s": t_s, "sent_bytes": sent, "backlog_bytes": sent // 2})
        counts = {"acked_bytes": float(sent), "retransmits": t_s, "rtt_s": t_s / 10}
        flows.append({**FLOW, **counts, "t_s": t_s})
    pl.DataFrame(queues).write_parquet(run / "samples" / "queues.parquet")
    pl.DataFrame(flows).write_parquet(run / "samples" / "flows.parquet")
    flow = "flows.worker-1->server"
    all_the_time = measured(run)
    assert all_the_time["hosts.server.received_bps"] == 90_000 * 8 / 2
    assert all_the_time[f"{flow}.goodput_bps"] == 90_000 * 8 / 2
    assert all_the_time[f"{flow}.rtt_p50_s"] == 0.2
    announce_rounds(run, 0.1)
    values = measured(run)
    assert values["hosts.server.received_bps"] == 1000 * 8 / 0.5
    assert values[f"{flow}.goodput_bps"] == 1000 * 8 / 0.5
    assert values[f"{flow}.rtt_p50_s"] == pytest.approx(0.175)
    # These are of a whole run.
    assert (values[f"{flow}.bytes"], values[f"{flow}.retransmits"]) == (90_000, 3)
    announce_rounds(run, 0.02)  # only the sample at 1.5 s is inside
    assert measured(run) == all_the_time


def test_the_report_says_which_rank_others_waited_for(results, undrawn):
    (run,) = results.glob("*/bbr-s1*")
    names = ("one", "two", "three")
    ended = {"host": "server", "began_s": 1.0, "ended_s": 3.0, "exit_status": 0, "run": ["serve"]}
    write(run / "workload.json", {"programs": [{"name": name, **ended} for name in names]})
    # Step 0 is nobody's. In the others rank 2 is late; where rank 0 alone averages, rank 1 only
    # knows that rank 0's mean is late.
    slowest = [(2, 0.2), (0, 0.21), (1, 0.01)]
    for rank, (name, (other, waited_s)) in enumerate(zip(names, slowest, strict=True)):
        step = {"host": name, "rank": rank, "wait_s": 0.3}
        late = {"slowest_rank": other, "slowest_bucket": 0, "slowest_s": waited_s}
        steps = [{"round": 0, **step}, *({"round": number, **step, **late} for number in (1, 2))]
        write_lines(run / "events" / f"training-{name}.jsonl", steps)
    shown = texts_of(writing.write_report(results).main_table)
    waits_ms = [shown[f"Wait of others for {name} (ms)"] for name in names]
    assert waits_ms == [["\u2014", wait_ms] for wait_ms in ("10.0", "0", "190")]


# Time, name, number, host, processor time: a program of the same name twice, and a part of the lab.
ROWS = [
    (1.0, "h1", 11, "h1", 0.5),
    (2.0, "h1", 11, "h1", 2.0),
    (1.0, "h1:iperf3", 12, "h1", 0.25),
    (2.0, "h1:iperf3", 13, "h1", 0.5),
    (2.0, "h2", 14, "h2", 4.0),
    (2.0, "ovs-vswitchd", 2, None, 9.0),
]


def test_the_last_value_of_each_process_in_a_host_is_added_up(tmp_path):
    (tmp_path / "samples").mkdir()
    columns = ["t_s", "name", "pid", "host", "cpu_s"]
    frame = pl.DataFrame(ROWS, schema=columns, orient="row").with_columns(rss_bytes=0)
    frame.write_parquet(tmp_path / "samples" / "processes.parquet")
    program = {"name": "one", "host": "h1", "began_s": 1.0, "ended_s": 2.0}
    write(tmp_path / "workload.json", {"programs": [program]})
    assert measured(tmp_path)["hosts.h1.cpu_s"] == 2.75


def test_all_hosts_have_sent_what_their_own_links_carried():
    ends = [("server", 1000), ("s1", 50_000), ("worker-1", 300)]
    rows = [
        {"link": f"{'worker-1' if end == 'worker-1' else 'server'}--s1", "from": end}
        | {"t_s": t_s, "sent_bytes": 7 + int(t_s * sent)}
        for end, sent in ends
        for t_s in (0.0, 1.0, 2.0)
    ]
    values = dict(programs._hosts(pl.DataFrame(rows), {"server", "worker-1"}))
    assert values["hosts.all.sent_bytes"] == 2 * 1300
