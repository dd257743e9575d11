"""The report's section "Run by run", and that its pages load nothing and run nothing of others'."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.data.load import load
from analysis.report import explore
from analysis.report.html import to_html
from analysis.tables.rendering import Table, row
from tests.analysis.build import ResultsBuilder
from tests.analysis.test_timeline import add_times

_DATA = re.compile(r'<script type="application/json" id="run-values">(.*?)</script>', re.DOTALL)
_PROGRAM = re.compile(r"<script>(.*?)</script>", re.DOTALL)
HOSTILE = "</script><b>bold</b>"


def data_of(page: str) -> dict[str, Any]:
    """What the figures of a page show."""
    [text] = _DATA.findall(page)
    found: dict[str, Any] = json.loads(text)
    return found


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


def test_the_page_holds_each_ok_run_with_its_slowest_round_and_values(tmp_path, undrawn):
    build = a_sweep(tmp_path)
    build.run(arm="dblp", seed=3, factors={"q": 0.9}, verdict="invalid", reason="too slow")
    add_times(build.folder / "dblp-s1-0.9")
    data = data_of(analysis.write_report(tmp_path).index.read_text())
    assert [each["name"] for each in data["arms"]] == ["dblp", "fixed-low"]
    assert data["points"] == ["q = 0.6", "q = 0.9"]
    assert [each[:4] for each in data["runs"]] == [
        [f"{arm}-s{seed}-{q}", place, point, seed]
        for point, q in enumerate((0.6, 0.9))
        for place, arm in enumerate(("dblp", "fixed-low"))
        for seed in (1, 2)
    ]
    quantities = [each["label"] for each in data["quantities"]]
    [run] = [each for each in data["runs"] if each[0] == "dblp-s1-0.9"]
    assert run[4:7] == [4, 9.0, 1]  # the first of the slowest; it alone has a timeline
    assert {each[6] for each in data["runs"] if each is not run} == {0}
    values = dict(zip(quantities, run[7:], strict=True))
    assert values["Round latency, burst rounds"] == 9.0
    assert values["Round latency, median"] == 100.0
    units = {each["label"]: each["unit"] for each in data["quantities"]}
    assert (units["Round latency, burst rounds"], units["Round latency, median"]) == ("s", "ms")
    assert sum(each["shown"] for each in data["quantities"]) == 6


def test_the_table_of_runs_leads_to_the_slowest_round_without_any_program(tmp_path, undrawn):
    build = a_sweep(tmp_path)
    add_times(build.folder / "dblp-s1-0.9")
    paths = analysis.write_report(tmp_path)
    page = paths.index.read_text()
    assert re.findall(r'href="(timeline\.html#[^"]*)"', page) == [
        "timeline.html#dblp-s1-0.9&amp;round=4"
    ]
    assert 'href="#run=dblp-s1-0.9"' in page
    rows = list(csv.DictReader((paths.index.parent / "per-run.csv").open()))
    assert len(rows) == 8
    [slowest] = [each for each in rows if each["run_key"] == "dblp-s1-0.9"]
    assert (slowest["q"], slowest["slowest_round"]) == ("0.9", "4")
    assert float(slowest["round_latency_s.burst_mean"]) == 9.0
    assert "rounds_per_s" in slowest  # all metrics, not only those on the page


def test_labels_of_users_cannot_end_the_data_or_become_elements(tmp_path, undrawn):
    build = ResultsBuilder(tmp_path)
    build.run(arm=HOSTILE, seed=1, key="hostile-s1", factors={"q": HOSTILE})
    page = analysis.write_report(tmp_path).index.read_text()
    data = data_of(page)
    assert data["arms"][0]["name"] == HOSTILE
    assert data["points"] == [f"q = {HOSTILE}"]
    assert "<b>bold" not in page
    assert page.count("</script>") == page.count("<script") == 3


def test_without_an_ok_run_there_is_no_such_section(tmp_path, undrawn):
    ResultsBuilder(tmp_path).run(arm="dblp", seed=1, verdict="failed", reason="it fell over")
    page = analysis.write_report(tmp_path).index.read_text()
    assert not _DATA.search(page)
    assert "#run-by-run" not in page


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


def test_programs_of_ones_own_have_their_quantities(tmp_path):
    a_sweep(tmp_path)
    results = load(tmp_path)
    frame = explore.values(results).with_columns(**{"programs.a.duration_s": 2.5})
    assert explore.quantities(frame)[-1] == "programs.a.duration_s"
