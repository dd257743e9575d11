"""Who cost a round: causes that were put into simulated runs are named, and parts add up."""

import json

import polars as pl
import pytest
from matplotlib.patches import Rectangle

from analysis.data import critical_path
from analysis.data.load import load
from analysis.figures.rounds import stacked
from analysis.tables.critical_path import culprits_table, parts_table
from testbed.cli.options import Selection
from testbed.run import planning, simulating
from tests.analysis.build import ResultsBuilder, edited, write_lines

LONG_COMPUTE, BURST, LOSS, SLOW_LINK = 3, 5, 7, 9
ROUNDS, WORKERS, COMPUTE_S = 11, 3, 0.02
EXPERIMENT = f"""
name: small
rounds: {ROUNDS}
seeds: [1]
topology: {{ name: star, workers: {WORKERS}, rate_bps: 100_000_000, queue_bytes: 150_000 }}
training:
  model: efficientnet-b0
  pace: {{ kind: payload-only, scale: 0.002, compute_s: {COMPUTE_S} }}
arms: {{ fixed: {{ protocol: fixed-low }} }}
impairments:
  - {{ kind: burst, host: worker-3, leg: broadcast, rounds: [{BURST}], duration_s: 0.03 }}
  - {{ kind: loss, host: server, leg: gather, rounds: [{LOSS}], q: 0.7, at_most_s: 1.0 }}
  - {{ kind: straggler, host: worker-1, resource: link, rounds: [{SLOW_LINK}], factor: 10 }}
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A run in virtual time with a cause in each of some rounds."""
    folder = tmp_path_factory.mktemp("simulated")
    times_s = [COMPUTE_S] * (ROUNDS * WORKERS)
    times_s[LONG_COMPUTE * WORKERS + 1] = 0.2  # of worker-2
    file = folder / "small.yaml"
    file.write_text(EXPERIMENT)
    settings = [f"training.pace.trace_s={json.dumps(times_s)}"]
    selection = Selection(name=str(file), settings=settings)
    (run,) = (each.in_virtual_time() for each in selection.loaded())
    planning.extend(folder / "out", [run])
    assert simulating.execute(folder / "out", run, lambda record: None).verdict == "ok"
    return load(folder / "out")


@pytest.fixture
def path(results):
    return results.frame("critical_path")


def of_round(path, number):
    return path.row(by_predicate=pl.col("round") == number, named=True)


def test_every_second_of_every_round_is_in_one_part(path):
    assert path["round"].to_list() == list(range(ROUNDS))
    parts = path.select(list(critical_path.PARTS))
    assert (parts.sum_horizontal() - path["iteration_s"]).abs().max() < 1e-12
    assert all(lowest > -1e-9 for lowest in parts.min().row(0))


def test_a_worker_that_computes_long_is_named(path):
    slow, calm = of_round(path, LONG_COMPUTE), of_round(path, LONG_COMPUTE + 1)
    assert slow["compute_worker"] == "worker-2"
    assert slow["compute_s"] == pytest.approx(0.2)
    assert calm["compute_s"] == pytest.approx(COMPUTE_S)
    others = [name for name in critical_path.PARTS if name != "compute_s"]
    for name in others:  # it cost nothing else
        assert slow[name] == pytest.approx(calm[name], abs=1e-3), name


def test_a_burst_at_a_worker_s_link_is_named_with_that_worker(path):
    hit, calm = of_round(path, BURST), of_round(path, BURST + 1)
    assert hit["broadcast_worker"] == "worker-3"
    assert hit["broadcast_impairments"] == ["burst-worker-3"]
    assert hit["compute_impairments"] == hit["gather_impairments"] == []
    cost_s = hit["broadcast_delay_s"] + hit["broadcast_repair_s"]
    assert cost_s == pytest.approx(hit["iteration_s"] - calm["iteration_s"], abs=2e-3)
    assert cost_s > 0.02


def test_loss_at_the_server_costs_repair_whoever_is_last(path):
    hit, calm = of_round(path, LOSS), of_round(path, LOSS + 1)
    assert hit["gather_impairments"] == ["loss-server"]
    assert hit["gather_repair_s"] > 0.8 * (hit["iteration_s"] - calm["iteration_s"])
    assert hit["gather_transfer_s"] == pytest.approx(calm["gather_transfer_s"], rel=0.1)
    assert hit["broadcast_repair_s"] == pytest.approx(0, abs=1e-3)


