"""`vagrant/*.lock` is the whole environment, with hashes, and agrees with `pyproject.toml`."""

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
    assert all(entry.hashes for entry in locked)
    assert {hashed.partition(":")[0] for entry in locked for hashed in entry.hashes} == {"sha256"}
    reached = {PROJECT}
    while more := {entry.name for entry in locked if entry.needed_by & reached} - reached:
        reached |= more
    assert {entry.name for entry in locked} <= reached


def pins(requirements: Iterable[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, requirements):
        if str(requirement.specifier).startswith("=="):
            yield requirement


def test_what_pyproject_pins_is_locked_at_that_version():
    extras, groups = PYPROJECT["project"]["optional-dependencies"], PYPROJECT["dependency-groups"]
    listed = [*extras["lab"], *extras["dev"], *extras["cluster"], *groups["ryu"]]
    for locked, pinned in ((LOCK, listed), (BUILD_TOOLS, groups["build-tools"])):
        versions = {entry.name: entry.version for entry in locked}
        requirements = list(pins(pinned))
        assert len(requirements) == len(pinned)
        assert {
            canonicalize_name(requirement.name): str(requirement.specifier).removeprefix("==")
            for requirement in requirements
        }.items() <= versions.items()


def test_the_lock_has_all_that_its_packages_need():
    """pip installs it without a look at what packages need, so here is that look."""
    here = {
        entry.name: entry
        for entry in LOCK
        if entry.requirement.marker is None or entry.requirement.marker.evaluate()
    }
    asked = 0
    for name in here:
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # torch or Ryu may be left out; CUDA's packages come with one build of torch
        for requirement in map(Requirement, needed):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                locked = here.get(canonicalize_name(requirement.name))
                assert locked is not None, f"{name} needs {requirement}"
                assert requirement.specifier.contains(locked.version, prereleases=True), (
                    name,
                    requirement,
                )
                asked += 1
    assert asked > 100


def test_the_lock_names_no_address():
    for path in (ROOT / "vagrant").glob("*.lock"):
        assert "://" not in path.read_text()
