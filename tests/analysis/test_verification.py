"""Kept results are recomputed from their rows: what differs is told, what is damaged is refused."""

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis.report import kept_results, verification, writing
from testbed.cli import report_view
from testbed.shared.yaml_input import InputError
from tests.analysis.build import edited
from tests.analysis.test_kept_rows import FILES
from tests.analysis.test_report import three_arms
from tests.run.test_manifest import git

PAGE = """# Title

<!-- quick: begin -->
<!-- quick: end -->
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A project with kept results of one experiment, in a page with a table."""
    folder = tmp_path_factory.mktemp("made")
    build = three_arms(folder / "runs", seeds=5)
    build.run(
        arm="dblp", seed=1, verdict="invalid", reason="late", suffix=".attempt1", planned=False
    )
    place = folder / "project"
    (place / "experiments" / "results").mkdir(parents=True)
    (place / "README.md").write_text(PAGE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing, "draw_all", lambda *_: [])
        kept_results.keep(folder / "runs", root=place)
    kept_results.write_readme(root=place)
    return place


@pytest.fixture
def project(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "project"))


@pytest.fixture(autouse=True)
def keys_of_tests(request, monkeypatch) -> None:
    """The runs that tests make have short keys, which are no hashes."""
    if "shipped" not in request.fixturenames:
        monkeypatch.setattr(report_view, "key_of", lambda config: config["key"])


@pytest.fixture
def shipped(tmp_path) -> Path:
    """A project with a copy of the shipped results of `quick`, to be changed."""
    place = "experiments/results/quick"
    shutil.copytree(kept_results.ROOT / place, tmp_path / "shipped" / place)
    return tmp_path / "shipped"


def of_quick(project: Path, name: str) -> Path:
    return project / "experiments" / "results" / "quick" / name


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_what_was_kept_agrees_and_is_said_to(project, capsys):
    assert report_view.verify(write=False, root=project)
    out = capsys.readouterr().out
    assert "quick: recomputed from 15 rows (16 attempts)" in out
    assert "commits were not looked for" in out  # there is no history here
    assert "1 results recomputed: all agree" in out
    provenance = json.loads(of_quick(project, "provenance.json").read_text())
    assert provenance["verdicts"]["invalid"] == 0
    assert provenance["refused"] == {"invalid": 1}
    text = (project / "README.md").read_text()
    assert "Runs: 15 ok, 1 invalid and repeated. `" in text


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("rows.csv", ",0.9,", ",0.8,", "summary.json: arms.dblp.accuracy"),
        ("rows.csv", ",0.18", ",0.19", "summary.json: arms.dblp.round_latency_s."),
        ("summary.json", '"n": 5', '"n": 4', "n is 4; the rows give 5"),
        ("summary.json", '"schema": 1,', "", "schema is only in the rows"),
        ("provenance.json", '"invalid": 1', '"invalid": 0', "refused.invalid is 0"),
        ("main.md", "| dblp", "| DBLP", "main.md: line "),
        ("attempts.csv", ",invalid,", ",failed,", "provenance.json: refused."),
        ("gates.csv", "passed,true,,", "passed,false,rate: off,", "summary.json: waived_gates"),
        ("../../../README.md", "| dblp", "| DBLP", "README.md: line "),
    ],
)
def test_a_number_that_was_changed_anywhere_is_told(project, capsys, file, old, new, message):
    change(of_quick(project, file), old, new)
    assert not report_view.verify(write=False, root=project)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.replace("passed", "failed"), "rate_error of an attempt at .*: failed"),
        (lambda row: re.sub(r"rate_error,[^,]+", "rate_error,9", row), "the value 9 and the limit"),
        (lambda row: row.replace("rate_error", "rate_eror"), "rate_eror .* no such gate; valid: a"),
        (lambda row: row.replace("passed,true", "passed,false"), "nothing waives it; valid: true"),
        (lambda row: row.replace("passed", "unknown"), "outcome 'unknown'; valid: passed, failed"),
        (lambda row: "", "has no gate rate_error, which runs of its kind have"),
    ],
    ids=["failed", "beyond", "misspelt", "waived", "outcome", "gone"],
)
def test_gates_that_contradict_themselves_or_the_verdict_are_refused(shipped, change, message):
    path = of_quick(shipped, "gates.csv")
    rows = path.read_text().splitlines(keepends=True)
    assert report_view.verify(write=False, root=shipped)
    at = next(number for number, row in enumerate(rows) if ",rate_error," in row)
    path.write_text("".join([*rows[:at], change(rows[at]), *rows[at + 1 :]]))
    with pytest.raises(InputError, match=rf"gates\.csv: .*{message}"):
        report_view.verify(write=False, root=shipped)
    path.write_text(rows[0])
    with pytest.raises(InputError, match=r"gates\.csv: run .* is ok without any gate"):
        report_view.verify(write=False, root=shipped)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("plan.jsonl", '"q": 0.9', '"q": 0.8'),
        ("experiment.json", '"rounds": 60', '"rounds": 600'),
        ("experiment.json", '"conservation": 1e-05', '"conservation": 0.1'),
        ("experiment.json", '"datapath"', '"datapaths"'),
    ],
)
def test_a_configuration_that_is_not_that_of_the_key_is_refused(shipped, file, old, new):
    change(of_quick(shipped, file), old, new)
    with pytest.raises(InputError, match=r"plan\.jsonl: run .* the configuration of key "):
        report_view.verify(write=False, root=shipped)


