"""Bounds of layers from a file that `./lab profile-layers` wrote, which an arm names as `tensors`.

Only the bounds come into a run: with others it is another run, whatever the file is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.shared import yaml_input
from testbed.shared.input_error import InputError, shown


def is_file(tensors: Any) -> bool:
    """Whether a value of `tensors` names a file, and is no list of bounds."""
    return isinstance(tensors, str) and tensors.endswith(yaml_input.SUFFIXES)


def bounds(name: str, folders: Sequence[Path]) -> dict[str, float]:
    """The bounds in a profile, by the tensors' names."""
    found = _read(name, folders).get("tensors")
    if not isinstance(found, Mapping) or not found:
        raise InputError(
            f"{name}: tensors is {shown(found)}; valid: a profile, as ./lab profile-layers writes"
        )
    return dict(found)


def caution(name: str, folders: Sequence[Path]) -> str:
    """What a reader must know of a profile's bounds; none where they hold together."""
    together = _read(name, folders).get("together")
    if isinstance(together, Mapping) and together.get("holds") is False:
        return f"{name}: by its own measurement each bound holds alone, and all together do not"
    return ""


def _read(name: str, folders: Sequence[Path]) -> dict[str, Any]:
    looked = [each.resolve() for each in (*folders, Path())]
    path = next((each / name for each in looked if (each / name).is_file()), None)
    if path is None:
        where = " or ".join(dict.fromkeys(map(str, looked)))
        raise InputError(f"{name}: no such file; looked in {where}")
    try:
        return yaml_input.read(path)
    except InputError as error:
        raise InputError(str(error).replace(str(path), name)) from None
