"""Writes and reads checkpoints: the state after a round, from which an interrupted run continues.

Each process writes its part as a file in `checkpoint/<round>.partial/`. When all parts are written,
the folder becomes `checkpoint/<round>/`, and only such complete checkpoints are read. Files hold
tensors and plain values; reading them unpickles nothing else.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

_FOLDER = "checkpoint"
_PARTIAL = ".partial"


def write(directory: Path, rounds_done: int, name: str, state: dict[str, Any]) -> None:
    """Write the part of process `name`; `state` may hold numpy arrays anywhere."""
    import torch  # imported here, because finding a checkpoint does not need it

    folder = directory / _FOLDER / f"{rounds_done}{_PARTIAL}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.pt"
    with path.open("wb") as file:
        torch.save(_to_tensors(state), file)
        file.flush()
        os.fsync(file.fileno())


def complete(directory: Path, rounds_done: int) -> None:
    """Make the partial folder the checkpoint, once all parts are written; remove older ones."""
    folder = directory / _FOLDER
    (folder / f"{rounds_done}{_PARTIAL}").rename(folder / str(rounds_done))
    for other in folder.iterdir():
        if other.name != str(rounds_done):
            shutil.rmtree(other)


def latest(directory: Path) -> int | None:
    """The rounds done at the last complete checkpoint of a run directory; None without one."""
    folder = directory / _FOLDER
    whole = [int(each.name) for each in folder.glob("*") if each.name.isdigit()]
    return max(whole, default=None)


def folder(directory: Path, rounds_done: int) -> Path:
    return directory / _FOLDER / str(rounds_done)


def read(directory: Path, rounds_done: int, name: str) -> dict[str, Any]:
    """Read the part of process `name`; arrays come back as tensors.

    Raises:
        ValueError: it cannot be read.
    """
    import torch

    path = folder(directory, rounds_done) / f"{name}.pt"
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    return state


def _to_tensors(state: Any) -> Any:
    import torch

    if isinstance(state, np.ndarray):
        return torch.from_numpy(state.copy())
    if isinstance(state, np.generic):  # `self.critical = norm > x` of a user's detector
        return state.item()
    if isinstance(state, dict):
        return {key: _to_tensors(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [_to_tensors(value) for value in state]
    return state
