"""Finds results by what a user calls them: an experiment's name, its YAML file, or a folder."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from testbed import experiment
from testbed.cli.options import Selection
from testbed.run import planning
from testbed.shared import yaml_input
from testbed.shared.run_directory import key_of
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
        return sorted(path.parent.name for path in self.results.glob(f"*/{planning.FILE}"))


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
    holds_experiments = any(path.glob(f"*/{planning.FILE}"))
    if (path / planning.FILE).is_file() or (unplanned and not holds_experiments):
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


@dataclass(kw_only=True)
class Chosen:
    """The runs that a verb is to execute or to show, and what selected them."""

    results: Path
    selections: list[Selection]

    @cached_property
    def runs(self) -> list[experiment.Run]:
        """The runs in the order of their execution, each once.

        Raises:
            InputError: one line that says what is wrong with the experiment.
        """
        runs = {
            run.key: run for each in self.selections for run in each.loaded(results=self.results)
        }
        return experiment.ordered(list(runs.values()))


def chosen(selection: Selection, results: Path, *, planned: bool = False) -> Chosen:
    """The runs of a selection, whose name may also be a folder.

    The folder of an experiment's results stands for what was planned in it, and with further
    options for its experiment with these options.

    Args:
        selection: what the user chose.
        results: the folder of results, where the selection's name is not itself a folder.
        planned: without options, what was planned under this name counts, if anything was.

    Raises:
        InputError: no such experiment, or no plan in the folder.
    """
    is_folder = selection.name not in experiment.names() and Path(selection.name).is_dir()
    if not is_folder and (selection.is_narrowed or not planned):
        return Chosen(results=results, selections=[selection])
    if not is_folder:
        experiment.find(selection.name)
    place = find(selection.name, results)
    stored = planning.selections(place.folder) if place.experiment else []
    if is_folder and not stored:
        raise InputError(
            f"{selection.name}: no experiment was planned in this folder; valid: a folder such as "
            f"{results}/quick, an experiment's name, FILE.yaml"
        )
    if not stored:
        return Chosen(results=results, selections=[selection])
    names = {each.name for each in fields(Selection)}
    found = [Selection(**{key: each[key] for key in names & each.keys()}) for each in stored]
    if selection.is_narrowed:
        found = [replace(selection, name=found[-1].name)]
    return Chosen(results=place.results, selections=found)
