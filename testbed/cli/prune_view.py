"""Shows what `./lab prune` would remove, asks, and removes it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from testbed.cli import places
from testbed.run import pruning
from testbed.shared import sizes
from testbed.shared.input_error import InputError

_AGES_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_SHOWN = 12


def prune(what: str | None, results: Path, older_than: str, confirm: Callable[[str], bool]) -> bool:
    """Show and remove samples; returns False when there was something and it was not confirmed.

    Args:
        what: an experiment, a run, or a folder; None for all results.
        results: the folder of results.
        older_than: an age such as `7d`; empty for any.
        confirm: asks the user.

    Raises:
        InputError: no such results, or a malformed age.
    """
    age_s = _age_s(older_than) if older_than else 0.0
    found = pruning.prunable(_folder(what, results), older_than_s=age_s)
    if not found:
        print("no samples to remove")
        return True
    for each in found[:_SHOWN]:
        age = _age(time.time() - each.ended_s)
        print(f"{sizes.in_words(each.size_bytes):>9}  {each.directory}  ({age} old)")
    if len(found) > _SHOWN:
        print(f"and {len(found) - _SHOWN} more")
    size = sizes.in_words(sum(each.size_bytes for each in found))
    if not confirm(
        f"Remove the samples of {len(found)} runs ({size})? All tables stay as they are"
    ):
        return False
    for each in found:
        pruning.prune(each)
    print(f"removed: {size}; reports lack these runs' queues, flows and processes from now on")
    return True


def _folder(what: str | None, results: Path) -> Path:
    if what is None:
        return results
    try:
        place = places.find(what, results)
        place.require()
        if place.experiment is None:
            place.require_results()
        return place.folder
    except InputError as error:
        try:
            return places.run(what, results)
        except InputError:
            raise error from None


def _age_s(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([mhdw])", text)
    if found is None:
        raise InputError(
            f"--older-than {text}: valid: a number with m (minutes), h, d or w, for example 7d"
        )
    return float(found[1]) * _AGES_S[found[2]]


def _age(seconds: float) -> str:
    for unit in ("d", "h"):
        if seconds >= _AGES_S[unit]:
            return f"{seconds / _AGES_S[unit]:.0f} {unit}"
    return f"{seconds / 60:.0f} min"
