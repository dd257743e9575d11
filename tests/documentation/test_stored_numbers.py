"""What the pages say of stored results is what the stored files hold.

Under a text that states numbers stands a comment, a line for each number:

    <!-- stored
    regime-map [2.1, 0.9] | ratios fixed-low/dblp round_latency_s.mean | 3.86 (3.50 to 4.34)
    tolerance | glyphs/early-stop/in-order/zero/always 0.1 | 14.8 points (2.9 to 32.4)
    -->

The first part names the experiment and, in brackets, its point; the second the entry, with
`x FACTOR` for another unit; the third is the text, which must stand above, word for word. Its
numbers are the stored value, the interval, or both, to the digits that are shown.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from analysis.report import kept_results
from testbed.bench.tolerance.findings import harm

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
PAGES = [ROOT / "README.md", RESULTS / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OF_RESULTS = [*PAGES[:2], *sorted((ROOT / "docs" / "measured").glob("*.md"))]
COMMENT = re.compile(r"<!-- stored\n(.*?)-->", re.DOTALL)
GENERATED = re.compile(r"<!-- ([a-z0-9-]+): begin -->\n.*?<!-- \1: end -->", re.DOTALL)
INTERVAL = re.compile(r"-?[\d.]+ to -?[\d.]+")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
Entry = dict[str, Any]


@cache
def stored(name: str) -> Any:
    file = {"bench": "bench/transport.json", "tolerance": "tolerance/tolerance.json"}
    return json.loads((RESULTS / file.get(name, f"{name}/summary.json")).read_text())


def place(experiment: str, point: str) -> Any:
    summary = stored(experiment)
    if not point:
        return summary
    wanted = [each.strip() for each in point.split(",")]
    found = [each for each in summary["points"] if list(each["factors"].values()) == wanted]
    assert len(found) == 1, f"{experiment}: no point [{point}]"
    return found[0]


def entry(where: str, path: str) -> Entry:
    """The stored entry: `value`, `low` and `high`; the last two may be missing."""
    name, _, point = where.partition(" [")
    words = path.split()
    if name == "bench":
        case, key = words
        record = next(each for each in stored(name) if each["case"] == case)
        return {"value": record[key]}
    if name == "tolerance":
        group, loss = words
        found = {"/".join(each): by_loss for each, by_loss in harm(stored(name)).items()}
        return found[group][float(loss)].as_json()
    if " over " in point:  # by how many per cent the first point's value is larger
        first, second = (entry(f"{name} [{each}", path) for each in point[:-1].split(" over "))
        return {"value": (first["value"] / second["value"] - 1) * 100}
    found = place(name, point.rstrip("]"))
    if words[0] == "published":
        _, metric, published = words
        return next(each for each in found[words[0]][metric] if each["id"] == published)["ours"]
    section, arms, metric = words
    return _walk(found[section][arms], metric.split("."))


def _walk(found: Any, keys: list[str]) -> Entry:
    for key in keys:
        found = found[key]
    return found if isinstance(found, dict) else {"value": found}


def scaled(found: Entry, factor: float) -> Entry:
    ends = sorted(found[end] * factor for end in ("low", "high") if found.get(end) is not None)
    return {"value": found["value"] * factor, **dict(zip(("low", "high"), ends, strict=False))}


def agrees(text: str, found: Entry) -> bool:
    """Whether all numbers of the text are those of the entry, to the digits that are shown."""
    digits = re.sub(r"(?<=\d)-(?=\d)", " ", text)
    interval = INTERVAL.search(digits)
    before = digits[: interval.start()] if interval else digits
    shown = [("value", number) for number in NUMBER.findall(before)[:1]]
    if interval:
        shown += list(zip(("low", "high"), NUMBER.findall(interval[0]), strict=True))
    return bool(shown) and all(_rounds_to(found.get(key), number) for key, number in shown)


def _rounds_to(value: float | None, shown: str) -> bool:
    decimals = len(shown.partition(".")[2])
    # A stored value that lies on the edge (six digits are kept) may be rounded either way.
    return value is not None and abs(value - float(shown)) <= 0.5000001 * 10**-decimals


def claims() -> list[tuple[str, str, str]]:
    """For each line of each comment: the page, the line, and the text above the comment."""
    found = []
    for page in PAGES:
        text = GENERATED.sub("", page.read_text(encoding="utf-8"))
        end = 0
        for comment in COMMENT.finditer(text):
            above = " ".join(text[end : comment.start()].split())
            found += [(page.name, line, above) for line in comment[1].splitlines()]
            end = comment.end()
    return found


@pytest.mark.parametrize(("page", "line", "above"), claims())
def test_a_number_in_the_text_is_the_stored_one(page, line, above):
    where, path, shown = (part.strip() for part in line.split(" | "))
    path, _, factor = path.partition(" x ")
    assert re.search(rf"(?<![\d.-]){re.escape(shown)}", above), f"{page} does not say {shown!r}"
    found = scaled(entry(where, path), float(factor or 1))
    assert agrees(shown, found), f"{page} says {shown}; stored: {found}"


@pytest.mark.parametrize("page", OF_RESULTS, ids=lambda page: page.name)
def test_every_interval_of_a_page_about_results_has_its_stored_entry(page):
    text = GENERATED.sub("", page.read_text(encoding="utf-8"))
    named = set(INTERVAL.findall(" ".join(COMMENT.findall(text))))
    prose = " ".join(COMMENT.sub("", text).split())
    in_brackets = re.findall(r"\((?:n = \d+, )?(-?[\d.]+ to -?[\d.]+)", prose)
    assert [each for each in in_brackets if each not in named] == []


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
            record = next(each for each in stored("bench") if each["case"] == case)
            if record["status"] == "timeout":
                assert cell == f"> {record['limit_s']:g} s", case
            else:
                assert cell == f"{record['ratio_to_bound']:.2f}", case


def test_the_generated_tables_are_what_the_stored_files_give():
    for path in kept_results.documents(ROOT):
        assert kept_results.filled(path, ROOT)[0] == path.read_text(encoding="utf-8"), path


def test_the_list_of_results_names_each_folder_with_its_runs_and_date():
    text = (ROOT / "docs" / "measured" / "index.md").read_text(encoding="utf-8")
    for file in sorted(RESULTS.glob("*/provenance.json")):
        kept = json.loads(file.read_text())
        manifest = json.loads((file.parent / "manifest.json").read_text())
        name = f"| [{kept['experiment']}]"
        row = next(line for line in text.splitlines() if line.startswith(name))
        assert f"| {kept['verdicts']['ok']} | {kept['began'][:10]} |" in row
        assert (manifest["commit"] or "not recorded")[:7] in row


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("1.67", True),
        ("1.67 (1.66 to 1.69, n = 5)", True),
        ("(1.66 to 1.69", True),
        ("1.68", False),
        ("1.67 (1.65 to 1.69)", False),
        ("(1.66 to 1.70)", False),
        ("no number", False),
    ],
)
def test_a_wrong_number_is_found(text, is_right):
    found = {"value": 1.67158, "low": 1.65768, "high": 1.69193}
    assert agrees(text, found) is is_right
