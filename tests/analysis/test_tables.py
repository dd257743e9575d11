"""Rendering tables and numbers: rounding, footnotes, and escaping in each format."""

import csv
import io

import pytest

from analysis import formatting
from analysis.data.load import load
from analysis.report.html import to_html
from analysis.statistics import Estimate
from analysis.summary.document import summarise
from analysis.tables import rendering
from analysis.tables.by_arm import main_table
from analysis.tables.rendering import Cell, Table, narrowed, to_csv, to_latex, to_markdown, to_text
from analysis.tables.setup import arm_settings_table
from tests.analysis.build import ResultsBuilder, texts_of

TABLE = Table(
    title="a <title>",
    columns=["", "one|two"],
    rows=[
        [Cell(text="time (s)"), Cell(text="2.00", detail="1.00-3.00")],
        [Cell(text="<b>loss</b>"), Cell(text=formatting.DASH, note="it has none")],
    ],
    notes=["n = 2"],
    records=[{"arm": "a,b", "value": 2.0000001}, {"arm": "c", "value": None, "n": 1}],
)


def test_markdown():
    assert to_markdown(TABLE) == (
        "**a &lt;title&gt;**\n\n"
        "|  | one\\|two |\n"
        "| --- | ---: |\n"
        "| time (s) | 2.00 (1.00-3.00) |\n"
        "| &lt;b&gt;loss&lt;/b&gt; | \u2014 [1] |\n\n"
        "- [1] it has none\n"
        "- n = 2\n"
    )


def test_a_table_is_parted_by_what_its_cells_take():
    cells = [Cell(text="a point"), *(Cell(text="x" * width) for width in (30, 30, 10, 90))]
    table = Table(title="t", columns=["Point", "a", "b", "c" * 20, "d"], rows=[cells])
    parts = narrowed(table, 80)
    assert [part.columns for part in parts] == [
        ["Point", "a", "b", "c" * 20],
        ["Point", "d"],  # too wide alone
    ]
    assert [[cell.text[:1] for cell in part.rows[0]] for part in parts] == [
        list("axxx"),
        list("ax"),
    ]
    assert narrowed(Table(title="t", columns=["Point"], rows=[]), 80)[0].columns == ["Point"]


def test_csv_holds_the_unrounded_records():
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert rows == [
        {"arm": "a,b", "value": "2.0000001", "n": ""},
        {"arm": "c", "value": "", "n": "1"},
    ]


def test_html_escapes_every_text():
    html = str(to_html(TABLE))
    assert "<b>" not in html and "&lt;b&gt;loss&lt;/b&gt;" in html
    assert 'aria-label="a &lt;title&gt;"' in html
    assert "<sup>1</sup> it has none" in html


def test_plain_text_leaves_intervals_out_when_it_gets_too_wide():
    wide = to_text(TABLE)
    assert "2.00 (1.00-3.00)" in wide and "[1] it has none" in wide
    narrow = to_text(TABLE, width=25)
    assert "(1.00-3.00)" not in narrow and "2.00" in narrow


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.0123"),
        (96.66, "96.7"),
        (612.4, "612"),
        (1234567.0, "1\u202f234\u202f567"),
        (0.0, "0"),
        (-0.001234, "-0.00123"),
        (None, "\u2014"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert formatting.number(value) == text


def test_an_interval_has_the_decimals_of_its_value():
    unit = formatting.Unit("ms", 1e3)
    estimate = Estimate(value=0.6124, low=0.59811, high=0.64, n=2)
    assert rendering.measured(estimate, unit) == Cell(text="612", detail="598\u2013640, n = 2")
    assert formatting.spread(Estimate(value=0.1, low=-0.25, high=0.3, n=2)) == "-0.250 to 0.300"
    assert rendering.measured(Estimate(value=2.0, n=1)) == Cell(text="2.00", detail="n = 1")
    noise = Estimate(value=2e-8, low=-2e-8, high=0.0123, n=2)
    in_points = Cell(text="0.00", detail="0.00\u20131.23, n = 2")
    assert rendering.measured(noise, formatting.POINTS) == in_points


def test_latex_is_escaped():
    hostile = Table(
        title="100 %\n\\end{document}",
        columns=["a_b", "c & d"],
        rows=[
            [Cell(text="50 % #1"), Cell(text="2.00", detail="1\u20133, \\input{x}", note="$x^2$")]
        ],
        notes=["{~}"],
    )
    assert to_latex(hostile) == (
        "% 100 % \\end{document}\n"
        "\\begin{tabular}{lr}\n"
        "\\hline\n"
        "a\\_b & c \\& d \\\\\n"
        "\\hline\n"
        "50 \\% \\#1 & 2.00 (1--3, \\textbackslash{}input\\{x\\})\\textsuperscript{1} \\\\\n"
        "\\hline\n"
        "\\end{tabular}\n"
        "\\par\\noindent \\textsuperscript{1} \\$x\\textasciicircum{}2\\$\n"
        "\\par\\noindent \\{\\textasciitilde{}\\}\n"
    )


def test_the_congestion_control_that_was_read_back_stands_in_the_tables(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.run(arm="tcp-cubic", seed=1, congestion_control="cubic")
    build.run(arm="tcp-cubic@congestion_control=bbr", seed=1, congestion_control="bbr")
    build.run(arm="own", seed=1, congestion_control="/home/me/mine.py:Mine:step=1")
    build.run(arm="old", seed=1)
    results = load(tmp_path)
    summary = summarise(results)
    shown = texts_of(main_table(summary))
    used = ["cubic", "bbr", "mine.py:Mine:step=1", "\u2014"]
    assert shown["Congestion control, read back"] == used
    assert summary["arms"]["tcp-cubic"]["congestion_control"] == ["cubic"]
    assert [row[2].text for row in arm_settings_table(results).rows] == used
