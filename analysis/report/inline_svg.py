"""Turns matplotlib's SVG into a fragment for a page: no prolog, own ids, colours that follow it."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from analysis.figures.style import COLOURS

_IDENTIFIER = re.compile(r'\bid="([^"]+)"')
_REFERENCE = re.compile(r'(url\(#|href="#)([^)"]+)')
_SIZE = re.compile(r'<svg ([^>]*?)width="[^"]*"([^>]*?)>', re.DOTALL)
_HEIGHT = re.compile(r'(<svg [^>]*?)height="[^"]*"', re.DOTALL)


def inline_svg(svg: str, *, name: str, description: str) -> Markup:
    """An `<svg>` element that fills its box's width; `name` keeps its ids apart from others'."""
    body = svg[svg.index("<svg ") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = _IDENTIFIER.sub(lambda found: f'id="{name}-{found[1]}"', body)
    body = _REFERENCE.sub(lambda found: f"{found[1]}{name}-{found[2]}", body)
    for colour in COLOURS:
        body = body.replace(colour.light, f"var(--{colour.name}, {colour.light})")
    body = _SIZE.sub(r"<svg \1\2>", body, count=1)
    body = _HEIGHT.sub(r"\1", body, count=1)
    label = f'<svg role="img" aria-label="{escape(description)}" '
    return Markup(label + body.removeprefix("<svg "))  # noqa: S704 (matplotlib escapes its texts)


def colour_variables(*, dark: bool) -> Markup:
    """The CSS declarations of the colours for a light or a dark page."""
    return Markup(" ").join(
        Markup("--{}: {};").format(each.name, each.dark if dark else each.light) for each in COLOURS
    )
