"""Keeps generated and downloaded data in the user's cache folder, as complete files only."""

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.shared.yaml_input import InputError
from testbed.training.datasets.base import Progress

_PROJECT = "bounded-loss-testbed"
_BLOCK_BYTES = 1 << 18

Arrays = dict[str, NDArray[Any]]


def folder() -> Path:
    """The cache folder `$XDG_CACHE_HOME/bounded-loss-testbed` (or below `~/.cache`), created."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    place = (cache if cache.is_absolute() else Path.home() / ".cache") / _PROJECT
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{place}: {error.strerror}; set XDG_CACHE_HOME to a folder for cached data sets"
        ) from None
    return place


def arrays(name: str, key: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
    """The arrays that `make` returns, cached as an .npz whose name is a hash of `key`."""
    text = json.dumps(key, sort_keys=True).encode()
    path = folder() / f"{name}-{hashlib.sha256(text).hexdigest()[:16]}.npz"
    kept = _read(path)
    if kept is not None:
        return kept
    made = make()
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **made)
    return made


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` at the end, unless an error is raised."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as own:
            temporary = Path(own, path.name)
            yield temporary
            temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def fetch(url: str, path: Path, *, sha256: str, progress: Progress, timeout_s: float = 30) -> None:
    """Download to a temporary file, verify it, and only then move it to `path`."""
    import urllib.error  # imports much, and is rarely needed
    import urllib.request
    from http.client import HTTPException

    total, done = hashlib.sha256(), 0
    with replacing(path) as temporary:
        try:
            with (
                urllib.request.urlopen(url, timeout=timeout_s) as response,  # noqa: S310
                temporary.open("wb") as file,
            ):
                length = int(response.headers.get("Content-Length") or 0)
                while block := response.read(_BLOCK_BYTES):
                    file.write(block)
                    total.update(block)
                    done += len(block)
                    progress(done, length or None)
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", None) or error
            raise InputError(f"{url}: not downloaded: {reason}") from None
        if length and done < length:
            raise InputError(f"{url}: not downloaded: {done} of {length} bytes came")
        if total.hexdigest() != sha256:
            raise InputError(
                f"{url}: not kept: its SHA-256 is {total.hexdigest()}, expected {sha256}"
            )


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> Arrays | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
