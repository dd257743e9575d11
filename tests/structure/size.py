"""It counts how large each room is: `python -m tests.structure.size` prints the budgets' table.

Rooms are path patterns in `.ci/budgets.toml`; a file belongs to the first that fits. Four counts:
files, lines, code lines (no blanks, comments, docstrings) and statements (`ast.stmt`).
"""

import ast
import fnmatch
import functools
import re
import subprocess
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = ROOT / ".ci" / "budgets.toml"
_GENERATED = re.compile(r"<!-- reference (\w+): begin -->.*?<!-- reference \1: end -->", re.DOTALL)


@dataclass(frozen=True)
class Size:
    files: int = 0
    lines: int = 0
    code: int = 0
    statements: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def measure(source: str) -> Size:
    """Count a Python file."""
    tree = ast.parse(source)
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = enumerate(source.splitlines(), start=1)
    code = {number for number, line in lines if line.strip() and line.lstrip()[0] != "#"}
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    return Size(1, len(source.splitlines()), len(code - docstrings), statements)


@functools.cache
def budgets() -> dict[str, Any]:
    return tomllib.loads(BUDGETS.read_text())


def tracked() -> list[str]:
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    shown = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in shown.splitlines() if (ROOT / name).is_file()]


@functools.cache
def rooms() -> dict[str, Size]:
    """The size of each room of Python, and of `tests`."""
    sizes = {name: Size() for name in budgets()["room"]}
    for name in tracked():
        if name.endswith(".py"):
            sizes[_room(name)] += measure((ROOT / name).read_text(encoding="utf-8"))
    return sizes


def _room(name: str) -> str:
    for room, budget in budgets()["room"].items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in budget["paths"]):
            return room
    raise LookupError(f"{name} belongs to no room of {BUDGETS.name}")


def product(sizes: dict[str, Size]) -> Size:
    """All rooms but the tests."""
    return sum((size for room, size in sizes.items() if room != "tests"), Size())


def other_lines() -> int:
    """Lines of sources that are not Python; experiments and kept results are none."""
    rule = budgets()["other"]
    return sum(
        len((ROOT / name).read_text(encoding="utf-8").splitlines())
        for name in tracked()
        if any(fnmatch.fnmatch(name, pattern) for pattern in rule["paths"])
        if not any(fnmatch.fnmatch(name, pattern) for pattern in rule["except"])
    )


def words() -> int:
    """Words and numbers outside the generated reference, without the rules of Markdown's tables."""
    patterns = budgets()["words"]["paths"]
    return sum(
        any(map(str.isalnum, word))
        for name in tracked()
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        for word in _GENERATED.sub("", (ROOT / name).read_text(encoding="utf-8")).split()
    )


def excesses() -> list[str]:
    limits, sizes = budgets(), rooms()
    counts: dict[str, tuple[int, int]] = {}
    for room, limit in limits["room"].items():
        for count in ("files", "lines"):
            counts[f"{room}: {count}"] = getattr(sizes[room], count), limit[count]
    for count in ("lines", "code", "statements"):
        counts[f"product: {count}"] = getattr(product(sizes), count), limits["product"][count]
    counts["not Python: lines"] = other_lines(), limits["other"]["lines"]
    counts["documentation: words"] = words(), limits["words"]["words"]
    above = {name: pair for name, pair in counts.items() if pair[0] > pair[1]}
    return [f"{name} {count}, budget {limit}" for name, (count, limit) in above.items()]


def table() -> str:
    limits, sizes = budgets(), rooms()
    heads = ("files", "lines", "budget", "end", "code", "statements")
    rows: list[tuple[Any, ...]] = [("room", *heads)]
    for room, size in [*sizes.items(), ("product", product(sizes))]:
        limit = limits["room"].get(room, limits["product"])
        bounds = (limit["lines"], limit["end"])
        rows.append((room, size.files, size.lines, *bounds, size.code, size.statements))
    lines = ["{:34}{:>6}{:>8}{:>8}{:>8}{:>8}{:>12}".format(*row) for row in rows]
    lines.append(f"{'not Python':40}{other_lines():>8}{limits['other']['lines']:>8}")
    lines.append(f"{'words of documentation':40}{words():>8}{limits['words']['words']:>8}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
