"""Rooms explain themselves: packages say what they hold, and nothing lies loose between them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(
    path
    for top in ("testbed", "controllers", "topologies", "analysis")
    for path in (ROOT / top).rglob("__init__.py")
)


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_a_package_says_what_it_holds_what_it_may_import_and_how_to_add_to_it(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert len(docstring.splitlines()) >= 3
    assert re.search(r"\bimports?\b", docstring, re.IGNORECASE)
    assert re.search(r"\badd\b", docstring, re.IGNORECASE)


def test_no_module_lies_loose_in_the_testbed():
    loose = {path.name for path in (ROOT / "testbed").iterdir() if path.is_file()}
    assert loose == {"__init__.py", "__main__.py", "py.typed"}
    packages = {path.parent for path in PACKAGES}
    for folder in (ROOT / "testbed").iterdir():
        # A folder that a removed package has left behind holds bytecode alone.
        sources = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        assert not sources or folder in packages


def test_the_map_of_the_testbed_names_every_room():
    page = (ROOT / "docs/concepts/architecture.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "testbed").glob("*/__init__.py")}
    assert {room for room in rooms if f"| `testbed/{room}/` |" not in page} == set()
