"""The pages: every run in a table, nothing loaded, nothing run of others', long tables cut."""

from __future__ import annotations

import base64
import csv
import hashlib
import re
from pathlib import Path

import pytest

import analysis
from analysis.report.html import to_html
from analysis.tables.rendering import Table, row
from tests.analysis.build import ResultsBuilder
from tests.analysis.test_timeline import add_times

_PROGRAM = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def a_sweep(folder: Path) -> ResultsBuilder:
    """Two arms at two points with two seeds; the first seed of dblp at q = 0.9 has the slowest
    rounds, which are the rounds 4 and 8."""
    build = ResultsBuilder(folder, arms=["dblp", "fixed-low"])
    build.factors = {"q": [0.6, 0.9]}
    for q in (0.9, 0.6):  # not in the experiment's order
        for seed in (2, 1):
            for arm in ("fixed-low", "dblp"):
                slow = 9.0 if (q, seed, arm) == (0.9, 1, "dblp") else 1.0 + seed / 10
                build.run(arm=arm, seed=seed, factors={"q": q}, burst_s=slow, calm_s=0.1)
    return build


def test_the_table_of_every_run_leads_to_the_slowest_round(tmp_path, undrawn):
    build = a_sweep(tmp_path)
    add_times(build.folder / "dblp-s1-0.9")
    paths = analysis.write_report(tmp_path)
    page = paths.index.read_text()
    assert re.findall(r'href="(timeline\.html#[^"]*)"', page) == [
        "timeline.html#dblp-s1-0.9&amp;round=4"
    ]
    rows = list(csv.DictReader((paths.index.parent / "per-run.csv").open()))
    assert [each["run_key"] for each in rows] == [
        f"{arm}-s{seed}-{q}" for q in (0.6, 0.9) for arm in ("dblp", "fixed-low") for seed in (1, 2)
    ]
    [slowest] = [each for each in rows if each["run_key"] == "dblp-s1-0.9"]
    assert (slowest["q"], slowest["slowest_round"]) == ("0.9", "4")
    assert float(slowest["round_latency_s.burst_mean"]) == 9.0
    assert "rounds_per_s" in slowest  # all metrics, not only those on the page


def test_the_policy_of_each_page_allows_its_own_programs_and_no_connection(tmp_path, undrawn):
    build = ResultsBuilder(tmp_path)
    add_times(build.run(arm="dblp", seed=1))
    paths = analysis.write_report(tmp_path)
    analysis.write_index(tmp_path)
    timeline = paths.index.with_name("timeline.html")
    for path in (paths.index, timeline, tmp_path / "report" / "index.html"):
        page = path.read_text()
        [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
        rules = dict(each.strip().partition(" ")[::2] for each in policy.split(";"))
        assert rules["default-src"] == "'none'"
        assert rules.keys() <= {
            *("default-src", "img-src", "style-src", "script-src", "base-uri", "form-action")
        }
        programs = _PROGRAM.findall(page)
        assert programs
        hashes = {
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in programs
        }
        assert set(rules["script-src"].split()) == hashes
        assert not re.search(r"\s(?:src|on\w+)=", page)


def test_contents_lead_to_sections_and_the_files_beside_a_table_exist(tmp_path):
    build = a_sweep(tmp_path)
    add_times(build.folder / "dblp-s1-0.9")
    index = analysis.write_report(tmp_path).index
    page = index.read_text()
    [contents] = re.findall(r'<nav aria-label="Contents">(.*?)</nav>', page, re.DOTALL)
    named = set(re.findall(r'href="#([^"]+)"', contents))
    assert named == set(re.findall(r'<section id="([^"]+)"', page))
    files = re.findall(r'href="([^"]+)" download', page)
    assert {"main.csv", "main.md", "main.tex", "per-run.csv", "runs.csv"} <= set(files)
    assert all((index.parent / each).is_file() for each in files)


@pytest.mark.parametrize(("name", "sortable"), [("runs", True), ("main", False), (None, False)])
def test_only_tables_whose_rows_are_of_a_kind_can_be_sorted(name, sortable):
    table = Table(title="t", columns=["a", "b"], rows=[row("x", "1"), row("y", "2")])
    assert ("sortable" in str(to_html(table, name))) is sortable


def test_rows_that_are_too_many_for_a_page_are_in_the_file():
    table = Table(title="t", columns=["a"], rows=[row(f"row-{each}") for each in range(1700)])
    html = str(to_html(table, "runs"))
    assert html.count("<tr>") == 501
    assert "row-499<" in html and "row-500<" not in html
    assert "1,200 more rows are in runs.csv" in html
