"""Finds a run by what a user calls it: its directory, its key or the beginning, its experiment."""

from __future__ import annotations

from pathlib import Path

from testbed.shared.input_error import InputError

_SHOWN = 6


def find(results: Path, name: str | None) -> Path:
    """The directory of a run that has a verdict.

    Args:
        results: the folder that holds all experiments' results.
        name: a run's directory, its key or the beginning of one. An experiment's name, or None
            for all experiments: the run that ended last.

    Raises:
        InputError: there is none, or several fit.
    """
    if name is not None and (Path(name) / "status.json").exists():
        return Path(name)
    ended = [path.parent for path in results.glob("*/*/status.json")]
    if not ended:
        raise InputError(f"{name or results}: no run; {results} holds none that has ended")
    folder = _experiment(results, name) if name is not None else None
    of_it = [each for each in ended if folder is None or each.parent == folder]
    if name is None or (folder is not None and of_it):
        return max(of_it, key=lambda each: (each / "status.json").stat().st_mtime)
    wanted = str(name).rstrip("/").rpartition("/")[2]
    exact = [each for each in ended if each.name == wanted]
    alike = [each for each in ended if each.name.startswith(wanted)]
    found = exact or [each for each in alike if ".attempt" not in each.name] or alike
    if not found:
        raise InputError(f"{name}: no run of this name in {results}; valid: {_some(ended)}")
    if len(found) > 1:
        raise InputError(f"{name}: several runs in {results} begin so: {_some(found)}")
    return found[0]


def _experiment(results: Path, name: str) -> Path | None:
    """The folder of an experiment that is named so, if any."""
    return results / name if "/" not in name and (results / name).is_dir() else None


def _some(runs: list[Path]) -> str:
    names = sorted(f"{each.parent.name}/{each.name}" for each in runs)
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
