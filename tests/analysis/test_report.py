"""The whole way from run directories to the report folder, against golden files.

After a wanted change, `UPDATE_GOLDEN=1 pytest tests/analysis` writes them anew; read the diff.
"""

import base64
import csv
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.report import html, writing
from analysis.tables.by_arm import main_table
from tests.analysis.build import ResultsBuilder, edited, summary_of
from tests.analysis.test_sweep_points import run as run_of
from tests.analysis.test_sweep_points import sweep
from tests.analysis.test_timeline import add_times
from tests.cli.test_verbs import python

GOLDEN = Path(__file__).with_name("golden")
OF_SWEEPS = {
    *("contrasts.md", "main.md", "not-ok.md", "phases.md", "point-1.md"),
    *(f"point-ratios-{number}.md" for number in range(1, 5)),
    *("published.md", "ratios.md"),
}
_PROGRAM = re.compile(r"<script>(.*?)</script>", re.DOTALL)
HOSTILE = "<script>alert('x')</script>$y$|&"


def three_arms(folder: Path, seeds: int = 2) -> ResultsBuilder:
    """Seed 1 is 0.9 and seed 2 is 1.1 times as slow; the ratios are the same in both."""
    build = ResultsBuilder(folder, arms=["dblp", "fixed-low", "tcp-cubic"])
    options: dict[str, dict[str, Any]] = {
        "dblp": {},
        "fixed-low": {"accuracy": 0.91, "received": 94, "passes": 4},
        "tcp-cubic": {"received": None, "passes": None},
    }
    times_s = {"dblp": (0.06, 0.2), "fixed-low": (0.1, 1.0), "tcp-cubic": (0.1, 2.0)}
    for seed in range(1, seeds + 1):
        for arm, of_arm in options.items():
            calm_s, burst_s = ((0.7 + 0.2 * seed) * time_s for time_s in times_s[arm])
            build.run(arm=arm, seed=seed, calm_s=calm_s, burst_s=burst_s, compute_s=0, **of_arm)
    return build


