"""Finds a run by what a user calls it: its directory, its key, or the beginning of its key."""

from __future__ import annotations

from pathlib import Path

from testbed.shared.input_error import InputError

_SHOWN = 6


def find(results: Path, name: str | None) -> Path:
    """The directory of a run that has a verdict.

    Args:
        results: the folder that holds all experiments' results.
        name: a run's directory, its key or the beginning of one, `latest` or None for the run that
            ended last.

    Raises:
        InputError: there is none, or several fit.
    """
    if name is not None and (Path(name) / "status.json").exists():
        return Path(name)
    ended = [path.parent for path in results.glob("*/*/status.json")]
    if not ended:
        raise InputError(f"{name or results}: no run; {results} holds none that has ended")
    if name in (None, "latest"):
        return max(ended, key=lambda each: (each / "status.json").stat().st_mtime)
    wanted = str(name).rstrip("/").rpartition("/")[2]
    exact = [each for each in ended if each.name == wanted]
    alike = [each for each in ended if each.name.startswith(wanted)]
    found = exact or [each for each in alike if ".attempt" not in each.name] or alike
    if not found:
        raise InputError(f"{name}: no run of this name in {results}; valid: {_some(ended)}")
    if len(found) > 1:
        raise InputError(f"{name}: several runs in {results} begin so: {_some(found)}")
    return found[0]


def _some(runs: list[Path]) -> str:
    names = sorted(f"{each.parent.name}/{each.name}" for each in runs)
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
