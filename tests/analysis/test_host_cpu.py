"""Processor time per host, from samples of processes."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from analysis.data.load import load
from analysis.data.programs import measured
from analysis.tables.setup import host_cpu_table
from tests.analysis.build import ResultsBuilder, write

# Time, name, number, host, processor time: a program of the same name twice, and a part of the lab.
ROWS = [
    (1.0, "h1", 11, "h1", 0.5),
    (2.0, "h1", 11, "h1", 2.0),
    (1.0, "h1:iperf3", 12, "h1", 0.25),
    (2.0, "h1:iperf3", 13, "h1", 0.5),
    (2.0, "h2", 14, "h2", 4.0),
    (2.0, "ovs-vswitchd", 2, None, 9.0),
]


def add_processes(run: Path) -> None:
    (run / "samples").mkdir()
    columns = ["t_s", "name", "pid", "host", "cpu_s"]
    frame = pl.DataFrame(ROWS, schema=columns, orient="row").with_columns(rss_bytes=0)
    frame.write_parquet(run / "samples" / "processes.parquet")


def test_the_table_has_a_row_per_arm_and_host(tmp_path):
    run = ResultsBuilder(tmp_path).run(arm="dblp", seed=1)
    assert host_cpu_table(load(tmp_path)).rows == []
    add_processes(run)
    rows = [[cell.text for cell in row] for row in host_cpu_table(load(tmp_path)).rows]
    assert rows == [["dblp", "h1", "2.75 s", "1"], ["dblp", "h2", "4.00 s", "1"]]


def test_it_is_a_metric_of_programs(tmp_path):
    add_processes(tmp_path)
    program = {"name": "one", "host": "h1", "began_s": 1.0, "ended_s": 2.0}
    write(tmp_path / "workload.json", {"programs": [program]})
    assert measured(tmp_path)["hosts.h1.cpu_s"] == 2.75
