"""`python -m testbed.documentation.written`: writes anew what is generated and stands in a page.

So it is there for who reads the page on disk or on a forge. All below the line
`<!-- written: NAME -->` is generated; a test says when it is not current.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from testbed.documentation import run_directory_format

_DOCS = Path(__file__).resolve().parents[2] / "docs"
PARTS: dict[str, tuple[Path, Callable[[], str]]] = {
    "frames": (_DOCS / "reference" / "frames.md", run_directory_format.frames),
}


def page(name: str) -> str:
    """The whole page with its generated part as it should be."""
    path, generate = PARTS[name]
    mark = f"<!-- written: {name} -->\n"
    before, found, _ = path.read_text(encoding="utf-8").partition(mark)
    if not found:
        raise ValueError(f"{path}: has no line {mark.strip()}")
    return f"{before}{mark}\n{generate()}"


def main() -> None:
    """Write all of them."""
    for name, (path, _) in PARTS.items():
        path.write_text(page(name), encoding="utf-8")
        print(path.relative_to(_DOCS.parent))


if __name__ == "__main__":
    main()
