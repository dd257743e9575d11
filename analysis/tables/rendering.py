"""A table and its renderings as Markdown, CSV, LaTeX and plain text; `html.py` has HTML's."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from analysis import formatting
from analysis.formatting import DASH, Unit
from analysis.statistics import Estimate


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A text, what stands behind it in brackets, and why there is none (a footnote)."""

    text: str
    detail: str = ""
    note: str = ""
    href: str = ""
    tone: str = ""  # `good`, `bad` or `quiet`: colours a word, never the only carrier of meaning


Item = TypeVar("Item")
Shown = str | Cell | None  # what a cell holds; without a text a dash


def row(*cells: Shown) -> list[Cell]:
    return [cell if isinstance(cell, Cell) else Cell(text=cell or DASH) for cell in cells]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells that people read; `records` are the same numbers unrounded, for CSV."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    numeric: bool = True  # the columns after the first hold numbers: right-aligned

    def marks(self) -> dict[str, int]:
        notes = dict.fromkeys(cell.note for row in self.rows for cell in row if cell.note)
        return {note: number for number, note in enumerate(notes, start=1)}


def table_of(
    title: str,
    columns: Mapping[str, Callable[[Item], Shown]],
    items: Iterable[Item],
    **further: Any,
) -> Table:
    """A table with a row per item; a column is a heading and what it shows of an item."""
    rows = [row(*(show(item) for show in columns.values())) for item in items]
    return Table(title=title, columns=list(columns), rows=rows, **further)


def transposed(table: Table) -> Table:
    lines = zip(*table.rows, strict=True)
    heads, *body = (
        [Cell(text=head), *cells] for head, cells in zip(table.columns, lines, strict=True)
    )
    return replace(table, columns=[cell.text for cell in heads], rows=body, records=[])


def narrowed(table: Table, most: int) -> list[Table]:
    """A table in parts of about `most` characters, each with the first column and some others."""
    widths = [
        max([-(-len(heading) // 2), *(len(_full(row[at])) for row in table.rows)])
        for at, heading in enumerate(table.columns)
    ]
    parts: list[list[int]] = []
    total = 0
    for at, width in enumerate(widths[1:], start=1):
        if not parts or total + width > most:
            parts.append([0])
            total = widths[0]
        parts[-1].append(at)
        total += width
    return [
        replace(
            table,
            columns=[table.columns[at] for at in part],
            rows=[[row[at] for at in part] for row in table.rows],
            records=[],
        )
        for part in parts or [[0]]
    ]


def to_markdown(table: Table) -> str:
    heads, *lines, notes = _texts(table, _markdown, " [{}]")
    align = "---:" if table.numeric else "---"
    rule = ["---", *[align] * (len(table.columns) - 1)]
    shown = [f"| {' | '.join(line)} |" for line in (heads, rule, *lines)]
    title = f"**{_markdown(table.title)}**"
    return "\n".join([title, "", *shown, "", *(f"- {note}" for note in notes), ""])


def to_csv(table: Table) -> str:
    """The unrounded numbers, one record per line; without records, the cells' texts."""
    records = table.records or [
        dict(zip(table.columns, map(_full, cells), strict=True)) for cells in table.rows
    ]
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, names or table.columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def to_latex(table: Table) -> str:
    """A `tabular` with its title as comment and its notes below; needs no package."""
    *lines, notes = _texts(table, lambda text: text.translate(_LATEX), "\\textsuperscript{{{}}}")
    heads, *body = [" & ".join(line) + " \\\\" for line in lines]
    align = ("r" if table.numeric else "l") * (len(table.columns) - 1)
    return "\n".join(
        [
            f"% {table.title}".translate({ord("\n"): " "}),
            f"\\begin{{tabular}}{{l{align}}}",
            *("\\hline", heads, "\\hline", *body, "\\hline", "\\end{tabular}"),
            *(f"\\par\\noindent {note}" for note in notes),
            "",
        ]
    )


def to_text(table: Table, *, width: int | None = None) -> str:
    """Plain text with aligned columns; details in brackets go first when `width` is too small."""
    lines, notes = _aligned(table, details=True)
    if width is not None and max(map(len, lines)) > width:
        lines, notes = _aligned(table, details=False)
    return "\n".join([table.title, *lines, *notes]) + "\n"


def _aligned(table: Table, *, details: bool) -> tuple[list[str], list[str]]:
    *lines, notes = _texts(table, str, " [{}]", details=details)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    aligned = [
        "  ".join(
            text.rjust(width) if table.numeric and place else text.ljust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return aligned, notes


def _texts(
    table: Table, escaped: Callable[[str], str], mark: str, *, details: bool = True
) -> list[list[str]]:
    """The headings, each row's cells, and last the notes; `mark` is the form of a footnote's."""
    marks = table.marks()

    def text(cell: Cell) -> str:
        note = mark.format(marks[cell.note]) if cell.note else ""
        return escaped(_full(cell) if details else cell.text) + note

    notes = [f"{mark.format(number).strip()} {escaped(note)}" for note, number in marks.items()]
    notes += map(escaped, table.notes)
    return [
        list(map(escaped, table.columns)),
        *([text(c) for c in line] for line in table.rows),
        notes,
    ]


def _full(cell: Cell) -> str:
    return f"{cell.text} ({cell.detail})" if cell.detail else cell.text


_MARKDOWN = str.maketrans(
    {"|": "\\|", "<": "&lt;", ">": "&gt;", "\n": " ", "*": "\\*", "_": "\\_", "`": "\\`"}
    | {"[": "\\[", "]": "\\]"}
)


def _markdown(text: str) -> str:
    return text.translate(_MARKDOWN)


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "<": "\\textless{}",
        ">": "\\textgreater{}",
        "|": "\\textbar{}",
        "\n": " ",
        "\u2013": "--",
        "\u2014": "---",
        "\u202f": "\\,",
        "\u00a0": "~",
    }
)


def measured(
    estimate: Estimate,
    unit: Unit = formatting.RATIO,
    *,
    with_n: bool = True,
    p: float | None = None,
) -> Cell:
    """A number with its interval or the seeds' values; on request the number of seeds and p."""
    details = (
        formatting.spread(estimate, unit),
        f"n = {estimate.n}" if with_n else "",
        "" if p is None else f"p {formatting.p_value(p)}",
    )
    return Cell(text=formatting.number(estimate.value, unit), detail=formatting.joined(*details))


def missing(*, note: str = "", detail: str = "") -> Cell:
    return Cell(text=DASH, note=note, detail=detail, tone="quiet")
