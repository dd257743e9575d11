"""Reads what the documentation shows: commands, Python, YAML, and the comments before them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("topologies", "controllers", "testbed/training")),
    ROOT / "vagrant" / "README.md",
]
# In this order, in one folder: what one shows builds on what the one before has left there.
RUN_PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "tutorial" / "first-run.md",
    ROOT / "docs" / "tutorial" / "own-experiment.md",
]
_BLOCK = re.compile(
    r"(?P<marks>(?:<!--[^>]*-->\s*)*)^(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_MARK = re.compile(r"<!-- (not run|file): (.*?) -->")
_INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )?\./lab [^`]+)`")
_SHELL = {"console", "sh", "bash"}
_SEPARATORS = {"|", "||", "&&", ";", "&"}


@dataclass(frozen=True, kw_only=True)
class Block:
    page: Path
    line: int  # at which it begins
    kind: str  # the word after the fence
    text: str  # without the page's indentation
    not_run: str  # the reason why it is not executed; empty otherwise
    file: str  # the name under which the reader is to save it; empty otherwise

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The command lines of a block of the shell; in a console they begin with a `$`."""
        if self.kind not in _SHELL:
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.kind == "console":
            return [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        marks, indent = dict(_MARK.findall(match["marks"])), match["indent"]
        yield Block(
            page=page,
            line=text[: match.start("kind")].count("\n") + 1,
            kind=match["kind"],
            text=re.sub(rf"^{indent}", "", match["text"], flags=re.MULTILINE),
            not_run=marks.get("not run", ""),
            file=marks.get("file", ""),
        )


def inline_commands(page: Path) -> Iterator[str]:
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    yield from (command.replace("\\|", "|") for command in _INLINE.findall(text))


def lab_calls(command: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in _SEPARATORS:
            yield from _call(words)
            words = []
        else:
            words.append(word)


def _call(words: list[str]) -> Iterator[list[str]]:
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words and words[0] == "./lab":
        for position, word in enumerate(words):
            if word in (">", ">>", "<"):
                words = words[:position]
                break
        yield words[1:]
