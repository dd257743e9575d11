"""What the pages say of kept results is what the kept rows give (`analysis.report.sentences`)."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from analysis.report import kept_pages, sentences, verification
from testbed.cli import report_view

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
OF_RESULTS = [
    ROOT / "README.md",
    RESULTS / "README.md",
    *sorted((ROOT / "docs" / "measured").glob("*.md")),
]


@cache
def stored(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def test_every_table_and_number_is_what_the_kept_rows_give(capsys):
    assert report_view.verify(write=False), capsys.readouterr().err


def test_pages_state_numbers_with_their_entries():
    pages = [path.read_text(encoding="utf-8") for path in kept_pages.documents(ROOT)]
    assert sum(len(lines) for page in pages for lines, _ in sentences.claims(page)) > 50


@pytest.mark.parametrize("page", OF_RESULTS, ids=lambda page: page.name)
def test_every_interval_of_a_page_about_results_has_its_stored_entry(page):
    named, shown = sentences.intervals(page.read_text(encoding="utf-8"))
    assert [each for each in shown if each not in named] == []


def test_the_table_of_the_transport_is_the_stored_one():
    text = (ROOT / "docs" / "measured" / "transport.md").read_text(encoding="utf-8")
    header, _, *rows = re.findall(r"^\| (?:loss|---:|\d+ %) \|.*$", text, re.MULTILINE)
    peers = [cell.strip() for cell in header.strip("|").split("|")][1:]
    assert len(rows) == 6
    for row in rows:
        loss, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        for peer, cell in zip(peers, cells, strict=True):
            tcp = peer.startswith("TCP")
            name = peer.lower().replace(" ", "-") if tcp else f"P-0.8%/{peer}"
            case = f"100M/loss-{loss.replace(' ', '')}/{name}"
            record = next(each for each in stored("bench/transport.json") if each["case"] == case)
            if record["status"] == "timeout":
                assert cell == f"> {record['limit_s']:g} s", case
            elif record["status"] != "ok":
                assert cell == record["status"].partition(":")[0], case
            else:
                assert cell == f"{record['ratio_to_bound']:.2f}", case


def test_the_list_of_results_names_each_folder_and_says_whose_commit_is_not_on_main():
    text = (ROOT / "docs" / "measured" / "index.md").read_text(encoding="utf-8")
    known = verification.on_main(ROOT)
    for file in sorted(RESULTS.glob("*/provenance.json")):
        manifest = json.loads((file.parent / "manifest.json").read_text())
        row = next(line for line in text.splitlines() if line.startswith(f"| [{file.parent.name}]"))
        # Of newer results `verify-results` looks for the sources, too, and says what it finds.
        if known and manifest["commit"] and not manifest.get("sources"):
            assert ("not on `main`" in row) == (manifest["commit"][:40] not in known), row