def test_a_slow_link_is_a_delay_of_both_legs_of_its_worker(path):
    hit = of_round(path, SLOW_LINK)
    for leg in ("gather", "broadcast"):
        assert hit[f"{leg}_worker"] == "worker-1"
        assert hit[f"{leg}_impairments"] == ["straggler-worker-1"]
        assert hit[f"{leg}_delay_s"] > hit[f"{leg}_transfer_s"]
    assert hit["compute_impairments"] == []  # its link is slow, and not its processor


def test_a_calm_round_names_no_impairment(path):
    calm = path.filter(~pl.col("round").is_in([BURST, LOSS, SLOW_LINK]))
    for step in critical_path.STEPS:
        assert calm[f"{step}_impairments"].list.len().max() == 0


def test_the_tables_name_workers_and_the_cost_of_impairments(results, path):
    (line,) = culprits_table(results).rows
    assert line[0].text == "fixed"
    whole_s = path["iteration_s"].sum()
    hit = of_round(path, BURST)
    share = 100 * (hit["broadcast_delay_s"] + hit["broadcast_repair_s"]) / whole_s
    told = dict(each.removesuffix(" %").rsplit(" ", 1) for each in line[4].text.split(", "))
    assert set(told) == {"burst-worker-3", "loss-server", "straggler-worker-1"}
    assert float(told["burst-worker-3"]) == pytest.approx(share, rel=0.01)
    (sums,) = parts_table(results).records
    assert sum(sums[part] for part in critical_path.PARTS) == pytest.approx(whole_s)
    assert sums["rounds"] == ROUNDS


def test_the_figure_stacks_bars_to_the_mean_round(results, path):
    figure = stacked(path, results.arms)
    assert figure is not None
    (axes,) = figure.axes
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    unit = 1e3 if path["iteration_s"].mean() < 1 else 1
    assert sum(bar.get_width() for bar in bars) == pytest.approx(path["iteration_s"].mean() * unit)
    assert [each.get_text() for each in axes.get_yticklabels()] == ["fixed"]
    assert stacked(path.clear(), results.arms) is None


def hand_made(folder, *, impairments=(), training=()):
    """A run of two rounds of 1 s each: compute 0.3, gather 0.4, mean 0.05, broadcast 0.2."""
    built = ResultsBuilder(folder).run(arm="dblp", seed=1, rounds=2)
    times_s = {"began_s": 0, "gather_began_s": 0.3, "gather_ended_s": 0.7}
    times_s |= {"broadcast_began_s": 0.75, "ended_s": 1.0}
    with edited(built / "events" / "rounds.jsonl") as rounds:
        for number, record in enumerate(rounds):
            record |= {name: number + time_s for name, time_s in times_s.items()}
            record |= {"gather_s": 0.4, "broadcast_s": 0.2, "iteration_s": 1.0}
            record["impairments"] = [entry["name"] for entry in impairments] if number else []
    write_lines(
        built / "events" / "impairments.jsonl",
        [
            {"round": 1, **each, "action": action, "sent_s": at_s, "acknowledged_s": at_s}
            for each in impairments
            for action, at_s in (("begin", 1.0), ("end", 2.0))
        ],
    )
    for host in ("worker-1", "worker-2"):
        lines = [{"round": n, "host": host, "compute_s": 0.1} | dict(training) for n in (0, 1)]
        if host == "worker-2":
            lines[1]["compute_s"] = 0.25
        write_lines(built / "events" / f"training-{host}.jsonl", lines)
    return load(folder).frame("critical_path")


def test_a_slowed_processor_is_named_where_its_worker_computed_longest(tmp_path):
    slowed = {"name": "slow", "target": "worker-2", "details": {"resource": "cpu"}}
    other = {"name": "other", "target": "worker-1", "details": {"resource": "cpu"}}
    path = hand_made(tmp_path, impairments=[slowed, other])
    assert path["compute_worker"].to_list()[1] == "worker-2"
    assert path["compute_impairments"].to_list() == [[], ["slow"]]


def test_computing_beyond_the_pace_is_apart_and_what_remains_is_the_barrier(tmp_path):
    path = hand_made(tmp_path, training={"compute_overrun_s": 0.04})
    second = of_round(path, 1)
    assert second["compute_s"] == pytest.approx(0.21)
    assert second["overrun_s"] == pytest.approx(0.04)
    assert second["mean_s"] == pytest.approx(0.05)
    assert second["update_s"] == pytest.approx(0.05)
    assert second["barrier_s"] == pytest.approx(0.05)  # 0.3 - 0.25 before the gather


def test_logs_of_before_have_no_critical_path(tmp_path):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1)  # without `began_s` in rounds
    path = load(tmp_path).frame("critical_path")
    assert path.is_empty()
    assert {each.name for each in critical_path.COLUMNS} < set(path.columns)