def test_what_a_page_has_a_table_of_must_be_there(project):
    shutil.rmtree(of_quick(project, ""))
    with pytest.raises(InputError, match=r"quick/provenance.json: missing, and README.md has a "):
        report_view.verify(write=False, root=project)


def test_numbers_are_written_anew_from_the_rows(project):
    whole = {path: path.read_bytes() for path in project.rglob("*.*") if path.is_file()}
    change(of_quick(project, "summary.json"), '"n": 5', '"n": 4')
    of_quick(project, "main.md").unlink()
    readme = project / "README.md"
    change(readme, "| dblp", "| DBLP")
    assert report_view.verify(write=True, root=project)
    assert {path: path.read_bytes() for path in whole} == whole


KEPT = (*FILES, "summary.json", "provenance.json")


@settings(max_examples=20, deadline=None)
@example("experiment.json", 0.484375, 6, "0")  # the kind of a pace, without its quotes
@given(st.sampled_from(KEPT), st.floats(0, 0.999), st.integers(0, 30), st.sampled_from('0x{],"\n'))
def test_whatever_is_damaged_is_told_or_refused_in_one_line(made, file, place, lost, instead):
    path = of_quick(made, file)
    whole = path.read_text()
    at = int(place * len(whole))
    path.write_text(whole[:at] + instead + whole[at + lost :])
    try:
        verification.verify(root=made)
    except ValueError as refused:
        assert "\n" not in str(refused)
    finally:
        path.write_text(whole)


def test_rounds_give_the_numbers_of_their_run(project, capsys):
    path = of_quick(project, "rounds.parquet")
    rounds = pl.read_parquet(path)
    rounds.with_columns(latency_s=pl.col("latency_s") * 2).write_parquet(path)
    assert not report_view.verify(write=False, root=project)
    assert "rounds.parquet: round_latency_s.mean of run dblp-s1 is" in capsys.readouterr().err
    path.write_bytes(b"PAR1, and no more")
    with pytest.raises(InputError, match=r"rounds\.parquet: .*; valid: rounds as they were kept"):
        report_view.verify(write=False, root=project)


def committed(root: Path, message: str) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", message)
    return git(root, "rev-parse", "HEAD")


def recorded(project: Path, **facts: object) -> None:
    with edited(path := of_quick(project, "manifest.json")) as manifest:
        manifest |= facts
    kept_results.write_derived(path.parent)
    kept_results.write_readme(root=project)


def test_a_commit_is_looked_for_on_main(project, capsys):
    git(project, "init", "-q", "-b", "main")
    head = committed(project, "one")
    for commit, message in (
        (None, "manifest.json: no commit was recorded; valid: a commit"),
        (f"{head}+changes", f"commit {head[:10]} was run with changes that were not committed"),
    ):
        recorded(project, commit=commit)
        with pytest.raises(InputError, match=message.replace("+", r"\+")):
            report_view.verify(write=False, root=project)
    recorded(project, commit=head)
    assert report_view.verify(write=False, root=project)
    assert "is not on main" not in capsys.readouterr().out
    git(project, "checkout", "-q", "-b", "mine")
    recorded(project, commit=(mine := committed(project, "two")))
    assert report_view.verify(write=False, root=project)
    line = f"quick: commit {mine[:10]} is not on main, and its sources were not recorded\n"
    assert line in capsys.readouterr().out


def test_sources_are_looked_for_on_main_where_their_commit_is_not(project, capsys):
    git(project, "init", "-q", "-b", "main")
    committed(project, "one")
    git(project, "checkout", "-q", "-b", "mine")
    for folder, text in (("code/a", "1"), ("code/b", "2")):
        (project / folder).mkdir(parents=True)
        (project / folder / "file").write_text(text)
    mine = committed(project, "two")
    sources = {name: git(project, "rev-parse", f"HEAD:{name}") for name in ("code/a", "code/b")}
    recorded(project, commit=mine, sources=sources)
    assert report_view.verify(write=False, root=project)
    line = f"quick: commit {mine[:10]} is not on main"
    assert f"{line}, nor is there one with the same sources\n" in capsys.readouterr().out
    git(project, "checkout", "-q", "main")  # the same change comes to main as another commit
    git(project, "checkout", "-q", "mine", "--", "code")
    squashed = committed(project, "one and two")
    (project / "code" / "b" / "file").write_text("3")  # half of it is not enough
    committed(project, "three")
    assert report_view.verify(write=False, root=project)
    assert f"{line}; {squashed[:10]} there has the same code/a, code/b\n" in capsys.readouterr().out


def test_texts_that_are_alike_in_numbers_only_are_told_apart():
    assert verification._same(1, 1.0) and verification._same(0.1234561, 0.1234563)
    assert not verification._same(1, True) and not verification._same(None, 0)
    assert not verification._same(0.12345, 0.12346)
