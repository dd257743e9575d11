"""A table and its renderings as Markdown, CSV, LaTeX and plain text; `report/html.py` has HTML's.

A cell holds what people read; `records` holds the same numbers unrounded, for the CSV file.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A text, what stands behind it in brackets, and why there is none (a footnote)."""

    text: str
    detail: str = ""
    note: str = ""
    href: str = ""
    tone: str = ""  # `good`, `bad` or `quiet`: colours a word, never the only carrier of meaning


def row(*cells: str | Cell) -> list[Cell]:
    """A table's row; a text stands for a cell that holds nothing else."""
    return [Cell(text=each) if isinstance(each, str) else each for each in cells]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells under column headings; the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    numeric: bool = True  # the columns after the first hold numbers: right-aligned

    def marks(self) -> dict[str, int]:
        """The cells' notes in order of appearance, each with its mark, from 1."""
        notes = dict.fromkeys(cell.note for row in self.rows for cell in row if cell.note)
        return {note: number for number, note in enumerate(notes, start=1)}


def marked(table: Table, mark: str) -> Table:
    """The table with a mark in all its forms: in the title, in a note, in each record."""
    records = table.records or [_as_record(table, row) for row in table.rows]
    return replace(
        table,
        title=f"{mark}: {table.title}",
        notes=[mark, *table.notes],
        records=[{**each, "mark": mark} for each in records],
    )


def _as_record(table: Table, cells: list[Cell]) -> dict[str, str]:
    return dict(zip(table.columns, map(_full, cells), strict=True))


def narrowed(table: Table, most: int) -> list[Table]:
    """A table in parts of about `most` characters, each with the first column and some others."""
    widths = [
        max([-(-len(heading) // 2), *(len(_full(row[at])) for row in table.rows)])
        for at, heading in enumerate(table.columns)
    ]
    parts: list[list[int]] = []
    width = 0
    for at, each in enumerate(widths[1:], start=1):
        if not parts or width + each > most:
            parts.append([0])
            width = widths[0]
        parts[-1].append(at)
        width += each
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
    """A Markdown table with its notes below."""
    marks = table.marks()
    align = "---:" if table.numeric else "---"
    lines = [
        f"**{_markdown(table.title)}**",
        "",
        "| " + " | ".join(_markdown(column) for column in table.columns) + " |",
        "| " + " | ".join(["---", *[align] * (len(table.columns) - 1)]) + " |",
    ]
    for row in table.rows:
        cells = [_markdown(_full(cell)) + _mark(cell, marks, " [{}]") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    notes = [f"[{mark}] {_markdown(note)}" for note, mark in marks.items()]
    notes += [_markdown(note) for note in table.notes]
    return "\n".join([*lines, "", *[f"- {note}" for note in notes], ""])


def to_csv(table: Table) -> str:
    """The unrounded numbers, one record per line; without records, the cells' texts."""
    records = table.records or [_as_record(table, row) for row in table.rows]
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, names or table.columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def to_latex(table: Table) -> str:
    """A `tabular` with its title as comment and its notes below; needs no package."""
    marks = table.marks()
    align = ("r" if table.numeric else "l") * (len(table.columns) - 1)
    lines = [
        f"% {table.title}".translate({ord("\n"): " "}),
        f"\\begin{{tabular}}{{l{align}}}",
        "\\hline",
        " & ".join(_latex(column) for column in table.columns) + " \\\\",
        "\\hline",
    ]
    for row in table.rows:
        cells = [
            _latex(_full(cell)) + _mark(cell, marks, "\\textsuperscript{{{}}}") for cell in row
        ]
        lines.append(" & ".join(cells) + " \\\\")
    lines += ["\\hline", "\\end{tabular}"]
    notes = [f"\\textsuperscript{{{mark}}} {_latex(note)}" for note, mark in marks.items()]
    notes += [_latex(note) for note in table.notes]
    return "\n".join([*lines, *[f"\\par\\noindent {note}" for note in notes], ""])


def to_text(table: Table, *, width: int | None = None) -> str:
    """Plain text with aligned columns; details in brackets go first when `width` is too small."""
    marks = table.marks()
    lines = _text_lines(table, marks, details=True)
    if width is not None and max(map(len, lines)) > width:
        lines = _text_lines(table, marks, details=False)
    notes = [f"[{mark}] {note}" for note, mark in marks.items()] + table.notes
    return "\n".join([table.title, *lines, *notes]) + "\n"


def _text_lines(table: Table, marks: dict[str, int], *, details: bool) -> list[str]:
    body = [
        [(_full(cell) if details else cell.text) + _mark(cell, marks, " [{}]") for cell in row]
        for row in table.rows
    ]
    widths = [max(map(len, column)) for column in zip(table.columns, *body, strict=True)]
    rule = ["-" * width for width in widths]
    return [
        "  ".join(
            text.rjust(width) if table.numeric and index else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [table.columns, rule, *body]
    ]


def _mark(cell: Cell, marks: dict[str, int], form: str) -> str:
    return form.format(marks[cell.note]) if cell.note else ""


def _full(cell: Cell) -> str:
    return f"{cell.text} ({cell.detail})" if cell.detail else cell.text


_MARKDOWN = str.maketrans(
    {"|": "\\|", "<": "&lt;", ">": "&gt;", "\n": " ", "*": "\\*", "_": "\\_", "`": "\\`"}
    | {"[": "\\[", "]": "\\]"}
)


def _markdown(text: str) -> str:
    return text.translate(_MARKDOWN)


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
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


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
