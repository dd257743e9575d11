"""The pages' numbers of kept results stand in blocks that are written from the kept rows."""

import json
import re
from pathlib import Path

import pytest

from analysis.report import kept_results, verification
from testbed.cli import report_view

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
PAGES = [page.relative_to(ROOT) for page in kept_results.documents(ROOT)]
_GENERATED = re.compile(r"<!-- ([a-z0-9-]+): begin -->\n.*?<!-- \1: end -->", re.DOTALL)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_TYPED = re.compile(
    r"\((?:n = \d+, |values )?-?\d[\d.]*(?: to |\u2013)-?\d[\d.]*[,)]|\bad hoc\b|<!-- stored"
)


def test_every_block_is_what_the_kept_rows_give(capsys):
    assert report_view.verify(write=False), capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_result_is_typed(page):
    prose = _CODE.sub("", _GENERATED.sub("", (ROOT / page).read_text(encoding="utf-8")))
    assert [match[0] for match in _TYPED.finditer(prose)] == []


def test_answers_and_benches_come_from_what_is_kept(tmp_path):
    answers = kept_results.answers(RESULTS)
    assert answers is not None
    asked = (ROOT / "analysis/report/questions.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [row[-1].text for row in answers.rows] == [line.rsplit(",", 5)[1] for line in asked]
    bench = kept_results.bench("bench-bound", RESULTS)
    assert bench is not None
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in bench.rows}
    assert cells["30 % lost"][3] == "> 6 s" and cells["90 % lost"][-1] == "failed"
    assert kept_results.answers(tmp_path) is kept_results.bench("bench-bound", tmp_path) is None


def test_the_list_of_results_names_each_folder_and_says_whose_commit_is_not_on_main():
    listed, page = (
        (ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in ("reference/kept-results.md", "measured/index.md")
    )
    lost = " ".join(re.findall(r"The commits? of (.*?) (?:is|are) not on\s`main`", page))
    on_main = verification.on_main(ROOT)
    for file in sorted(RESULTS.glob("*/provenance.json")):
        manifest = json.loads((file.parent / "manifest.json").read_text())
        name, commit = file.parent.name, manifest["commit"]
        assert f"\n| {name} " in listed
        # Of newer results `verify-results` looks for the sources, too, and says what it finds.
        if on_main and commit and not manifest.get("sources"):
            assert (f"`{name}`" in lost) == (commit[:40] not in on_main), name
