"""Plain English in all pages but the reference: short sentences, no words that only we know."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "vagrant/*.md")
    for path in sorted(ROOT.glob(pattern))
    if "reference" not in path.parts
]
MOST_WORDS, MOST_WORDS_ON_AVERAGE = 40, 20
# What we once wrote, and what a reader knows.
DIALECT = {
    r"told (apart|from)": "no difference is shown",
    r"\bowe[ds]?\b": "residual, added to the next step",
}
_NOT_PROSE = (
    r"<!-- ([a-z0-9 -]+): begin -->.*?<!-- \1: end -->",  # generated
    r"```.*?```",
    r"<!--.*?-->",
    r"^ *\|[^\n]*$",  # tables
    r"^#[^\n]*$",
    r"\n\n {4,}[^\n]*",  # code without a fence
)
_END = re.compile(r"(?<=[.?!:])[)*\"]*\s+(?=[A-Z`*\[(]|code)|\n\s*\n|\n\s*(?:[-*>]|\d+\.) ")


def sentences(text: str) -> list[str]:
    """Split a page's running text; a colon ends a sentence, and so does an item of a list."""
    for pattern in _NOT_PROSE:
        text = re.sub(pattern, "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)  # a link's words alone
    text = re.sub(r"`[^`]*`", "code", text)  # one word, whatever it holds
    parts = (part.strip("-*> \n") for part in _END.split(text) if part)
    return [" ".join(part.split()) for part in parts if part]


def words(sentence: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in sentence.split())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_has_a_word_of_our_own(path):
    text = path.read_text("utf-8")
    dialect = {
        match[0]: better for bad, better in DIALECT.items() for match in re.finditer(bad, text)
    }
    assert not dialect


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sentences_are_short(path):
    counts = {sentence: words(sentence) for sentence in sentences(path.read_text("utf-8"))}
    long = {sentence: count for sentence, count in counts.items() if count > MOST_WORDS}
    assert not long
    assert sum(counts.values()) <= MOST_WORDS_ON_AVERAGE * max(1, len(counts))
