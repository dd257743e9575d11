"""Names and docstrings use the field's words, and the glossary holds all that are our own."""

import ast
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Such a name says nothing of what it holds; a few short loops may keep one.
EMPTY_NAMES = {"each", "found", "given", "known", "said", "told", "wanted"}
MOST_EMPTY_NAMES = 120
NO_SUBJECT = ("What", "Whether", "How", "Which", "Where", "When", "Who", "Whose", "Why")
MOST_GLOSSARY_WORDS = 60


def _sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, text=True, capture_output=True, check=True
    )
    return [path for name in listed.stdout.split() if (path := ROOT / name).exists()]


def test_names_say_what_they_hold():
    uses: Counter[str] = Counter()
    for path in _sources():
        with path.open(encoding="utf-8") as lines:
            uses.update(
                token.string
                for token in tokenize.generate_tokens(lines.readline)
                if token.type == tokenize.NAME and token.string in EMPTY_NAMES
            )
    assert uses.total() <= MOST_EMPTY_NAMES, uses


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), docstring


def test_a_docstring_is_a_sentence_with_a_subject():
    fragments = [
        f"{path.relative_to(ROOT)}:{line}: {docstring.splitlines()[0]}"
        for path in _sources()
        for line, docstring in _docstrings(path)
        if docstring.split()[0] in NO_SUBJECT
    ]
    assert not fragments, "\n".join(fragments)


def test_the_glossary_is_short():
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line for line in glossary.splitlines() if line.startswith("| ")]
    words = [row for row in rows if not row.startswith(("| word ", "| --- "))]
    assert 0 < len(words) <= MOST_GLOSSARY_WORDS
