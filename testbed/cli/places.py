"""Finds results by what a user calls them: an experiment's name, its YAML file, a folder, a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.shared import run_directory, yaml_input
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import PLAN, RESULTS, RunDirectory, key_of

_SHOWN = 6
# Of a folder of results: a plan, a run, a report that was not finished.
_SIGNS = (f"*/{PLAN}", "*/*/config.json", ".report-*", "*/.report-*")
_STATUS = "status.json"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A part of a folder of results: one experiment, or one of its runs; None stands for all."""

    results: Path
    experiment: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        """Raise InputError where a part of the place is a path, which could lead out of it."""
        for kind, name in (("an experiment", self.experiment), ("a run", self.key)):
            if name is not None:
                run_directory.require_name(name, f"the name of {kind}")

    @property
    def folder(self) -> Path:
        return self.results.joinpath(*filter(None, (self.experiment, self.key)))

    def require(self) -> None:
        if self.experiment is not None and not self.folder.is_dir():
            valid = ", ".join([*self.experiments(), "another folder with --out DIR"])
            raise InputError(f"{self.results}: no results of {self.experiment!r}; valid: {valid}")

    def require_results(self) -> None:
        if not any(any(self.results.glob(sign)) for sign in _SIGNS):
            raise InputError(
                f"{self.results}: holds no experiment's results; valid: an experiment's name, its "
                "YAML file, or a folder of results such as runs"
            )

    def glob(self, pattern: str) -> list[Path]:
        runs = "*/" * ((self.experiment is None) + (self.key is None))
        return sorted(self.folder.glob(runs + pattern))

    def experiments(self) -> list[str]:
        return sorted(path.parent.name for path in self.results.glob(f"*/{PLAN}"))


def find(what: str | None, results: Path) -> Place:
    """Find the results that a user names; None stands for everything in `results`."""
    if what is None:
        return Place(results=results)
    _refuse_empty(what)
    path = Path(what)
    if path.suffix in yaml_input.SUFFIXES and not path.is_dir():
        name = run_directory.require_name(yaml_input.read(path).get("name"), f"{path}: name")
        return Place(results=results, experiment=name)
    # With `--out` a name is that of an experiment in it, and no folder that is here.
    elsewhere = run_directory.is_name(what) and results not in (RESULTS, path)
    if _is_name(what, results) or elsewhere or ("/" not in what and not path.is_dir()):
        return Place(results=results, experiment=what)
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    if path.name in ("", ".", ".."):
        path = path.resolve()
    if is_run(path):
        above = path.parent if path.parent.name else path.parent.resolve()
        return Place(results=above.parent, experiment=above.name, key=key_of(path.name))
    unplanned = any(path.glob("*/config.json"))  # such as runs of a script
    if (path / PLAN).is_file() or (unplanned and not any(path.glob(f"*/{PLAN}"))):
        return Place(results=path.parent, experiment=path.name)
    return Place(results=path)


def result(what: str, results: Path) -> Path:
    """Find the folder of a result that a user names: of an experiment, a run, or what is kept."""
    _refuse_empty(what)
    path, is_name = Path(what), _is_name(what, results)
    if path.is_dir() and not is_name:
        return path
    is_key = not is_name and any(run.name.startswith(what) for run in results.glob("*/*/"))
    if is_key and path.suffix not in yaml_input.SUFFIXES:
        return run(what, results)
    place = find(what, results)
    place.require()
    return place.folder


def is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def run(what: str | None, results: Path) -> Path:
    """Find a run that has ended: by its path, the beginning of its key, or as the last of all."""
    # Of one experiment it is rather the last that is not ok.
    _refuse_empty(what)
    path, place = Path(what or ""), None
    if what and (path / _STATUS).exists():
        return path
    for folder in (path, path.with_name(f"{path.name}.partial")) if path.name else ():
        if run_directory.is_abandoned(folder):
            return folder
        if is_run(folder) and run_directory.in_use(folder):
            raise InputError(f"{folder}: this run is going on")
    is_yaml = path.suffix in yaml_input.SUFFIXES
    if what is None or is_yaml or path.is_dir() or _is_name(what, results):
        place = find(what, results)
        if ended := [status.parent for status in place.glob(_STATUS)]:
            last = [run for run in ended if not _is_attempt(run)]
            not_ok = [run for run in last if RunDirectory(run).verdict() != "ok"]
            candidates = not_ok if place.experiment is not None and not_ok else ended
            return max(candidates, key=lambda run: (run / _STATUS).stat().st_mtime)
    ended = [status.parent for status in Place(results=results).glob(_STATUS)]
    if not ended:
        raise InputError(f"{what or results}: no run; {results} holds none that has ended")
    if place is not None:
        raise InputError(f"{place.folder}: holds no run that has ended")
    folder_name, _, key = str(what).rstrip("/").rpartition("/")
    ended = [run for run in ended if run.parent.name == Path(folder_name).name] or ended
    alike = [run for run in ended if run.name.startswith(key)]
    exact = [run for run in alike if run.name == key]
    fitting = exact or [run for run in alike if not _is_attempt(run)] or alike
    if not fitting:
        raise InputError(f"{what}: no run of this name in {results}; valid: {_some(ended)}")
    if len(fitting) > 1:
        raise InputError(f"{what}: several runs in {results} begin so: {_some(fitting)}")
    return fitting[0]


def _is_attempt(run: Path) -> bool:
    """Tell whether a run was executed again since."""
    return key_of(run.name) != run.name


def _refuse_empty(what: str | None) -> None:
    if what == "":
        raise InputError("'': an empty name; valid: an experiment's name, its YAML file, a folder")


def _is_name(what: str, results: Path) -> bool:
    return run_directory.is_name(what) and (results / what).is_dir()


def _some(runs: list[Path]) -> str:
    names = sorted(f"{run.parent.name}/{run.name}" for run in runs)
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
