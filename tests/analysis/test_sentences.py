"""A number in a sentence is checked against what is kept, and written anew from it."""

from __future__ import annotations

import json

import pytest

from analysis.report.sentences import Kept, agrees, claims, disagreement, renewed

FOUND = {"value": 1.67158, "low": 1.65768, "high": 1.69193}


@pytest.fixture
def kept(tmp_path) -> Kept:
    summary = {
        "ratios": {"a/b": {"time": {"mean": FOUND}, "rate": {"value": 1.2, "low": None}}},
        "points": [
            {"factors": {"q": "0.9"}, "arms": {"a": {"time": {"value": 3.0}}}},
            {"factors": {"q": "0.5"}, "arms": {"a": {"time": {"value": 2.0}}}},
        ],
        "contrasts": [
            {"from": {"q": "0.9"}, "to": {"q": "0.5"}, "ratios": {"a/b": {"time": FOUND}}}
        ],
        "published": {"time": [{"id": "table-1", "ours": FOUND}]},
    }
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "summary.json").write_text(json.dumps(summary))
    rows = ["arm,seed,factor.q,time", *(f"b,{seed},0.9,{seed}" for seed in range(1, 7))]
    rows += [f"a,{seed},0.9,{2 * seed}" for seed in range(1, 6)]
    rows += [f"{arm},1,0.5,99" for arm in "ab"]
    (tmp_path / "quick" / "rows.csv").write_text("\n".join(rows))
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "transport.json").write_text('[{"case": "one", "ratio": 1.5}]')
    (tmp_path / "bench" / "peer.json").write_text(
        '[{"case": "a/one", "time": 3.0}, {"case": "b", "time": 1.5}]'
    )
    return Kept(tmp_path)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("1.67", True),
        ("1.67 (1.66 to 1.69, n = 5)", True),
        ("(1.66 to 1.69", True),
        ("1.67 (1.66\u20131.69)", True),
        ("1.67 (1.65\u20131.69)", False),
        ("1.68", False),
        ("1.67 (1.65 to 1.69)", False),
        ("(1.66 to 1.70)", False),
        ("no number", False),
    ],
)
def test_a_wrong_number_is_found(text, is_right):
    assert agrees(text, FOUND) is is_right


@pytest.mark.parametrize(
    "line",
    [
        "quick | ratios a/b time.mean | 1.67 (1.66 to 1.69)",
        "quick | ratios a/b time.mean x 100 | 167.2 (165.8 to 169.2)",
        "quick | published time table-1 | 1.7 x",
        "quick [0.9] | arms a time | 3",
        "quick [0.9 over 0.5] | arms a time | 50 %",
        "peer | b time | 1.5",
        "peer | a/one / b time | 2.0",
        "quick [0.9 to 0.5] | contrasts a/b time | 1.67 (1.66 to 1.69)",
        "bench | one ratio | 1.50",
        "quick [0.9] | paired a/b time | 2.0 (2.0 to 2.0)",
        "quick [0.9] | paired b/a time | 0.50",
        "quick [0.5] | paired a/b time | 1.0",
    ],
)
def test_each_kind_of_entry_is_found(kept, line):
    (found, above), *_ = claims(f"It is {line.split(' | ')[2]}.\n<!-- stored\n{line}\n-->")
    assert disagreement(found[0], above, kept) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("quick | ratios a/b time.mean | 1.68", "kept: value 1.67158, low"),
        ("quick | ratios a/b rate | 1.2 (1.1 to 1.3)", "kept: value 1.2"),
        ("quick | ratios a/c time.mean | 1.67", "no entry of the line"),
        ("quick [0.7] | arms a time | 3.0", "0 of [0.7]"),
        ("quick [0.5 to 0.9] | contrasts a/b time | 1.67", "0 of [0.5 to 0.9]"),
        ("bench | two ratio | 1.50", "0 of two"),
        ("quick [0.9] | paired a/b time | 2.1", "kept: value 2, low 2"),
        ("quick [0.7] | paired a/b time | 2.0", "no pair of a/b at [0.7]"),
        ("quick [0.9] | paired a/b rate | 2.0", "no entry of the line"),
    ],
)
def test_what_is_wrong_with_a_line_is_told(kept, line, said):
    (found, above), *_ = claims(f"It is {line.split(' | ')[2]}.\n<!-- stored\n{line}\n-->")
    assert said in (disagreement(found[0], above, kept) or "")


def test_a_line_of_a_result_that_is_not_there_is_refused(kept):
    line = "slow | ratios a/b time.mean | 1.67"
    (found, above), *_ = claims(f"It is 1.67.\n<!-- stored\n{line}\n-->")
    with pytest.raises(ValueError, match=r"slow/summary\.json: missing, and 'slow \| ratios"):
        disagreement(found[0], above, kept)


def test_numbers_are_written_anew_and_nothing_else(kept):
    def page(first: str, second: str, table: str) -> str:
        return (
            f"Before {first}.\n<!-- quick: begin -->\n{table}\n<!-- quick: end -->\nIt takes\n"
            f"{first.replace(' ', chr(10))} as long, 12.50 or {second} %.\n\n<!-- stored\n"
            f"quick | ratios a/b time.mean | {first}\n"
            f"quick [0.9 over 0.5] | arms a time | {second}\n"
            "quick | ratios a/c time.mean | 2.50\n-->\nAfter 2.50 and 40.\n"
        )

    old = page("2.50 (2.40 to 2.60)", "40.0", "| 2.50 (2.40 to 2.60) |")
    new = page("1.67 (1.66 to 1.69)", "50.0", "| 2.50 (2.40 to 2.60) |")
    assert renewed(old, kept) == new
    assert renewed(new, kept) == new


def test_a_short_text_that_stands_twice_is_left_to_a_reader(kept):
    page = (
        "It takes 2.50 as long. Another run took 2.50 s.\n<!-- stored\n"
        "quick | ratios a/b time.mean | 2.50\n-->\n"
    )
    assert renewed(page, kept) == page


def test_a_line_without_three_parts_is_refused():
    with pytest.raises(ValueError, match=r"2 parts; valid: WHERE \| ENTRY \| TEXT"):
        list(claims("<!-- stored\nquick | 1.67\n-->"))
