"""`vagrant/*.lock` is the whole environment, with hashes, and agrees with `pyproject.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = "bounded-loss-testbed"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_ENTRY = re.compile(r"^(\S+==.*?) \\\n((?: +--hash=\S+.*\n)+) +# via (.*)\n", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    requirement: Requirement
    hashes: list[str]
    needed_by: set[str]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        return str(self.requirement.specifier).removeprefix("==")


def entries(name: str) -> list[Entry]:
    text = (ROOT / "vagrant" / name).read_text()
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    assert _ENTRY.sub("", body + "\n").strip() == "", "something that is no entry with hashes"
    return [
        Entry(
            Requirement(pin),
            re.findall(r"--hash=(\S+)", hashes),
            {part.partition(" ")[0] for part in needed_by.split(", ")},
        )
        for pin, hashes, needed_by in _ENTRY.findall(body + "\n")
    ]


LOCK, BUILD_TOOLS = entries("requirements.lock"), entries("build-tools.lock")


@pytest.mark.parametrize("locked", [LOCK, BUILD_TOOLS], ids=["requirements", "build-tools"])
def test_each_entry_has_hashes_and_is_needed_by_the_project(locked):
    assert all(each.hashes for each in locked)
    assert {hashed.partition(":")[0] for each in locked for hashed in each.hashes} == {"sha256"}
    reached = {PROJECT}
    while more := {each.name for each in locked if each.needed_by & reached} - reached:
        reached |= more
    assert {each.name for each in locked} <= reached


def pins(requirements: Iterable[str]) -> Iterator[Requirement]:
    for each in map(Requirement, requirements):
        if str(each.specifier).startswith("=="):
            yield each


def test_what_pyproject_pins_is_locked_at_that_version():
    extras, groups = PYPROJECT["project"]["optional-dependencies"], PYPROJECT["dependency-groups"]
    listed = [*extras["lab"], *extras["dev"], *extras["cluster"], *groups["ryu"]]
    for locked, pinned in ((LOCK, listed), (BUILD_TOOLS, groups["build-tools"])):
        versions = {each.name: each.version for each in locked}
        found = list(pins(pinned))
        assert len(found) == len(pinned)
        assert {
            canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in found
        }.items() <= versions.items()


def test_the_lock_has_all_that_its_packages_need():
    """pip installs it without a look at what packages need, so here is that look."""
    here = {
        each.name: each
        for each in LOCK
        if each.requirement.marker is None or each.requirement.marker.evaluate()
    }
    asked = 0
    for name in here:
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # torch or Ryu may be left out; CUDA's packages come with one build of torch
        for each in map(Requirement, needed):
            if each.marker is None or each.marker.evaluate({"extra": ""}):
                locked = here.get(canonicalize_name(each.name))
                assert locked is not None, f"{name} needs {each}"
                assert each.specifier.contains(locked.version, prereleases=True), (name, each)
                asked += 1
    assert asked > 100


def test_the_lock_names_no_address():
    for path in (ROOT / "vagrant").glob("*.lock"):
        assert "://" not in path.read_text()
