"""Finds results by what a user calls them: an experiment's name, its YAML file, or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.shared import yaml_input
from testbed.shared.run_directory import PLAN, key_of
from testbed.shared.yaml_input import InputError


@dataclass(frozen=True, kw_only=True)
class Place:
    """A part of a folder of results.

    Attributes:
        results: the folder that holds all experiments' results.
        experiment: one of them; None stands for all.
        key: one of its runs; None stands for all.
    """

    results: Path
    experiment: str | None = None
    key: str | None = None

    @property
    def folder(self) -> Path:
        """The folder of the run, of the experiment, or of all of them."""
        return self.results.joinpath(*filter(None, (self.experiment, self.key)))

    def require(self) -> None:
        """Raise InputError where nothing was planned under the experiment's name."""
        if self.experiment is not None and not self.folder.is_dir():
            valid = ", ".join([*self.known(), "another folder with --out DIR"])
            raise InputError(f"{self.results}: no results of {self.experiment!r}; valid: {valid}")

    def known(self) -> list[str]:
        """The experiments of the folder that have results."""
        return sorted(path.parent.name for path in self.results.glob(f"*/{PLAN}"))


def find(what: str | None, results: Path) -> Place:
    """Where the results lie that a user names.

    Args:
        what: an experiment's name, its YAML file, the folder of a run, of an experiment or of
            results; None stands for everything in `results`.
        results: the folder of results, where `what` is not itself a folder.

    Raises:
        InputError: there is no such folder or file.
    """
    if what is None:
        return Place(results=results)
    path = Path(what)
    if path.suffix in (".yaml", ".yml") and not path.is_dir():
        name = yaml_input.read(path).get("name")
        if not isinstance(name, str):
            raise InputError(f"{path}: name: this key is missing, or no text")
        return Place(results=results, experiment=name)
    if "/" not in what and (results / what).is_dir():
        return Place(results=results, experiment=what)
    if not path.is_dir():
        if "/" in what:
            raise InputError(f"{path}: no such folder")
        return Place(results=results, experiment=what)
    if path.name in ("", ".", ".."):
        path = path.resolve()
    if (path / "config.json").is_file():
        above = path.parent if path.parent.name else path.parent.resolve()
        key = key_of(path.name)
        return Place(results=above.parent, experiment=above.name, key=key)
    unplanned = any(path.glob("*/config.json"))  # such as repetitions
    holds_experiments = any(path.glob(f"*/{PLAN}"))
    if (path / PLAN).is_file() or (unplanned and not holds_experiments):
        return Place(results=path.parent, experiment=path.name)
    return Place(results=path)


def capture(what: str, results: Path) -> Path:
    """The capture that a user names by its file, or by whose it is.

    Raises:
        InputError: there is none, or several to choose from; the message lists them.
    """
    path = Path(what)
    is_file = path.is_file() and path.suffix not in (".yaml", ".yml")
    if is_file or path.suffix in (".pcap", ".cap"):
        return path
    place = find(what, results)
    pattern = "pcap/*.pcap" if place.key else "*/pcap/*.pcap" if place.experiment else "*/*/pcap/*"
    found = sorted(place.folder.glob(pattern))
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(f"{place.folder}: holds no capture; ./lab run ... --pcap records one")
    shown = ", ".join(map(str, found[:4])) + (", ..." if found[4:] else "")
    raise InputError(f"{place.folder}: holds {len(found)} captures; valid: one of {shown}")