def same(left: object, right: object) -> bool:
    """Equal, with numbers compared up to rounding."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == pytest.approx(right, rel=1e-9)
    return left == right


def golden_runs(folder: Path) -> None:
    """Three arms with two seeds, a run that is not ok, and one that is missing."""
    build = three_arms(folder)
    build.run(arm="dblp", seed=3, verdict="invalid", reason="the link was too slow")
    build.plan("fixed-low-s3", arm="fixed-low", seed=3)


def golden_sweep(folder: Path) -> None:
    """At a loss of 0.6 fixed-low takes twice, at 0.9 four times as long as dblp in bursts.

    At 0.9 a seed lacks an arm, and another was measured on another machine; at 0.3 no run of an
    arm is ok, at 0.1 no run at all. Phases differ between the seeds.
    """
    build = sweep(folder, seeds=6)
    build.published = ["D1", "limit-bytes", "limit-passes", "no-such-id", "D4", "D6"]
    with edited(build.folder / "fixed-low-s2-0.9" / "manifest.json") as manifest:
        manifest["cpu"] = "Other CPU"
    run_of(build, "dblp", 7, 0.9, critical=5)
    run_of(build, "fixed-low", 7, 0.9, verdict="failed", reason="it broke")
    run_of(build, "dblp", 1, 0.3)
    run_of(build, "fixed-low", 1, 0.3, verdict="invalid", reason="the link was too slow")
    for arm in ("dblp", "fixed-low"):
        run_of(build, arm, 1, 0.1, verdict="failed", reason="it broke")


@pytest.mark.parametrize("build", [golden_runs, golden_sweep])
def test_the_report_equals_the_golden_files(tmp_path, undrawn, build):
    build(tmp_path)
    place = GOLDEN / build.__name__.removeprefix("golden_")
    paths = analysis.write_report(tmp_path)
    written = {
        path.name: path.read_text(encoding="utf-8")
        for path in (paths.summary, *paths.tables)
        if (path.suffix in (".md", ".json") or path.name == "ratios.tex")
        if build is golden_runs or path.name in OF_SWEEPS
    }
    if os.environ.get("UPDATE_GOLDEN"):
        for name, text in written.items():
            (place / name).write_text(text, encoding="utf-8")
    assert {path.name for path in place.iterdir()} == set(written)
    for name, text in written.items():
        golden = (place / name).read_text(encoding="utf-8")
        if name.endswith(".json"):
            assert same(json.loads(text), json.loads(golden)), name
        else:
            assert text == golden, name


def test_kinds_of_impairment_have_their_own_rows_only_where_they_differ(tmp_path):
    build = three_arms(tmp_path / "one")
    impaired = "impaired_latency_s.loss"
    assert impaired not in summary_of(tmp_path / "one")["published"]
    for directory in build.folder.glob("*-s*"):
        with edited(directory / "events" / "rounds.jsonl") as rounds:
            rounds[8]["latency_s"] *= 0.5 if directory.name.startswith("dblp") else 1
    published = summary_of(tmp_path / "one")["published"]
    ids = [entry["id"] for entry in published[impaired]]
    assert ids == ["D1", "limit-bytes", "limit-passes"]
    assert published[impaired][0]["ours"]["value"] == pytest.approx(5.0)
    burst = published["round_latency_s.burst_mean"][0]["ours"]["value"]
    assert burst == pytest.approx(1.0 / 0.15)


def test_an_arm_without_ok_runs_says_so(tmp_path, undrawn):
    build = three_arms(tmp_path)
    build.run(arm="none", seed=1, verdict="unsupported", reason="no such kernel module")
    table = main_table(summary_of(tmp_path))
    assert table.columns[-1] == "none"
    assert {row[-1].note for row in table.rows[1:]} == {"no ok run of this arm"}
    assert any("1 unsupported (of 7)" in note for note in table.notes)
    analysis.write_report(tmp_path)


def test_a_report_without_any_ok_run_still_shows_why(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1, verdict="failed", reason="the server ended with signal 9")
    build.plan("fixed-low-s1", arm="fixed-low", seed=1)
    paths = analysis.write_report(tmp_path)
    page = paths.index.read_text()
    assert "no run is ok yet" in page and "the server ended with signal 9" in page
    assert "./lab explain " in page and "./lab run " in page
    assert "what was measured, by arm" not in page
    assert paths.figures == []
    assert json.loads(paths.summary.read_text())["arms"]["dblp"]["n_runs"] == 0


def test_a_hostile_arm_name_is_escaped_everywhere(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="dblp", seed=1)
    build.run(arm=HOSTILE, seed=1, key="hostile-s1", reason=HOSTILE)
    paths = analysis.write_report(tmp_path)
    page = paths.index.read_text()
    assert "<script>alert" not in page
    assert page.count("<script") == 1  # our program
    assert "&lt;script&gt;alert(" in page
    drawings = [path.read_text() for path in paths.figures if path.suffix == ".svg"]
    assert not any("<script" in drawing for drawing in drawings)
    assert "| <script" not in (paths.index.parent / "main.md").read_text()


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    three_arms(tmp_path)
    index = analysis.write_report(tmp_path).index
    page = index.read_text()
    assert not re.findall(r'(?:src|xlink:href|href)="(?:https?:)?//', page)
    assert "@import" not in page and "url(http" not in page
    assert page.count("<svg ") == 5
    # What realised loss counts stands at both rows of the table and at its figure.
    assert page.count("those that `keep` leaves out included") == 3
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    for target in re.findall(r'href="(\.\./[^"]+)"', page):
        assert (index.parent / target).exists()
    assert "var(--blue, #0063a3)" in page and "prefers-color-scheme: dark" in page


@pytest.mark.long
def test_the_users_settings_change_no_byte(tmp_path):
    theirs = tmp_path / "matplotlibrc"
    theirs.write_text(
        "font.family: serif\naxes.titlesize: 30\nxtick.direction: in\nsavefig.dpi: 40\n"
    )
    more = {"TZ": "Pacific/Auckland", "LC_ALL": "C", "MATPLOTLIBRC": str(theirs)}
    settings = [{}, {**more, "MPLBACKEND": "nonsense", "PYTHONWARNINGS": "error"}]
    results = tmp_path / "results"
    three_arms(results)
    reports = []
    for environment in settings:
        words = ("-P", "-m", "testbed", "report", "quick", "--out", results)
        done = python(*words, env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr
        folder = results / "quick/report"
        reports.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert "latency-cdf.png" in reports[0]
    assert reports[1] == reports[0]


def test_a_report_is_replaced_as_a_whole_or_not_at_all(tmp_path, undrawn, monkeypatch):
    three_arms(tmp_path)
    paths = analysis.write_report(tmp_path)
    before = paths.index.read_bytes()
    stale = paths.index.with_name("stale.txt")
    stale.write_text("from an older version")

    def crash(*_: object) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setitem(writing._FORMATS, ".csv", crash)
        with pytest.raises(OSError, match="No space left"):
            analysis.write_report(tmp_path)
    assert paths.index.read_bytes() == before and stale.exists()
    analysis.write_report(tmp_path)
    assert paths.index.read_bytes() == before and not stale.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quick", "report"]


def test_a_failed_swap_puts_the_old_report_back(tmp_path):
    old, new = tmp_path / "report", tmp_path / "not-there"
    old.mkdir()
    (old / "index.html").write_text("old")
    with pytest.raises(OSError):
        html._swap(new, old)
    assert (old / "index.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_importing_the_package_is_cheap():
    heavy = ["polars", "matplotlib", "scipy", "numpy", "jinja2"]
    code = f"import sys, analysis; print([name for name in {heavy} if name in sys.modules])"
    done = python("-c", code, check=True)
    assert done.stdout.strip() == "[]"


def test_each_experiment_has_a_report_and_the_index_leads_to_them(tmp_path, undrawn):
    for name, value in (("one", 1.0), ("two", 2.0)):
        build = ResultsBuilder(tmp_path, experiment=name)
        build.run(arm="dblp", seed=1, burst_s=value)
        build.run(arm="fixed-low", seed=1, burst_s=2 * value, verdict="invalid")
        paths = analysis.write_report(tmp_path, name)
        assert paths.index == tmp_path / name / "report" / "index.html"
    ResultsBuilder(tmp_path, experiment="three").plan("dblp-s1", arm="dblp", seed=1)
    index = writing.write_index(tmp_path)
    assert index == paths.overview == tmp_path / "report" / "index.html"
    page = index.read_text()
    for target in re.findall(r'href="([^"]+)"', page):
        assert (index.parent / target).is_file(), target
    assert page.count('/report/index.html"') == 2
    assert "no report yet" in page
    assert "1 ok, 1 invalid" in page
    last = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert last["experiment"] == "two"


def test_an_index_without_experiments_goes(tmp_path, undrawn):
    three_arms(tmp_path)
    analysis.write_report(tmp_path)
    shutil.rmtree(tmp_path / "quick")
    assert writing.write_index(tmp_path) is None
    assert not list(tmp_path.iterdir())
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "thesis.pdf").write_text("of somebody else")
    assert writing.write_index(tmp_path) is None
    assert (tmp_path / "report" / "thesis.pdf").exists()


def test_what_is_in_no_table_and_damaged_logs_are_told(tmp_path, undrawn):
    build = ResultsBuilder(tmp_path)
    directory = build.run(arm="dblp", seed=1)
    log = directory / "events" / "training-worker-1.jsonl"
    log.write_bytes(log.read_bytes()[:-5])
    (directory / "samples").mkdir()
    (directory / "samples" / "processes.parquet").write_bytes(b"PAR1 half")
    build.run(arm="dblp", seed=1, key="dblp-s1-old", planned=False, config={"rounds": 5})
    page = analysis.write_report(tmp_path).index.read_text()
    assert "in no table: 1 ok run on disk" in page and "not in the plan: other rounds" in page
    assert "events/training-worker-1.jsonl: last line (line 10) is cut off" in page
    assert "samples/processes.parquet: cannot be read, it is half-written or damaged" in page


def test_the_page_leads_to_its_sections_its_files_and_the_slowest_round(tmp_path):
    build = ResultsBuilder(tmp_path, arms=["dblp", "fixed-low"])
    build.factors = {"q": [0.6, 0.9]}
    for q in (0.9, 0.6):  # not in the experiment's order
        for seed in (2, 1):
            for arm in ("fixed-low", "dblp"):
                slow = 9.0 if (q, seed, arm) == (0.9, 1, "dblp") else 1.0 + seed / 10
                build.run(arm=arm, seed=seed, factors={"q": q}, burst_s=slow, calm_s=0.1)
    add_times(build.folder / "dblp-s1-0.9")
    paths = analysis.write_report(tmp_path)
    page = paths.index.read_text()
    assert re.findall(r'href="(timeline\.html#[^"]*)"', page) == [
        "timeline.html#dblp-s1-0.9&amp;round=4"
    ]
    rows = list(csv.DictReader((paths.index.parent / "per-run.csv").open()))
    assert [line["run_key"] for line in rows] == [
        f"{arm}-s{seed}-{q}" for q in (0.6, 0.9) for arm in ("dblp", "fixed-low") for seed in (1, 2)
    ]
    [slowest] = [line for line in rows if line["run_key"] == "dblp-s1-0.9"]
    assert (slowest["q"], slowest["slowest_round"]) == ("0.9", "4")
    assert float(slowest["round_latency_s.burst_mean"]) == 9.0
    assert "rounds_per_s" in slowest  # all metrics, not only those on the page
    [contents] = re.findall(r'<nav aria-label="Contents">(.*?)</nav>', page, re.DOTALL)
    named = set(re.findall(r'href="#([^"]+)"', contents))
    assert named == set(re.findall(r'<section id="([^"]+)"', page))
    files = re.findall(r'href="([^"]+)" download', page)
    assert {"main.csv", "main.md", "main.tex", "per-run.csv", "runs.csv"} <= set(files)
    assert all((paths.index.parent / file).is_file() for file in files)


def test_the_policy_of_each_page_allows_its_own_programs_and_no_connection(tmp_path, undrawn):
    build = ResultsBuilder(tmp_path)
    add_times(build.run(arm="dblp", seed=1))
    paths = analysis.write_report(tmp_path)
    writing.write_index(tmp_path)
    timeline = paths.index.with_name("timeline.html")
    for path in (paths.index, timeline, tmp_path / "report" / "index.html"):
        page = path.read_text()
        [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
        rules = dict(part.strip().partition(" ")[::2] for part in policy.split(";"))
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
