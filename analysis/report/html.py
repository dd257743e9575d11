"""Renders the report's pages (templates, inline SVG, light and dark) and replaces its folder."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from analysis.data.load import REPORT as FOLDER
from analysis.figures.style import COLOURS
from analysis.tables.rendering import Table

SUMMARY = "summary.json"


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `folder` once it is whole."""
    new = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=folder.parent))
    try:
        new.chmod(0o755)
        yield new
        _swap(new, folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _swap(new: Path, final: Path) -> None:
    """Put `new` at `final`; at each instant `final` is a whole report, or for a moment none."""
    if not final.exists():
        new.rename(final)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-old-", dir=final.parent))
    final.replace(old)  # an empty folder may be replaced
    try:
        new.replace(final)
    except OSError:
        old.replace(final)
        raise
    shutil.rmtree(old, ignore_errors=True)


_TEMPLATES = Path(__file__).with_name("templates")
# More rows than anybody reads make the page too large: the files beside it have all.
_MOST_ROWS = 500
_FORMATS = {"csv": "CSV", "md": "Markdown", "tex": "LaTeX"}
# Tables in which each row is another quantity or setting: sorted, they would say nothing.
_UNLIKE_ROWS = {"main", "ratios", "published", "arms", "phases"}
_IDENTIFIER = re.compile(r'\bid="([^"]+)"')
_REFERENCE = re.compile(r'(url\(#|href="#)([^)"]+)')


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = unbroken
    environment.filters["breakable"] = breakable
    environment.globals["script"] = script
    environment.globals["policy"] = policy
    environment.globals["light"] = _colour_variables(dark=False)
    environment.globals["dark"] = _colour_variables(dark=True)
    return environment


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def to_html(table: Table, name: str | None = None, *, sortable: bool | None = None) -> Markup:
    if name is not None and len(table.rows) > _MOST_ROWS:
        left_out = f"{len(table.rows) - _MOST_ROWS:,} more rows are in {name}.csv."
        table = replace(table, rows=table.rows[:_MOST_ROWS], notes=[left_out, *table.notes])
    files = {} if name is None else {f"{name}.{end}": kind for end, kind in _FORMATS.items()}
    if sortable is None:
        sortable = name is not None and name not in _UNLIKE_ROWS
    text = render("table.html.j2", table=table, files=files, sortable=sortable)
    return Markup(text)  # noqa: S704 (the template escapes)


def embedded(data: object) -> Markup:
    """JSON for an element of a page; nothing in a name can end the element that holds it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 (the line above escapes)


def script(name: str) -> Markup:
    return Markup(f"<script>{_program(name)}</script>")  # noqa: S704 (our own file)


def policy(*names: str) -> Markup:
    """The element that lets a page run these programs of `templates/`, and load nothing."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(_program(name).encode()).digest()).decode()}'"
        for name in names
    )
    rules = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
    rules += "; base-uri 'none'; form-action 'none'"
    return Markup(f'<meta http-equiv="Content-Security-Policy" content="{rules}">')  # noqa: S704


@cache
def _program(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def unbroken(text: str) -> str:
    """Keep `24.4 %` and `n = 2` on one line."""
    return re.sub(r"(?<=\d) (?=[%x]|m?s\b)", "\u00a0", text).replace("n = ", "n\u00a0=\u00a0")


def breakable(label: str) -> Markup:
    """Let a long label such as `tcp-cubic@congestion_control=bbr` break between its parts."""
    return Markup("<wbr>").join(re.split(r"(?=@)|(?<==)", label))


def inline_svg(svg: str, *, name: str, description: str) -> Markup:
    """matplotlib's SVG as an element that fills its box's width; `name` keeps its ids unique."""
    body = svg[svg.index("<svg ") + len("<svg ") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = _IDENTIFIER.sub(lambda match: f'id="{name}-{match[1]}"', body)
    body = _REFERENCE.sub(lambda match: f"{match[1]}{name}-{match[2]}", body)
    for colour in COLOURS:
        body = body.replace(colour.light, f"var(--{colour.name}, {colour.light})")
    head, rest = body.split(">", 1)
    head = re.sub(r'\b(?:width|height)="[^"]*"', "", head)
    label = f'role="img" aria-label="{escape(description)}"'
    return Markup(f"<svg {label} {head}>{rest}")  # noqa: S704 (matplotlib escapes its texts)


def _colour_variables(*, dark: bool) -> Markup:
    return Markup(" ").join(
        Markup("--{}: {};").format(colour.name, colour.dark if dark else colour.light)
        for colour in COLOURS
    )
